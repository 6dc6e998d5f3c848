#include "run/model/spared_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "config/targets.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "onnx/bodies.h"
#include "quantization/formats.h"

namespace detent::run {
namespace {

struct Observed {
  bool any = false;   // values were looked for
  bool seen = false;  // and found
};

const onnx::Node& holder_of(const onnx::Model& model, int body) {
  for (const auto& node : model.graph.nodes) {
    for (const int held : node.bodies()) {
      if (held == body) return node;
    }
  }
  throw internal_error("a body belongs to no node");
}

void leave_in_float(Prepared& prepared, const std::vector<int>& body_of, std::size_t body) {
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    if (onnx::is_inside(prepared.model, body_of[n], static_cast<int>(body)))
      prepared.leave_in_float(prepared.model.graph.nodes[n].id(), InFloat::unseen);
  }
}

}  // namespace

std::vector<std::string> leave_scans_of_unknown_rank(Prepared& prepared) {
  const auto left = graph::state_scan_ranks(prepared.model, prepared.types);
  if (left.empty()) return {};
  std::vector<std::string> notes;
  const auto body_of = onnx::body_of_nodes(prepared.model);
  for (const int body : left) {
    leave_in_float(prepared, body_of, static_cast<std::size_t>(body));
    notes.push_back(fmt::format("{}: the rank of what its body gives is not known: the body stays in float",
                                holder_of(prepared.model, body).label()));
  }
  return notes;
}

std::vector<std::string> leave_unseen_bodies(Prepared& prepared, const quantization::Placement& placement,
                                             const quantization::ActivationRanges& ranges) {
  const auto& model = prepared.model;
  if (model.bodies.empty()) return {};
  const auto body_of = onnx::body_of_nodes(model);
  const graph::Index index(model);
  std::vector<Observed> bodies(model.bodies.size() + 1);
  for (const auto& value : placement.to_observe()) {
    const int producer = index.producer(value);
    if (producer == graph::kNone) continue;
    auto& body = bodies[static_cast<std::size_t>(body_of[static_cast<std::size_t>(producer)])];
    body.any = true;
    body.seen = body.seen || ranges.contains(value);
  }
  std::vector<std::string> notes;
  for (std::size_t b = 1; b < bodies.size(); ++b) {
    const int around = model.bodies[b - 1].around;
    if (around != 0 && bodies[static_cast<std::size_t>(around)].any && !bodies[static_cast<std::size_t>(around)].seen) {
      bodies[b] = bodies[static_cast<std::size_t>(around)];  // told with that
      continue;
    }
    if (!bodies[b].any || bodies[b].seen) continue;
    leave_in_float(prepared, body_of, b);
    std::size_t products = 0;
    for (std::size_t n = 0; n < body_of.size(); ++n) {
      if (!onnx::is_inside(model, body_of[n], static_cast<int>(b))) continue;
      if (placement.selected[n] && graph::is_product(model.graph.nodes[n])) ++products;
    }
    notes.push_back(fmt::format("{}: no sample reached its body '{}': {} in it left in float",
                                holder_of(model, static_cast<int>(b)).label(), model.bodies[b - 1].attribute,
                                count_with_noun(products, "layer")));
  }
  return notes;
}

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
      auto& choice = prepared.nodes[id];
      choice.wide = wide && choice.in_float != InFloat::unequal;
      if (!wide) prepared.leave_in_float(id, InFloat::unequal);
    }
    notes.push_back(
        fmt::format("{}: one scale for values to {:.3g} would leave '{}', whose values reach {:.3g}, {:.1f} "
                    "steps: it {}",
                    prepared.model.graph.nodes[n].label(), loss->of_joined, loss->value, loss->largest, loss->steps,
                    wide ? "has 16 bits" : "stays in float"));
  }
  return notes;
}

namespace {

using quantization::ActivationRange;
using quantization::ActivationRanges;

class Freeing {
 public:
  Freeing(Prepared& prepared, const quantization::Placement& placement, quantization::Proposals& proposals)
      : model_(prepared.model), index_(model_), placement_(placement), proposals_(proposals) {}

  std::vector<std::string> run(const QuantConfig& config) {
    std::vector<bool> removed(model_.graph.nodes.size());
    std::vector<std::string> notes;
    for (const auto& fixed : config::target(config).fixed_ranges) {
      if (fixed.type != config.activation_type) continue;
      const double step = quantization::compute_params(fixed.low, fixed.high, {fixed.type}).scale;
      for (std::size_t n = 0; n < removed.size(); ++n) {
        auto& node = model_.graph.nodes[n];
        if (!placement_.selected[n] || !node.is(fixed.op_type) || node.body() != 0) continue;
        auto note = node.is("Tanh") ? leave_out(node, step) : node.is("Sigmoid") ? exchange(node, step) : std::string();
        if (note.empty()) continue;
        removed[n] = node.is("Tanh");
        notes.push_back(std::move(note));
      }
    }
    graph::remove_nodes(model_, removed);
    return notes;
  }

 private:
  const ActivationRange* range_in(const ActivationRanges& ranges, const std::string& value) const {
    const auto* mark = placement_.find(value);
    const auto found = mark == nullptr ? ranges.end() : ranges.find(placement_.root_of(*mark).value);
    return found == ranges.end() ? nullptr : &found->second;
  }

  // What `of` makes of the input's range becomes that of the output, by each method.
  template <class Function>
  void set_ranges(const std::string& input, const std::string& output, const Function& of) {
    const auto set = [&](ActivationRanges& ranges) {
      if (const auto* range = range_in(ranges, input)) ranges[output] = of(*range);
    };
    set(proposals_.ranges);
    for (auto& [method, ranges] : proposals_.others) set(ranges);
    set(proposals_.wide);
  }

  std::string leave_out(const onnx::Node& node, double step) {
    const std::string in = node.inputs().front(), out = node.outputs().front(), label = node.label();
    const auto* range = range_in(proposals_.ranges, in);
    if (range == nullptr || index_.is_captured(in) || index_.is_captured(out)) return {};
    const double largest = std::max(std::abs(range->range.min), std::abs(range->range.max));
    if (largest == 0 || largest * largest * largest / 3 > step / 2) return {};
    const bool keeps_output = index_.is_output(out);
    if (keeps_output && (index_.is_output(in) || index_.producer(in) == graph::kNone)) return {};
    set_ranges(in, out, [](const ActivationRange& same) { return same; });
    rename(keeps_output ? in : out, keeps_output ? out : in);
    return fmt::format(
        "{}: left out, since its inputs are at most {:.3g}: the steps of {:.3g} that the target fixes for "
        "its results are coarser than what it changes",
        label, largest, step);
  }

  std::string exchange(onnx::Node& node, double step) {
    const std::string in = node.inputs().front(), out = node.outputs().front();
    const auto* range = range_in(proposals_.ranges, in);
    if (range == nullptr) return {};
    const double largest = 1 / (1 + std::exp(-static_cast<double>(range->range.max)));
    if (largest >= step / 2) return {};
    auto note = fmt::format(
        "{}: became Exp, since its results are at most {:.3g}: steps of {:.3g}, which the target "
        "fixes for them, would make all of them 0",
        node.label(), largest, step);
    set_ranges(in, out, [](const ActivationRange& of) {
      return ActivationRange{{0, std::exp(of.range.max)}, "operator"};
    });
    node.set_op_type("Exp");
    return note;
  }

  // In all that makes or reads it. What has no name is known by its first output.
  void rename(const std::string& from, const std::string& to) {
    for (auto& node : model_.graph.nodes) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (node.inputs()[i] == from) node.set_input(i, to);
      }
      for (std::size_t o = 0; o < node.outputs().size(); ++o) {
        if (node.outputs()[o] != from) continue;
        node.set_name(node.id());
        node.set_output(o, to);
      }
    }
  }

  onnx::Model& model_;
  graph::Index index_;
  const quantization::Placement& placement_;
  quantization::Proposals& proposals_;
};

}  // namespace

std::vector<std::string> free_small_results(Prepared& prepared, const quantization::Placement& placement,
                                            quantization::Proposals& proposals, const QuantConfig& config) {
  return Freeing(prepared, placement, proposals).run(config);
}

}  // namespace detent::run
