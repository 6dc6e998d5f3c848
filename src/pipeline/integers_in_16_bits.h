// Static quantization whose floats have 16 bits.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_set>

#include "detent/quantize.h"
#include "onnx/model.h"

namespace detent::pipeline {

struct Lowering {
  /// Of the whole run; samples, if there are some, from the beginning.
  const QuantizeOptions& options;
  /// Nodes that stay in float32, as far as the quantized model has them.
  const std::unordered_set<std::string>& in_float32;
  /// For working files.
  const std::filesystem::path& directory;
};

/// Writes the quantized model to QuantizeOptions::output with QuantConfig::float_type wherever that is safe, scales
/// included. The samples run through it once more: what it has in float32 decides. Sizes, notes and
/// QuantizeResult::floats are those of the written model.
void write_in_16_bits(onnx::Model& quantized, const Lowering& lowering, QuantizeResult& result);

}  // namespace detent::pipeline
