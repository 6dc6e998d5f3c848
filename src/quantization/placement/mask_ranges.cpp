#include "quantization/placement/mask_ranges.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/masks.h"

namespace detent::quantization {
namespace {

using calibration::Range;

constexpr float kLow = -1000;  // what reaches down to here holds a mask, if there is nothing of the kind above it
// So far below the lowest score the integers end: exp(-10) = 0.00005.
constexpr float kBelow = 10;

// Scores without what masks them. `masked`: there were masks. Nothing but masks: min > max.
struct Scores {
  Range range{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()};
  bool masked = false;
  bool empty() const { return range.min > range.max; }
};

class Finder {
 public:
  Finder(const onnx::Model& model, const Placement& placement, const calibration::Statistics& statistics)
      : model_(model), index_(model), statistics_(statistics), placement_(placement) {
    for (const auto& mark : placement.marks) marks_.emplace(mark.value, &mark);
  }

  calibration::Ranges run() {
    const auto order = graph::attention_scores(model_, index_);
    for (auto value = order.rbegin(); value != order.rend(); ++value) scores_[*value] = scores_of(*value);
    for (const auto& value : order) limit(value);
    calibration::Ranges ranges;
    for (const auto& value : order) {
      const auto& found = scores_.at(value);
      const auto low = lows_.find(value);
      if (!found || !found->masked || low == lows_.end()) continue;
      const float high = found->empty() ? 0 : found->range.max;
      ranges[value] = {low->second, std::max(high, low->second)};
    }
    return ranges;
  }

 private:
  const onnx::Node* maker_of(const std::string& value) const {
    const int producer = index_.producer(value);
    return producer == graph::kNone ? nullptr : &model_.graph.nodes[static_cast<std::size_t>(producer)];
  }

  // All values: of a constant, as observed, or of what it shares its scale with.
  std::optional<Range> observed(std::string value) const {
    if (const auto* tensor = graph::any_float_constant(model_, index_, value)) {
      const auto values = onnx::to_doubles(*tensor);
      if (values.empty()) return std::nullopt;
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      return Range{static_cast<float>(*low), static_cast<float>(*high)};
    }
    if (const auto* node = maker_of(value)) {
      if (const auto number = graph::constant_of_shape_value(model_, *node))
        return Range{static_cast<float>(*number), static_cast<float>(*number)};
    }
    while (true) {
      for (const auto& source : {value, placement_.source_of(value)}) {
        const auto found = statistics_.tensors.find(source);
        if (found == statistics_.tensors.end() || !found->second.has_values()) continue;
        return Range{found->second.extremes.lowest(), found->second.extremes.highest()};
      }
      const auto mark = marks_.find(value);
      if (mark == marks_.end() || !mark->second->shares) return std::nullopt;
      value = *mark->second->shares;
    }
  }

  std::optional<Scores> known(const std::string& value) {
    const auto found = scores_.find(value);
    return found != scores_.end() ? found->second : plain(value);
  }

  // Of a value that the graph tells nothing of.
  std::optional<Scores> plain(const std::string& value) const {
    const auto all = observed(value);
    if (!all) return std::nullopt;
    const bool is_mask = all->min <= kLow && all->max > all->min / 16;
    if (!is_mask && all->max > kLow) return Scores{*all, false};
    Scores scores;
    scores.masked = true;
    if (is_mask) scores.range = {std::min(all->max, 0.0F), all->max};
    return scores;
  }

  // Of a value whose parts were not observed: its own values above masks, where they were counted. Else scores are
  // taken to reach twice as far down as up.
  std::optional<Scores> above_masks(const std::string& value) const {
    const auto found = statistics_.tensors.find(placement_.source_of(value));
    if (found == statistics_.tensors.end() || !found->second.has_values()) return std::nullopt;
    const float high = found->second.extremes.highest();
    if (high <= kLow) return Scores{.masked = true};
    for (const auto& bin : found->second.histogram.bins()) {
      if (bin.low > kLow) return Scores{{bin.low, high}, true};
    }
    return Scores{{-2 * std::abs(high), high}, true};
  }

  std::optional<Scores> scores_of(const std::string& value) {
    const auto all = observed(value);
    const auto* node = maker_of(value);
    if (node == nullptr || (all && all->min > kLow)) return plain(value);
    if (const auto chosen = choices(*node); !chosen.empty()) {
      auto found = known(chosen.front());
      for (std::size_t i = 1; i < chosen.size(); ++i) found = either(found, known(chosen[i]));
      if (!found) return node->is("Where") ? above_masks(value) : plain(value);
      return node->is("Trilu") ? either(found, Scores{{0, 0}, false}) : found;
    }
    if (node->is("Add")) return sum(known(node->inputs()[0]), known(node->inputs()[1]));
    if (const auto step = graph::any_float_constant_step(model_, index_, *node); step && step->multiplies) {
      auto scaled = known(step->value);
      const auto values = step->values();
      const bool is_part = scores_.contains(step->value) && values.size() == 1 && values.front() > 0;
      if (!is_part || !scaled) return plain(value);
      if (!scaled->empty()) {
        scaled->range.min *= static_cast<float>(values.front());
        scaled->range.max *= static_cast<float>(values.front());
      }
      return scaled;
    }
    return plain(value);
  }

  // What each value that the node makes is one of.
  std::vector<std::string> choices(const onnx::Node& node) const {
    const auto& inputs = node.inputs();
    if (node.is("Where")) return {inputs[1], inputs[2]};
    if (node.is("ScatterND") || node.is("ScatterElements")) return {inputs[0], inputs[2]};
    if (node.is("Concat")) return inputs;
    const bool computes = node.is("Add") || node.is("Mul") || node.is("Div") || node.is("Sub") || node.is("Max");
    if (computes || inputs.empty() || !scores_.contains(inputs[0])) return {};
    return {inputs[0]};
  }

  static std::optional<Scores> either(const std::optional<Scores>& a, const std::optional<Scores>& b) {
    if (!a || !b) return std::nullopt;
    return Scores{{std::min(a->range.min, b->range.min), std::max(a->range.max, b->range.max)}, a->masked || b->masked};
  }

  static std::optional<Scores> sum(const std::optional<Scores>& a, const std::optional<Scores>& b) {
    if (!a || !b) return std::nullopt;
    if (a->empty() || b->empty()) return Scores{{}, true};
    return Scores{{a->range.min + b->range.min, a->range.max + b->range.max}, a->masked || b->masked};
  }

  // How low the integers of a value have to go, and what that asks of those that it is made of.
  void limit(const std::string& value) {
    const auto& own = scores_.at(value);
    if (!own || !own->masked) return;
    const auto wanted = lows_.find(value);
    const bool is_known = wanted != lows_.end();
    if (own->empty() && !is_known) return;
    const float low =
        own->empty() ? wanted->second : std::min(is_known ? wanted->second : own->range.min, own->range.min - kBelow);
    lows_[value] = low;
    const auto* node = maker_of(value);
    if (node == nullptr) return;
    if (node->is("Add")) {
      for (std::size_t i = 0; i < 2; ++i) {
        const auto other = known(node->inputs()[1 - i]);
        if (other && !other->empty()) ask(node->inputs()[i], low - other->range.max);
      }
    } else if (const auto step = graph::any_float_constant_step(model_, index_, *node); step && step->multiplies) {
      const auto values = step->values();
      if (values.size() == 1 && values.front() > 0) ask(step->value, low / static_cast<float>(values.front()));
    } else {
      for (const auto& chosen : choices(*node)) ask(chosen, low);
    }
  }

  void ask(const std::string& value, float low) {
    const auto [found, added] = lows_.try_emplace(value, low);
    if (!added) found->second = std::min(found->second, low);
  }

  const onnx::Model& model_;
  graph::Index index_;
  const calibration::Statistics& statistics_;
  const Placement& placement_;
  std::unordered_map<std::string, const Mark*> marks_;
  std::unordered_map<std::string, std::optional<Scores>> scores_;
  std::map<std::string, float> lows_;
};

}  // namespace

calibration::Ranges mask_ranges(const onnx::Model& model, const Placement& placement,
                                const calibration::Statistics& statistics) {
  return Finder(model, placement, statistics).run();
}

}  // namespace detent::quantization
