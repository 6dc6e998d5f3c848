// What a written file asks of the runtimes that load it, beyond what every supported version has.
#pragma once

#include <string>
#include <vector>

#include "onnx/model.h"

namespace detent::run {

/// The oldest version of ONNX Runtime that is known to load such operators, with their names; empty where that is the
/// oldest supported one. A note for users.
std::string needed_runtime(const onnx::Model& model);

/// What versions that know all operators must be told, a sentence each.
std::vector<std::string> loading_conditions(const onnx::Model& model);

}  // namespace detent::run
