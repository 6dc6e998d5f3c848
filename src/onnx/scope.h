// Which values a node may read, checked before anything else looks at names.
#pragma once

#include <string>

namespace detent::onnx {

struct Model;

/// In a model with bodies or functions, a node reads values of its own graph and of those around it; a function sees
/// nothing around it, and an output of a body or function is named in the same way. Throws bad_input that names node
/// and value where that does not hold: for a value of another body or of one inside, for one that is defined nowhere or
/// twice in one graph, for values that come from themselves, and for one that is read before its own graph defines it
/// where a graph around defines the name as well; and where one body of a node has a constant of the name of a value
/// around it that another one reads, which ONNX Runtime takes for the constant, too. Otherwise a body may use a name
/// again that a graph around it has, and the sequence of nodes is free.
void check_scope(const Model& model, const std::string& where);

}  // namespace detent::onnx
