// What finishes a quantized model: types of 16-bit floats, the KV cache, weights stored as integers.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "calibration/observers.h"
#include "data/sample.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/index.h"
#include "graph/patterns.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Which 16-bit floats a model has.
struct Has16BitFloats {
  bool half = false;   // float16
  bool brain = false;  // bfloat16
};
/// The model must be unfolded (onnx/bodies.h), with its constants as initializers.
Has16BitFloats find_16_bit_floats(const onnx::Model& model);
/// The same of a file as it is.
Has16BitFloats find_16_bit_floats(const std::filesystem::path& file);

/// Types of the values of such a model, with float16 also for bfloat16, of which the runtime's CPU has no kernels.
graph::ValueTypes low_types(onnx::Model model, const Has16BitFloats& low, const exec::PortsOf& ports_of);

/// What FloatType::keep means for a model of 16-bit floats whose products become integers.
struct KeptFloats {
  FloatType type = FloatType::float16;
  std::unordered_set<std::string> in_float32;  // ids of nodes that compute in float32
};
/// nullopt: the model has no such floats, or another type was asked for. Throws bad_input for a model of both.
std::optional<KeptFloats> kept_floats(onnx::Model model, const QuantConfig& config, const exec::Runtime& runtime,
                                      const graph::UnfoldLimits& limits);

/// Options with the model's type in the place of FloatType::keep; nullopt where they are as they should be.
template <class Options>
std::optional<Options> with_kept_floats(const onnx::Model& model, const Options& options,
                                        const exec::Runtime& runtime) {
  const auto kept = kept_floats(model, options.config, runtime, {options.resources.memory_budget, options.stop});
  if (!kept) return std::nullopt;
  std::optional<Options> own(options);
  own->config.float_type = kept->type;
  return own;
}

/// The scales of a decoder's cache on their way through a run: what has to be watched, what becomes of it.
class KvCacheRun {
 public:
  /// Of the model as it will be quantized, and of the same model as it runs: in float32. Throws what
  /// quantizable_caches() throws.
  KvCacheRun(const onnx::Model& model, const onnx::Model& running, const KvCacheConfig& config);

  /// What the observer listens to, of the model as it runs.
  const std::vector<std::string>& values() const { return values_; }
  calibration::CacheObserver& observer() { return observer_; }

  /// Why the quantized model cannot run in a version of ONNX Runtime on a CPU; empty: it can.
  std::string reason_against_running(const std::string& runtime_version) const;

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

/// graph::cached_attentions(), where they can have such a type. Throws bad_input where they cannot.
std::vector<graph::CachedAttention> quantizable_caches(const onnx::Model& model, KvCacheType type);

/// Whether something is in a cache that `specs` have in another type. Inputs are in their order.
bool fills_cache(const std::vector<data::Array>& inputs, const std::vector<data::InputSpec>& specs);

/// The inputs of a sample for a model whose cache has another type: what is empty gets the type and the shape that
/// `specs` say. Inputs are in their order. Throws bad_input for other types where something is in the cache.
std::vector<data::Array> with_cache_of(const std::vector<data::Array>& inputs,
                                       const std::vector<data::InputSpec>& specs);

// What is done to a quantized model after its Q/DQ pairs are in, so that it is as it will be written.

/// The LSTM layers that become integers: those that the user named by their type and NodeChoice::on_integers
/// (quantization/weight_operators.h), but none that stays in float. Positions of nodes.
std::vector<std::size_t> recurrent_layers(const Prepared& prepared, const QuantConfig& config);

/// The layers whose weights are stored as integers that become floats when the model is loaded: those of
/// NodeChoice::stored that need not keep their weights. By Node::id().
std::set<std::string> stored_layers(const Prepared& prepared);

/// The same of products, see remedies::stored_products().
std::set<std::string> stored_products(const Prepared& prepared);

/// quantization::store_weights(), and what there is to tell of it.
std::vector<std::string> store_weights(const std::set<std::string>& nodes, onnx::Model& quantized);

/// Whether any recurrent layer has integer weights, in either form.
bool changes_recurrent(const Prepared& prepared, const QuantConfig& config);

/// Gives recurrent_layers() integer weights, so that they find the scales of their activations while the model runs;
/// turns pairs into operators on integers where the format asks for it; stores equal constants once. Gives back notes.
std::vector<std::string> finish_integers(const Prepared& prepared, const QuantizeOptions& options,
                                         onnx::Model& quantized);

}  // namespace detent::run
