// Products that a model makes features of before anything learned: a Fourier transform and filters over its powers, in
// front of a logarithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// What ends a front end.
enum class FrontEnds : std::uint8_t {
  all,         ///< logarithms, divisions, powers other than roots, normalizations
  logarithms,  ///< logarithms and powers: no model that learns from its first layer on has them
};

/// The nodes, by position, up to a logarithm, a division or a power that makes small values large, if there are
/// products among them. Before it are sums, products of values, powers, and what moves values, but no function that a
/// network learns with. Nodes must be in topological order.
std::set<std::size_t> front_end(const onnx::Model& model, const Index& index, FrontEnds which = FrontEnds::all);

}  // namespace detent::graph
