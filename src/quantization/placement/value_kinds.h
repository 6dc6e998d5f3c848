// Values whose ranges follow from what they are: gated activations, integers, masks, values too wide for 8 bits.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

// Gates behind convolutions: x * Sigmoid(x), x * HardSigmoid(x), and other values times such a gate, as of
// squeeze-and-excitation: most of the time of some networks goes into them.

/// Positions of nodes: of what makes the gate from what a convolution made; of the product with it; and of a sum of
/// that with one number, or kNone. What the first two make has no other readers.
struct Gate {
  int sigmoid, product;
  int sum = graph::kNone;
};
std::vector<Gate> find_gated_activations(const onnx::Model& model, const graph::Index& index);

/// Some of a model's gates, by the value that the first node makes.
using GateNames = std::set<std::string>;
GateNames all_gates(const onnx::Model& model, const graph::Index& index);

// What the preset `balanced` quantizes: products and convolutions, and what hands integers from one to the next.

/// Looks up rows of a constant: an embedding. There are no multiplications, but the table is often most of a model.
bool is_table(const onnx::Node& node, const graph::Index& index);

/// Keeps in float, of the selected nodes, all that is neither a product, nor a table, nor a carrier: data movement,
/// Relu, Clip, pooling, Concat, Resize and the sum of two branches, where what they read is quantized and what they
/// make is read by a product, or where they follow a convolution and fuse with it. Softmax, normalizations, gates and
/// arithmetic with constants are thus left alone: they have next to no multiplications, and 8 bits ruin them. Results
/// of matrix products that no product reads stay in float as well. The gates named are carriers as well.
FloatParts integer_chains(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& selected,
                          const GateNames& integer_gates = {});

/// Of the marked values that hold masks (graph/patterns.h), as far as the scores beside them were observed.
calibration::Ranges mask_ranges(const onnx::Model& model, const Placement& placement,
                                const calibration::Statistics& statistics);

/// Of `placement`, whose nodes and fused activations are known: what the flagged `nodes` (FloatParts::wide_nodes, which
/// may be empty) read and make. Where formats are given, also what operators without weights carry from them and to
/// them, as far as no product of 8 bits reads it.
std::set<std::string> wide_values(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& nodes,
                                  bool formats_given, const Placement& placement);

}  // namespace detent::quantization
