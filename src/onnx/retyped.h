// A value's declaration with another type and shape.
#pragma once

#include <optional>
#include <vector>

#include "onnx/model.h"

namespace detent::onnx {

/// What else it says (doc_string, denotations, metadata) is kept.
ValueInfo retyped(const ValueInfo& info, DataType type, std::optional<std::vector<Dim>> shape);

}  // namespace detent::onnx
