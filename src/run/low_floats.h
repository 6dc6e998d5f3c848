// The 16-bit floating-point type that a model computes in.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "detent/config.h"
#include "exec/session.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::run {

/// nullopt: the model has none. `cure` ends the message about a model of both types, which throws bad_input. The model
/// must be unfolded (onnx/bodies.h), with its constants as initializers.
std::optional<FloatType> low_type(const onnx::Model& model, const std::string& cure);

/// Types of the values of such a model, with float16 also for bfloat16, of which the runtime's CPU has no kernels.
graph::ValueTypes low_types(onnx::Model model, FloatType type, const exec::Runtime& runtime);

/// What FloatType::keep means for a model of 16-bit floats whose products become integers.
struct KeptFloats {
  FloatType type = FloatType::float16;
  std::vector<std::string> in_float32;  // nodes that compute in float32
};
/// nullopt: the model has no such floats, or another type was asked for.
std::optional<KeptFloats> kept_floats(const std::filesystem::path& model, const QuantConfig& config,
                                      const std::optional<std::filesystem::path>& runtime);

/// Options with the model's type in the place of FloatType::keep; nullopt where they are as they should be.
template <class Options>
std::optional<Options> with_kept_floats(const Options& options) {
  const auto kept = kept_floats(options.model, options.config, options.runtime);
  if (!kept) return std::nullopt;
  std::optional<Options> own(options);
  own->config.float_type = kept->type;
  return own;
}

}  // namespace detent::run
