// What a target's row says of scales and attributes, checked node by node in a quantized model.
#pragma once

#include <string>

#include "checking/signature.h"
#include "config/targets.h"

namespace detent::checking {

struct Violation {
  std::string rule, suggestion;  // empty: there is none
};

/// The first rule of the target that the node breaks. Rules: scales are powers of two, a fixed range for the results of
/// an operator, one scale for all that an operator joins, convolutions with all their attributes.
Violation violation(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, const Signature& forms,
                    const config::Target& target);

}  // namespace detent::checking
