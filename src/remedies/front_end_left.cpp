#include "remedies/front_end_left.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "config/targets.h"
#include "graph/front_end.h"
#include "run/model/finish_integers.h"

namespace detent::remedies {
namespace {

constexpr double kNearDb = 30;       // of results that nothing is said about
constexpr double kWorthNaming = 10;  // decibels that the results would be nearer

}  // namespace

std::string front_end_left(const Draft& draft, Evaluator& evaluator, const graph::Index& index,
                           const Workload& workload) {
  const auto& options = evaluator.options();
  const bool all = config::target(options.config).all_operators;
  if (draft.result.sqnr_db >= kNearDb || (!all && options.accuracy.fallback == AccuracyFallback::float32)) return {};
  const auto& model = draft.prepared.model;
  const auto front = graph::front_end(model, index);
  std::vector<std::size_t> nodes;
  std::vector<std::string> names;
  for (const auto& candidate : workload.products) {
    if (!front.contains(candidate.node)) continue;
    nodes.push_back(candidate.node);
    names.push_back(model.graph.nodes[candidate.node].id());
  }
  if (nodes.empty()) return {};
  const auto without = run::place_qdq_pairs(draft.prepared, options.config, {AccuracyFallback::float32, nodes});
  const auto roundings = roundings_of(draft.assignment.values);
  Trial trial;
  for (const auto& [value, rounding] : roundings) {
    if (without.find(value) != nullptr) trial[value] = &rounding;
  }
  const double db = worst_sqnr_db(evaluator.judge(draft, draft.assignment.values, draft.assignment.placement, trial));
  if (db < draft.result.sqnr_db + kWorthNaming) return {};
  return fmt::format(
      "{} makes large what integers lose of small values: --exclude-nodes {} leaves what leads to it to the "
      "CPU, in float, for about {:.0f} dB",
      model.graph.nodes[*front.rbegin()].label(), fmt::join(names, ","), db);
}

}  // namespace detent::remedies
