// Model-local functions as they are checked before anything else looks at them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx/model.h"

namespace detent::onnx {

struct Model;

/// The domain of the operators that detent adds when it runs a model; a model that is read may have none of them.
inline constexpr const char* kPrivateDomain = "detent.exec";

/// More nodes than any real model has, once every call is replaced by the function's nodes.
inline constexpr std::uint64_t kMaxExpandedNodes = 1'000'000;

/// Throws bad_input for an operator in kPrivateDomain, in the graph, a body or a function; for a function that calls
/// itself, by whatever way, or others more than 100 deep; for calls that come to more than kMaxExpandedNodes nodes in
/// all; and for functions in the domains of the runtime's own operators or of detent's, whose place they would take:
/// both rely on what those operators take.
/// Gives back how many nodes the model has once every call is replaced by the function's nodes.
std::uint64_t check_functions(const Model& model, const std::string& where);

/// The field of a ModelProto that holds one.
inline constexpr std::uint32_t kFunctionField = 25;

struct LocalFunction {
  std::string domain, name;
  std::string overload;  // tells functions of one name apart; mostly empty
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> defaults;  // of attributes that a call may leave out
  std::vector<OpsetImport> opsets;
  std::vector<Node> nodes;
};
std::vector<LocalFunction> read_functions(const Model& model);

/// The attribute of the call whose value an attribute of a function's node has; "" for those with values of their own.
std::string reference_of(const Attribute& attribute);
/// The same value under another name.
Attribute renamed(const Attribute& attribute, const std::string& name);

// Which values a node may read, checked before anything else looks at names.

/// In a model with bodies or functions, a node reads values of its own graph and of those around it; a function sees
/// nothing around it, and an output of a body or function is named in the same way. Throws bad_input that names node
/// and value where that does not hold: for a value of another body or of one inside, for one that is defined nowhere or
/// twice in one graph, for values that come from themselves, and for one that is read before its own graph defines it
/// where a graph around defines the name as well; and where one body of a node has a constant of the name of a value
/// around it that another one reads, which ONNX Runtime takes for the constant, too. Otherwise a body may use a name
/// again that a graph around it has, and the sequence of nodes is free.
void check_scope(const Model& model, const std::string& where);

}  // namespace detent::onnx
