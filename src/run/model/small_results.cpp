#include "run/model/small_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "config/targets.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "quantization/formats.h"

namespace detent::run {
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
