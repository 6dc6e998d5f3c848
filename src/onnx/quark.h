// The operators of AMD Quark's library that models with block floats have.
#pragma once

namespace detent::onnx {

inline constexpr const char* kQuarkDomain = "com.amd.quark";

}  // namespace detent::onnx
