// The messages of ONNX (onnx.proto3) and of statistics files (docs/statistics.md) as far as a mutator has to know them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace detent::fuzz {

struct Kind {
  std::vector<std::pair<std::uint32_t, const Kind*>> messages = {};  // by field number
};

extern const Kind kModel, kGraph, kNode, kAttribute, kTensor, kSparseTensor, kFunction, kTraining, kStatistics;

}  // namespace detent::fuzz
