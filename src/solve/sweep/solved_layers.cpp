#include "solve/sweep/solved_layers.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/text.h"
#include "data/sample.h"
#include "shim/shared_work.h"

namespace detent::solve {

namespace fs = std::filesystem;

namespace {

// A sealed file: the length of a JSON text (8 bytes), the text, then the elements of all layers one after the other.
// Each part begins at a multiple of kAlignment, so that the runtime can map it.
using Json = nlohmann::json;
constexpr std::size_t kAlignment = 64;

std::size_t padded(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

void append(std::vector<std::byte>& data, std::span<const std::byte> more) {
  data.insert(data.end(), more.begin(), more.end());
  data.resize(padded(data.size()));
}

Json describe(const SolvedLayer& layer) {
  const auto& t = layer.tuning;
  return {{"name", json_of_name(t.name)},
          {"op_type", json_of_name(t.op_type)},
          {"streamed", t.streamed},
          {"tuned", t.tuned},
          {"seen", t.seen},
          {"before", t.error_before},
          {"after", t.error_after},
          {"seconds", t.seconds},
          {"integers", layer.integers.size()},
          {"bias", layer.bias.size()}};
}

// Piece by piece, so that no more than one of them is in memory for it.
Fingerprint checksum(const MappedFile& file, std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  Hasher hasher;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    hasher.add(piece);
    file.release(piece);
    bytes = bytes.subspan(piece.size());
  }
  return hasher.result();
}

std::vector<std::byte> read_all(const fs::path& path) {
  const auto file = MappedFile::open(path, "solved layer");
  return {file->bytes().begin(), file->bytes().end()};
}

Error damaged_on_disk(const fs::path& path) {
  return resource_error(fmt::format("'{}' was damaged on disk", path.string()),
                        "run again, or choose another --work-dir");
}

void write_all(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

// Nothing where the file is not there, or damaged.
std::optional<std::vector<StoredLayer>> load_file(const fs::path& path);

}  // namespace

void SealedFile::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  file_.write(bytes);
}

void SealedFile::finish() {
  const auto sum = hasher_.result();
  file_.write(std::as_bytes(std::span(&sum, 1)));
  file_.commit();
}

SealedBytes load_sealed(const fs::path& path, const char* what) {
  if (!paths::exists(path)) return {};
  auto file = MappedFile::open(path, what);
  Fingerprint sum;
  if (file->bytes().size() < sizeof sum) return {};
  const auto content = file->bytes().first(file->bytes().size() - sizeof sum);
  std::memcpy(&sum, content.data() + content.size(), sizeof sum);
  if (checksum(*file, content) != sum) return {};
  return {std::move(file), content};
}

fs::path SolvedLayers::file_of(std::size_t stage) const { return directory_ / fmt::format("solved-{}", stage); }

std::optional<std::vector<StoredLayer>> SolvedLayers::read(std::size_t stage, std::size_t layers) const {
  auto found = load_file(file_of(stage));
  if (found && found->size() != layers) found.reset();
  return found;
}

void SolvedLayers::take_from_first(std::size_t stage) const {
  auto bytes = shim::rank_of(ranks_) == 0 ? read_all(file_of(stage)) : std::vector<std::byte>();
  ranks_->broadcast(bytes, stop_);
  if (shim::rank_of(ranks_) != 0) write_all(file_of(stage), bytes);
}

void SolvedLayers::save(std::size_t stage, const std::vector<SolvedLayer>& layers) const {
  if (shim::rank_of(ranks_) != 0) return;
  std::vector<std::byte> data;
  Json json = Json::array();
  for (const auto& layer : layers) {
    json.push_back(describe(layer));
    append(data, layer.integers);
    append(data, layer.bias);
  }
  std::string text = json_text(Json{{"layers", json}});
  text.resize(padded(sizeof(std::uint64_t) + text.size()) - sizeof(std::uint64_t), ' ');
  const std::uint64_t length = text.size();
  SealedFile file(file_of(stage));
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  file.write(data);
  file.finish();
}

std::optional<std::vector<StoredLayer>> SolvedLayers::load(std::size_t stage, std::size_t layers) const {
  auto found = read(stage, layers);
  if (shim::size_of(ranks_) == 1) return found;
  if (!shim::broadcast_value(ranks_, found.has_value(), stop_)) return std::nullopt;
  if (!shim::any_of(ranks_, !found, stop_)) return found;
  take_from_first(stage);
  found = read(stage, layers);
  if (!found) throw damaged_on_disk(file_of(stage));
  return found;
}

std::vector<StoredLayer> SolvedLayers::load_saved(std::size_t stage, std::size_t layers) const {
  auto found = load(stage, layers);
  if (!found) throw damaged_on_disk(file_of(stage));
  return std::move(*found);
}

namespace {

struct Damaged {};

// JSON has no numbers that are not finite: a layer whose bias is infinite has such errors.
double error_of(const Json& entry) {
  return entry.is_null() ? std::numeric_limits<double>::infinity() : entry.get<double>();
}

StoredLayer read_layer(const Json& entry, const std::shared_ptr<const MappedFile>& file,
                       std::span<const std::byte>& bytes) {
  const auto name = name_of_json(entry.at("name")), op_type = name_of_json(entry.at("op_type"));
  if (!name || !op_type) throw Damaged{};
  StoredLayer layer;
  layer.tuning = {*name,
                  *op_type,
                  entry.at("streamed"),
                  entry.at("tuned"),
                  entry.value("seen", true),
                  error_of(entry.at("before")),
                  error_of(entry.at("after")),
                  entry.at("seconds")};
  const auto cut = [&](std::size_t size) {
    if (size > bytes.size() || padded(size) > bytes.size()) throw Damaged{};
    const auto part = bytes.first(size);
    bytes = bytes.subspan(padded(size));
    return onnx::TensorData::mapped(file, part);
  };
  layer.integers = cut(entry.at("integers"));
  layer.bias = cut(entry.at("bias"));
  return layer;
}

std::vector<StoredLayer> read_layers(const fs::path& path) {
  auto [file, bytes] = load_sealed(path, "solved layer");
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw Damaged{};
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes = bytes.subspan(sizeof length);
  if (length > bytes.size()) throw Damaged{};
  const auto json = parse_json(as_text(bytes.first(length)));
  if (!json) throw Damaged{};
  bytes = bytes.subspan(length);
  std::vector<StoredLayer> layers;
  for (const auto& entry : json->at("layers")) layers.push_back(read_layer(entry, file, bytes));
  return layers;
}

std::optional<std::vector<StoredLayer>> load_file(const fs::path& path) {
  try {
    return read_layers(path);
  } catch (const Damaged&) {
  } catch (const Json::exception&) {
  }
  return std::nullopt;
}

}  // namespace

SolverState::Stored LayerState::load() {
  const auto [file, bytes] = load_sealed(file_, "solver's state");
  return {file, bytes};
}

void LayerState::save(std::span<const std::span<const std::byte>> parts) {
  SealedFile file(file_);
  for (const auto part : parts) file.write(part);
  file.finish();
  saved_ = Clock::now();
  failpoint("finetune.state");
}

StoredSamples::StoredSamples(store::Spool& spool, const std::string& name) : spool_(spool), lane_(spool.open(name)) {}

StoredSamples::~StoredSamples() {
  ahead_.clear();  // waits until they are read
  spool_.close(lane_);
}

void StoredSamples::add(store::Record record) { spool_.put(lane_, count_++, std::move(record)); }

SampleRef StoredSamples::get(std::size_t i) {
  auto record = take(i);
  if (!record)
    throw resource_error("a spooled activation was damaged on disk", "run again, or choose another --work-dir");
  const auto held = std::make_shared<store::Record>(std::move(*record));
  const auto& arrays = *held;
  return {arrays[0].shape, data::floats(arrays[0]),
          arrays.size() > 2 ? data::floats(arrays[2]) : std::span<const float>(), data::floats(arrays[1]), held};
}

std::optional<store::RecordOnDisk> StoredSamples::resting(std::size_t i) const { return spool_.resting(lane_, i); }

void StoredSamples::prefetch(std::span<const std::size_t> coming) {
  for (const std::size_t i : coming) {
    if (ahead_.size() >= coming.size() || ahead_.contains(i)) continue;
    ahead_.emplace(i, std::async(std::launch::async, [this, i] { return spool_.get(lane_, i); }));
  }
}

std::optional<store::Record> StoredSamples::take(std::size_t i) {
  const auto found = ahead_.find(i);
  if (found == ahead_.end()) return spool_.get(lane_, i);
  auto reading = std::move(found->second);
  ahead_.erase(found);
  return reading.get();
}

}  // namespace detent::solve
