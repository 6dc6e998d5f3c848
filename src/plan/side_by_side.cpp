#include "plan/side_by_side.h"

#include <algorithm>

#include "plan/parts.h"
#include "plan/segment_cost.h"

namespace detent::planning {

std::optional<std::vector<std::uint64_t>> memory_side_by_side(std::span<const Course> courses) {
  const std::size_t stages = courses.empty() ? 0 : courses.front().ends.size();
  std::vector<std::uint64_t> memory(stages, kProcess), on_their_way(stages);
  for (const auto& course : courses) {
    const graph::Index index(course.model);
    auto walk = SegmentWalk::make(course.model, index, course.types, {}, {.histograms = false});
    if (!walk) return std::nullopt;
    int node = 0;
    for (std::size_t i = 0; i < stages; ++i) {
      if (node >= course.ends[i]) continue;
      walk->begin(node);
      SegmentCost cost;
      for (; node < course.ends[i]; ++node) cost = walk->step();
      memory[i] += cost.memory() - kProcess;
      on_their_way[i] += cost.read_bytes + cost.write_bytes;
    }
  }
  // Buffers are kept from one stage to the next.
  const std::uint64_t most = stages == 0 ? 0 : *std::max_element(on_their_way.begin(), on_their_way.end());
  for (auto& bytes : memory) bytes += spool_buffers(most);
  return memory;
}

}  // namespace detent::planning
