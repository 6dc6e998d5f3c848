// How the tap is named in graphs that the runtime gets.
#pragma once

#include "onnx/functions.h"

namespace detent::exec {

/// Domain and operator name; the operator's one attribute is `index`.
inline constexpr const char* kTapDomain = onnx::kPrivateDomain;
inline constexpr const char* kTapOperator = "Tap";

}  // namespace detent::exec
