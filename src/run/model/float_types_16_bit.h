// The 16-bit floating-point type that a model computes in.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_set>

#include "detent/config.h"
#include "exec/session.h"
#include "graph/rewrites/rewrite.h"
#include "graph/values.h"
#include "onnx/model.h"

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

}  // namespace detent::run
