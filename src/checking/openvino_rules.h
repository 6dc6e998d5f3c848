// What OpenVINO makes of a node by its attributes and neighbours, which a table of single operators does not tell.
#pragma once

#include <optional>
#include <string_view>

#include "checking/forms.h"

namespace detent::checking {

struct Beyond {
  std::string_view kernel, rule, remedy;
};

/// The kernel of a node that runs otherwise than its row says.
std::optional<Beyond> beyond_table(const onnx::Node& node, const onnx::Model& model, const graph::Index& index,
                                   const Forms& forms);

/// The node that runs an Add, Relu, Clip or Sigmoid along: the product whose result it alone reads, in float or, an
/// Add, also as integers; or an Add that a product runs along; of what only moves values: the node before, if that
/// moves them too; kNone: there is none.
int runs_along_with(const onnx::Model& model, const graph::Index& index, const onnx::Node& node);

}  // namespace detent::checking
