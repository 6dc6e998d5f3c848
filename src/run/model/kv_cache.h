// The scales of a decoder's cache on their way through a run: what has to be watched, what becomes of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "calibration/cache_ranges.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "graph/kv_cache.h"
#include "onnx/model.h"

namespace detent::run {

class KvCacheRun {
 public:
  /// Of the model as it will be quantized, and of the same model as it runs: in float32. Throws bad_input where its
  /// cache cannot be quantized.
  KvCacheRun(const onnx::Model& model, const onnx::Model& running, const KvCacheConfig& config);

  /// What the observer listens to, of the model as it runs.
  const std::vector<std::string>& values() const { return values_; }
  calibration::CacheObserver& observer() { return observer_; }

  /// Puts the scales into the model that is to be written, and tells of them.
  void apply(onnx::Model& emitted, QuantizeResult& result) const;

 private:
  const KvCacheConfig& config_;
  std::vector<graph::CachedAttention> caches_;
  std::vector<std::string> values_;
  calibration::CacheObserver observer_;
};

/// Whether an output hands on the cache, by the name that all exporters give it.
inline bool is_cache_output(std::string_view name) { return name.starts_with("present"); }

/// Throws usage where something stands at `path` that has no scales.
void check_scale_file(const std::filesystem::path& path);
/// Writes scales in the form that the model builder of onnxruntime-genai reads as kv_cache_scale_file.
void write_scale_file(const std::filesystem::path& path, const std::vector<KvScales>& scales);

/// Why the model with this cache cannot run in a version of ONNX Runtime on a CPU; empty: it can.
std::string reason_against_running(KvCacheType type, const std::string& runtime_version);

/// Whether something is in a cache that `specs` have in another type. Inputs are in their order.
bool fills_cache(const std::vector<data::Array>& inputs, const std::vector<data::InputSpec>& specs);

/// The inputs of a sample for a model whose cache has another type: what is empty gets the type and the shape that
/// `specs` say. Inputs are in their order. Throws bad_input for other types where something is in the cache.
std::vector<data::Array> with_cache_of(const std::vector<data::Array>& inputs,
                                       const std::vector<data::InputSpec>& specs);

}  // namespace detent::run
