// The functions that a model brings along, parsed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx/model.h"

namespace detent::onnx {

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

}  // namespace detent::onnx
