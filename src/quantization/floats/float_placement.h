// Which nodes of a float32 model compute in 16-bit floating point, and which must not.
#pragma once

#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "detent/config.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// What is known when nodes are placed.
struct FloatFacts {
  FloatType type = FloatType::float16;  // float16 or bfloat16
  /// Of the float32 values of the model; null: no samples were run, and the operator alone decides.
  const calibration::Statistics* statistics = nullptr;
  /// Whether graph inputs and outputs stay float32.
  bool keep_io_types = true;
  /// One flag for each node: it may be in 16 bits.
  std::vector<bool> allowed;
};

/// A value may be 16-bit where the largest magnitude that was seen, times 4, fits the type, and so does the bound of
/// the sums that arise inside of its node; where it is not so small that it would lose digits; and where no constant or
/// epsilon that the node needs vanishes. `types` should be as static as can be: sums over unknown numbers of values
/// stay float32. Values that indices are computed from, and what lies between two nodes that stay, stay as well where
/// that saves casts.
Placement place_floats(const onnx::Model& model, const graph::ValueTypes& types, const FloatFacts& facts);

/// Values that place_floats() wants the statistics of: all float32 ones that depend on the graph's inputs.
std::vector<std::string> float_values(const onnx::Model& model, const graph::ValueTypes& types);

/// The opset that all operators of the model have the type from, as far as they have it; no later one than runtimes
/// load.
std::int64_t opset_of_floats(const onnx::Model& model, FloatType type);

}  // namespace detent::quantization
