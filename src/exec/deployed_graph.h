// What the runtime makes of a model's nodes when it loads the model as a user's program does.
#pragma once

#include <string>
#include <vector>

#include "exec/session.h"
#include "onnx/model.h"

namespace detent::exec {

/// For each node of the main graph the type of the operator that the runtime, with all its optimizations, runs in its
/// place on the CPU: MatMulNBits for a MatMul whose weight comes from a DequantizeLinear that it fuses, say. Empty
/// where the node has become part of another one or is gone. The runtime's graph is written to a temporary folder, as
/// large as the model, and read back; nothing is run. Throws bad_input when the runtime cannot load the model or write
/// it.
std::vector<std::string> deployed_op_types(const Runtime& runtime, const onnx::Model& model);

}  // namespace detent::exec
