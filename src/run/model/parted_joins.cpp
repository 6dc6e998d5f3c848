#include "run/model/parted_joins.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "config/derived.h"
#include "graph/index.h"
#include "graph/moved_values.h"
#include "quantization/formats.h"

namespace detent::run {
namespace {

using onnx::Node;

constexpr double kFewSteps = 16;  // of the joint scale, for the largest value of one input

// What the output of a Concat would do to the smallest of its inputs.
struct Loss {
  std::string value;     // that input
  double largest = 0;    // of its values
  double of_joined = 0;  // of all values
  double steps = 0;      // that the largest has on the joint scale
};

class Parting {
 public:
  Parting(const Prepared& prepared, const quantization::Placement& placement, const calibration::Statistics& statistics,
          const quantization::Proposals& proposals, const QuantConfig& config)
      : model_(prepared.model),
        index_(model_),
        placement_(placement),
        statistics_(statistics),
        proposals_(proposals),
        config_(config) {
    for (const auto& mark : placement.marks) marks_.emplace(mark.value, &mark);
  }

  std::optional<Loss> loss_at(std::size_t n) const {
    const Node& node = model_.graph.nodes[n];
    if (!node.is("Concat") || !placement_.selected[n]) return std::nullopt;
    const auto* mark = root_of(node.outputs().front());
    if (mark == nullptr || mark->wide) return std::nullopt;
    const auto range = proposals_.ranges.find(mark->value);
    if (range == proposals_.ranges.end()) return std::nullopt;
    const double scale = quantization::assign_activation(*mark, range->second, config_).slices.front().scale;
    std::optional<Loss> worst;
    for (const auto& input : node.inputs()) {
      const auto largest = largest_of(input, mark->value);
      if (!largest || *largest == 0 || *largest / scale >= kFewSteps) continue;
      if (worst && worst->steps <= *largest / scale) continue;
      const double of_joined = std::max(std::abs(range->second.range.min), std::abs(range->second.range.max));
      worst = Loss{input, *largest, of_joined, *largest / scale};
    }
    return worst;
  }

  // Nodes that move what a Concat makes, with itself, where that leaves the graph or is taken apart again.
  std::set<std::size_t> moved_from(std::size_t concat) const {
    auto moved = graph::moved_from(model_, index_, model_.graph.nodes[concat].outputs().front());
    if (!moved.parts) return {};
    moved.nodes.insert(concat);
    return std::move(moved.nodes);
  }

 private:
  const quantization::Mark* mark_of(const std::string& value) const {
    const auto found = marks_.find(value);
    return found == marks_.end() ? nullptr : found->second;
  }

  const quantization::Mark* root_of(const std::string& value) const {
    const auto* mark = mark_of(value);
    while (mark != nullptr && mark->shares) {
      const auto* next = mark_of(*mark->shares);
      if (next == nullptr) break;
      mark = next;
    }
    return mark;
  }

  // Of the values of an input that is no constant: its own statistics, or those of what it only moves.
  std::optional<double> largest_of(const std::string& input, const std::string& joined) const {
    if (index_.initializer(input) != graph::kNone) return std::nullopt;
    std::string value = input;
    while (value != joined) {
      for (const auto& source : {value, placement_.source_of(value)}) {
        const auto found = statistics_.tensors.find(source);
        if (found == statistics_.tensors.end()) continue;
        const auto& summary = found->second;
        if (!summary.has_values()) return std::nullopt;
        return std::max(std::abs(static_cast<double>(summary.extremes.lowest())),
                        std::abs(static_cast<double>(summary.extremes.highest())));
      }
      const auto* mark = mark_of(value);
      if (mark == nullptr) return std::nullopt;
      if (const auto fixed = placement_.fixed_ranges.find(value); fixed != placement_.fixed_ranges.end())
        return std::max(std::abs(fixed->second.min), std::abs(fixed->second.max));
      if (!mark->shares) return std::nullopt;
      value = *mark->shares;
    }
    return std::nullopt;
  }

  const onnx::Model& model_;
  graph::Index index_;
  const quantization::Placement& placement_;
  const calibration::Statistics& statistics_;
  const quantization::Proposals& proposals_;
  const QuantConfig& config_;
  std::unordered_map<std::string, const quantization::Mark*> marks_;
};

}  // namespace

std::vector<std::string> widen_unequal_concats(Prepared& prepared, const quantization::Placement& placement,
                                               const calibration::Statistics& statistics,
                                               const quantization::Proposals& proposals,
                                               const QuantizeOptions& options) {
  constexpr double kStepsOfStep = 257;  // 65535 / 255
  const auto& config = options.config;
  if (is_float(config.activation_type)) return {};
  const Parting parting(prepared, placement, statistics, proposals, config);
  const bool has_wide = !proposals.wide.empty();
  std::vector<std::string> notes;
  for (std::size_t n = 0; n < prepared.model.graph.nodes.size(); ++n) {
    const auto loss = parting.loss_at(n);
    if (!loss) continue;
    const auto nodes = parting.moved_from(n);
    if (nodes.empty()) continue;
    const bool wide = has_wide && loss->steps * kStepsOfStep >= kFewSteps;
    for (const auto node : nodes) {
      const auto id = prepared.model.graph.nodes[node].id();
      if (!wide) prepared.parted_wide.erase(id);
      if (wide && !prepared.parted.contains(id)) prepared.parted_wide.insert(id);
      if (!wide) prepared.parted.insert(id);
    }
    notes.push_back(
        fmt::format("{}: one scale for values to {:.3g} would leave '{}', whose values reach {:.3g}, {:.1f} "
                    "steps: it {}",
                    prepared.model.graph.nodes[n].label(), loss->of_joined, loss->value, loss->largest, loss->steps,
                    wide ? "has 16 bits" : "stays in float"));
  }
  return notes;
}

}  // namespace detent::run
