#include "planning/side_by_side.h"

#include <algorithm>

#include "planning/parts.h"
#include "planning/segment_cost.h"

namespace detent::planning {

std::optional<SideBySide> memory_side_by_side(const onnx::Model& model, const graph::ValueTypes& types,
                                              std::span<const StagesOfForm> forms) {
  const graph::Index index(model);
  auto walk = SegmentWalk::make(model, index, types, {}, {.histograms = false});
  if (!walk) return std::nullopt;
  const std::size_t stages = forms.empty() ? 0 : forms.front().size();
  SideBySide memory{std::vector<std::uint64_t>(stages, kProcess)};
  std::vector<std::uint64_t> on_their_way(stages);
  for (const auto& form : forms) {
    for (std::size_t i = 0; i < stages; ++i) {
      if (form[i].begin >= form[i].end) continue;
      walk->begin(form[i].begin);
      SegmentCost cost;
      for (int node = form[i].begin; node < form[i].end; ++node) cost = walk->step();
      memory.stages[i] += cost.memory() - kProcess;
      on_their_way[i] += cost.read_bytes + cost.write_bytes;
    }
  }
  // Buffers are kept from one stage to the next.
  const std::uint64_t most = stages == 0 ? 0 : *std::max_element(on_their_way.begin(), on_their_way.end());
  memory.buffers = spool_buffers(most);
  for (auto& bytes : memory.stages) bytes += memory.buffers;
  return memory;
}

}  // namespace detent::planning
