// What a model takes whose forms, float and quantized, go through a sweep side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/values.h"
#include "onnx/model.h"

namespace detent::planning {

/// The nodes [begin, end) that a stage runs.
struct StageNodes {
  int begin = 0;
  int end = 0;
};
using StagesOfForm = std::vector<StageNodes>;

struct SideBySide {
  std::vector<std::uint64_t> stages;  // bytes resident in each, with the spool's buffers
  std::uint64_t buffers = 0;          // of the spool, in all stages
};

/// Bytes resident while all forms, of as many stages each, are in stage i and take single samples through it: the
/// process, the stages, and what is on its way from one to another. Each form takes what the model would. nullopt when
/// a shape is not static.
std::optional<SideBySide> memory_side_by_side(const onnx::Model& model, const graph::ValueTypes& types,
                                              std::span<const StagesOfForm> forms);

}  // namespace detent::planning
