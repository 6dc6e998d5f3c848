#include "quantization/emit/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/index.h"
#include "graph/kv_cache.h"
#include "onnx/write.h"

namespace detent::quantization {
namespace {

constexpr std::size_t kKeyScale = 12, kValueScale = 13;  // inputs of GroupQueryAttention
constexpr std::int64_t kIrOfFloat8 = 9;

onnx::DataType stored_type(KvCacheType type) {
  if (type == KvCacheType::int8) return onnx::DataType::int8;
  if (type == KvCacheType::int4) return onnx::DataType::uint8;
  return onnx::DataType::float8e4m3fn;
}

class Emitter {
 public:
  Emitter(onnx::Model& model, const KvCacheConfig& config) : model_(model), config_(config), index_(model) {}

  void emit(const graph::CachedAttention& cache, const KvScales& scales) {
    auto& node = model_.graph.nodes[cache.node];
    auto inputs = node.inputs();
    inputs.resize(std::max(inputs.size(), kValueScale + 1));
    inputs[kKeyScale] = constant(node.id() + "/k_scale", cache, scales.keys);
    inputs[kValueScale] = constant(node.id() + "/v_scale", cache, scales.values);
    node.set_inputs(std::move(inputs));
    const char* granularity = config_.per_channel ? "PER_CHANNEL" : "PER_TENSOR";
    node.set_attribute(onnx::Attribute::of_string("k_quant_type", granularity));
    node.set_attribute(onnx::Attribute::of_string("v_quant_type", granularity));
    node.set_attribute(onnx::Attribute::of_int("kv_cache_bit_width", config_.type == KvCacheType::int4 ? 4 : 8));
    for (const auto& name : {cache.past_key, cache.past_value}) retype(model_.graph.inputs, name, cache);
    for (const auto& name : {cache.present_key, cache.present_value}) retype(model_.graph.outputs, name, cache);
  }

 private:
  std::string constant(const std::string& wanted, const graph::CachedAttention& cache,
                       const std::vector<float>& scales) {
    const auto name = index_.fresh_name(wanted);
    std::vector<std::int64_t> dims{1};
    if (config_.per_channel) dims = {1, cache.heads, 1, cache.head_size};
    model_.graph.initializers.push_back(
        onnx::make_tensor<float>(name, onnx::DataType::float32, std::move(dims), std::span(scales)));
    return name;
  }

  void retype(std::vector<onnx::ValueInfo>& values, const std::string& name,
              const graph::CachedAttention& cache) const {
    const auto value = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.name == name; });
    if (value == values.end()) throw internal_error("a cache that is no input and no output");
    auto shape = value->shape;
    if (config_.type == KvCacheType::int4 && shape && shape->size() == 4)
      shape->back() = {(cache.head_size + 1) / 2, {}};
    *value = onnx::make_value_info(name, stored_type(config_.type), std::move(shape));
  }

  onnx::Model& model_;
  const KvCacheConfig& config_;
  graph::Index index_;
};

}  // namespace

void emit_kv_cache(onnx::Model& model, const KvCacheConfig& config, std::span<const KvScales> scales) {
  const auto caches = graph::cached_attentions(model);
  if (caches.size() != scales.size()) throw internal_error("scales of another number of layers");
  Emitter emitter(model, config);
  for (std::size_t i = 0; i < caches.size(); ++i) emitter.emit(caches[i], scales[i]);
  if (config.type == KvCacheType::float8e4m3fn && model.ir_version < kIrOfFloat8) model.set_ir_version(kIrOfFloat8);
}

}  // namespace detent::quantization
