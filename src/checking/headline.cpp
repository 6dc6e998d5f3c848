#include "checking/headline.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace detent::checking {

std::string headline(const CheckResult& r) {
  auto text = fmt::format("{}: {} accepted, {} fall back, {} refused", r.target, count_with_noun(r.accepted, "node"),
                          r.falls_back, r.refused);
  const auto leave = std::count_if(r.nodes.begin(), r.nodes.end(), [](const auto& node) { return node.on_cpu; });
  text += leave > 0 ? fmt::format("; {} left to the CPU, ", leave) : "; ";
  text += count_with_noun(r.partitions, "part") + " of the graph";
  if (r.macs && *r.macs > 0)
    text +=
        fmt::format("; {:.1f} % of {} multiplications in integers",
                    100 * static_cast<double>(*r.integer_macs) / static_cast<double>(*r.macs), format_count(*r.macs));
  return text;
}

}  // namespace detent::checking
