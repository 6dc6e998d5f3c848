#include "solve/sweep/solved_layers.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/paths.h"

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

}  // namespace

fs::path SolvedLayers::file_of(std::size_t stage) const { return directory_ / fmt::format("solved-{}", stage); }

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
  AtomicFile file(file_of(stage));
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text)));
  file.write(data);
  file.commit();
}

std::optional<std::vector<StoredLayer>> SolvedLayers::load(std::size_t stage) const {
  const fs::path path = file_of(stage);
  if (!paths::exists(path)) return std::nullopt;
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

}  // namespace detent::solve
