#include "solve/sweep/solved_layers.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/paths.h"
#include "shim/shared_work.h"

namespace detent::solve {
namespace fs = std::filesystem;
namespace {

// A file: the length of a JSON text (8 bytes), the text, then the elements of all layers one after the other. Each
// part begins at a multiple of kAlignment, so that the runtime can map it.
using Json = nlohmann::json;
constexpr std::size_t kAlignment = 64;

std::size_t padded(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

std::span<const std::byte> as_bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span<const float>(values));
}

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
          {"bias", layer.bias.size()},
          {"scale", as_bytes(layer.scales.weights).size()},
          {"bias_scale", as_bytes(layer.scales.bias).size()}};
}

Fingerprint checksum(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.result();
}

std::vector<std::byte> read_all(const fs::path& path) {
  const auto file = MappedFile::open(path, "solved layer");
  return {file->bytes().begin(), file->bytes().end()};
}

void write_all(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

std::vector<StoredLayer> load_file(const fs::path& path);

}  // namespace

fs::path SolvedLayers::file_of(std::size_t stage, int rank) const {
  return directory_ / (rank == 0 ? fmt::format("solved-{}", stage) : fmt::format("solved-{}-{}", stage, rank));
}

bool SolvedLayers::has_all(std::size_t stage) const {
  for (int rank = 0; rank < shim::size_of(ranks_); ++rank) {
    if (!paths::exists(file_of(stage, rank))) return false;
  }
  return true;
}

void SolvedLayers::take_from_first(std::size_t stage) const {
  for (int rank = 0; rank < shim::size_of(ranks_); ++rank) {
    auto bytes = shim::rank_of(ranks_) == 0 ? read_all(file_of(stage, rank)) : std::vector<std::byte>();
    ranks_->broadcast(bytes, stop_);
    if (shim::rank_of(ranks_) != 0) write_all(file_of(stage, rank), bytes);
  }
}

void SolvedLayers::save(std::size_t stage, const std::vector<SolvedLayer>& layers) const {
  std::vector<std::byte> data;
  Json json = Json::array();
  for (const auto& layer : layers) {
    json.push_back(describe(layer));
    append(data, layer.integers);
    append(data, layer.bias);
    append(data, as_bytes(layer.scales.weights));
    append(data, as_bytes(layer.scales.bias));
  }
  std::string text = json_text(Json{{"layers", json}, {"sum", checksum(data).text()}});
  text.resize(padded(sizeof(std::uint64_t) + text.size()) - sizeof(std::uint64_t), ' ');
  const std::uint64_t length = text.size();
  AtomicFile file(file_of(stage, shim::rank_of(ranks_)));
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  file.write(data);
  file.commit();
  if (shim::size_of(ranks_) == 1) return;
  const auto all = shim::of_all(ranks_, read_all(file.target()), stop_);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (static_cast<int>(rank) != ranks_->rank()) write_all(file_of(stage, static_cast<int>(rank)), all[rank]);
  }
}

std::optional<std::vector<StoredLayer>> SolvedLayers::load(std::size_t stage, std::span<const int> owners) const {
  const bool known = has_all(stage);
  if (shim::size_of(ranks_) == 1) return known ? std::optional(load_file(file_of(stage, 0))) : std::nullopt;
  if (!shim::of_first(ranks_, known, stop_)) return std::nullopt;
  if (shim::any_of(ranks_, !known, stop_)) take_from_first(stage);
  std::vector<std::vector<StoredLayer>> of_ranks;
  for (int rank = 0; rank < shim::size_of(ranks_); ++rank) of_ranks.push_back(load_file(file_of(stage, rank)));
  std::vector<StoredLayer> layers;
  std::vector<std::size_t> taken(of_ranks.size());
  for (const int owner : owners) {
    const auto rank = static_cast<std::size_t>(owner);
    layers.push_back(of_ranks[rank].at(taken[rank]++));
  }
  return layers;
}

namespace {

std::vector<StoredLayer> load_file(const fs::path& path) {
  const auto file = MappedFile::open(path, "solved layer");
  const auto damaged = [&] { return bad_input(fmt::format("'{}' is damaged", path.string()), "run without --resume"); };
  auto bytes = file->bytes();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw damaged();
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes = bytes.subspan(sizeof length);
  if (length > bytes.size()) throw damaged();
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const auto json = parse_json({text, length});
  if (!json) throw damaged();
  bytes = bytes.subspan(length);
  std::vector<StoredLayer> layers;
  const auto read = [&](const Json& entry) {
    StoredLayer layer;
    const auto name = name_of_json(entry.at("name")), op_type = name_of_json(entry.at("op_type"));
    if (!name || !op_type) throw damaged();
    layer.tuning = {*name,
                    *op_type,
                    entry.at("streamed"),
                    entry.at("tuned"),
                    entry.value("seen", true),
                    entry.at("before"),
                    entry.at("after"),
                    entry.at("seconds")};
    const auto cut = [&](std::size_t size) {
      if (size > bytes.size() || padded(size) > bytes.size()) throw damaged();
      const auto part = bytes.first(size);
      bytes = bytes.subspan(padded(size));
      return onnx::TensorData::mapped(file, part);
    };
    layer.integers = cut(entry.at("integers"));
    layer.bias = cut(entry.at("bias"));
    layer.scale = cut(entry.at("scale"));
    layer.bias_scale = cut(entry.at("bias_scale"));
    return layer;
  };
  try {
    if (json->at("sum") != checksum(bytes).text()) throw damaged();
    for (const auto& entry : json->at("layers")) layers.push_back(read(entry));
  } catch (const Json::exception&) {
    throw damaged();
  }
  return layers;
}

}  // namespace
}  // namespace detent::solve
