// The elements of a float32 array.
#pragma once

#include <span>

#include "data/sample.h"

namespace detent::data {

inline std::span<const float> floats(const Array& array) {
  return {reinterpret_cast<const float*>(array.bytes.data()), array.bytes.size() / sizeof(float)};
}

}  // namespace detent::data
