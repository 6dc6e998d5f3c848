// What OpenVINO makes of a node by its attributes and neighbours, which a table of single operators does not tell.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>

#include "checking/signature.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::checking {

struct KernelOverride {
  std::string_view kernel, rule, suggestion;
};

/// The kernel of a node that runs otherwise than its row says. Where shapes are static, OpenVINO compiles kernels for
/// element-wise operators, which read integers.
std::optional<KernelOverride> kernel_override(const onnx::Node& node, const onnx::Model& model,
                                              const graph::Index& index, const Signature& forms, bool static_shapes);

/// The node before this one whose kernel runs it along, or kNone:
/// - a product, of an element-wise operator that alone reads its result; of an Add, also its integers;
/// - an element-wise operator, of another that alone reads its result; behind a pair where shapes are static, or of
///   an Add of two activations;
/// - what only moves values, of what moves them too.
int node_fused_into(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, bool static_shapes);

// Products of few rows, one behind the other, of which OpenVINO makes one kernel (2026.4.1).

/// `floats`: the kernel is named one of floats, since it quantizes the first one's input itself. `wrong`: it reads what
/// it never wrote, since QuantizeLinear takes a product's zero point along where neither a bias nor an activation but
/// Relu stands between.
enum class ChainOutcome { integers, floats, wrong };

/// What becomes of the products that OpenVINO joins, by their positions.
std::unordered_map<int, ChainOutcome> outcome_of_chained_products(const onnx::Model& model, const graph::Index& index,
                                                                  const graph::ValueTypes& types);

}  // namespace detent::checking
