// Gates behind convolutions: x * Sigmoid(x) and x * HardSigmoid(x), which most of the time of some networks goes into.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::quantization {

/// Positions of nodes: of what makes the gate from x, which a convolution made; of the product of both; and of a sum of
/// that with one number, or kNone. What the first two make has no other readers.
struct Gate {
  int sigmoid, product;
  int sum = graph::kNone;
};
std::vector<Gate> find_gated_activations(const onnx::Model& model, const graph::Index& index);

/// Some of a model's gates, by the value that the first node makes.
using GateNames = std::set<std::string>;
GateNames all_gates(const onnx::Model& model, const graph::Index& index);

}  // namespace detent::quantization
