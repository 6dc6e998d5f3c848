// Which element types hold integers.
#pragma once

#include "onnx/model.h"

namespace detent::onnx {

/// Integers of 8 bits or more, or bool.
inline bool holds_integers(DataType type) {
  switch (type) {
    case DataType::boolean:
    case DataType::int8:
    case DataType::uint8:
    case DataType::int16:
    case DataType::uint16:
    case DataType::int32:
    case DataType::uint32:
    case DataType::int64:
    case DataType::uint64: return true;
    default: return false;
  }
}

}  // namespace detent::onnx
