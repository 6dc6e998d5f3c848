#include "run/model/kv_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/small_file.h"
#include "data/floats.h"
#include "quantization/emit/kv_cache.h"

namespace detent::run {
namespace {

// Keys and values of each layer, one after another. What nodes stand for attention is the same in both models, but the
// values that they make may have been renamed.
std::vector<calibration::CacheValue> watched(const onnx::Model& model, const onnx::Model& running,
                                             const std::vector<graph::CachedAttention>& caches) {
  std::vector<const onnx::Node*> nodes;
  for (const auto& node : running.graph.nodes) nodes.push_back(&node);
  std::erase_if(nodes, [](const auto* node) { return node->op_type() != "GroupQueryAttention"; });
  std::vector<calibration::CacheValue> values;
  std::size_t before = 0, attentions = 0;
  for (const auto& cache : caches) {
    for (; before < cache.node; ++before)
      attentions += static_cast<std::size_t>(model.graph.nodes[before].op_type() == "GroupQueryAttention");
    const auto& outputs = nodes.at(attentions)->outputs();
    values.push_back({outputs.at(1), cache.heads, cache.head_size, cache.rotated, cache.neighbours});
    values.push_back({outputs.at(2), cache.heads, cache.head_size});
  }
  return values;
}

// A cache of numbers that are no floats, where the sample has another type.
bool is_of_another_cache(const data::Array& array, const data::InputSpec& spec) {
  return array.type != spec.type && !data::holds_floats(spec.type);
}

}  // namespace

KvCacheRun::KvCacheRun(const onnx::Model& model, const onnx::Model& running, const KvCacheConfig& config)
    : config_(config),
      caches_(graph::cached_attentions(model)),
      observer_(watched(model, running, caches_), config.per_channel) {
  for (const auto& value : watched(model, running, caches_)) values_.push_back(value.value);
}

void KvCacheRun::apply(onnx::Model& emitted, QuantizeResult& result) const {
  result.kv_scales.clear();
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    result.kv_scales.push_back(
        {caches_[i].layer, observer_.scales(2 * i, config_.type), observer_.scales(2 * i + 1, config_.type)});
  }
  quantization::emit_kv_cache(emitted, config_, result.kv_scales);
}

void check_scale_file(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed) || std::filesystem::is_empty(path, failed)) return;
  const auto json = parse_json(read_small_file(path, "scales"));
  if (json && json->is_object() && json->contains("scales")) return;
  throw usage_error(fmt::format("--set kv-cache-scales: '{}' exists and has no scales of a cache", path.string()),
                    "choose another name, or remove it");
}

void write_scale_file(const std::filesystem::path& path, const std::vector<KvScales>& scales) {
  // A number where there is one for a layer.
  const auto of_layer = [](const std::vector<float>& all) {
    return all.size() == 1 ? nlohmann::ordered_json(all.front()) : nlohmann::ordered_json(all);
  };
  nlohmann::ordered_json keys = nlohmann::ordered_json::array(), values = keys, layers = keys;
  for (const auto& layer : scales) {
    keys.push_back(of_layer(layer.keys));
    values.push_back(of_layer(layer.values));
    layers.push_back(layer.layer);
  }
  const nlohmann::ordered_json file{{"scales", {{"k_scales", keys}, {"v_scales", values}}}, {"layer_ids", layers}};
  const auto text = json_text(file, 2) + "\n";
  AtomicFile out(path);
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

std::string reason_against_running(KvCacheType type, const std::string& runtime_version) {
  constexpr int kSince = 27;  // 1.27 has the kernels
  if (type == KvCacheType::float8e4m3fn)
    return "ONNX Runtime has attention with a cache of float8e4m3fn for CUDA alone, not for CPUs";
  if (type == KvCacheType::keep) return {};
  const auto dot = runtime_version.find('.');
  const int major = std::atoi(runtime_version.c_str());
  const int minor = dot == std::string::npos ? 0 : std::atoi(runtime_version.c_str() + dot + 1);
  if (major > 1 || minor >= kSince) return {};
  return fmt::format("ONNX Runtime {} has no attention with a cache of integers for CPUs; 1.27 and later have",
                     runtime_version);
}

bool fills_cache(const std::vector<data::Array>& inputs, const std::vector<data::InputSpec>& specs) {
  for (std::size_t i = 0; i < inputs.size() && i < specs.size(); ++i) {
    if (is_of_another_cache(inputs[i], specs[i]) && !inputs[i].bytes.empty()) return true;
  }
  return false;
}

std::vector<data::Array> with_cache_of(const std::vector<data::Array>& inputs,
                                       const std::vector<data::InputSpec>& specs) {
  auto made = inputs;
  for (std::size_t i = 0; i < made.size() && i < specs.size(); ++i) {
    auto& array = made[i];
    const auto& spec = specs[i];
    if (!is_of_another_cache(array, spec)) {
      array = data::as_floats(array, spec.type);
      continue;
    }
    if (!array.bytes.empty())
      throw bad_input(
          fmt::format("input '{}' has another type in the quantized model, and the samples fill it", spec.name),
          "give samples with an empty cache");
    array.type = spec.type;
    if (spec.shape && spec.shape->size() == array.shape.size() && spec.shape->back() >= 0)
      array.shape.back() = spec.shape->back();
  }
  return made;
}

}  // namespace detent::run
