#include "quantization/placement/value_kinds.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "graph/constants.h"
#include "graph/operators.h"
#include "graph/patterns.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

const onnx::Node& node_at(const onnx::Model& model, int position) {
  return model.graph.nodes[static_cast<std::size_t>(position)];
}

bool is_of_convolution(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int maker = index.producer(value);
  return maker != graph::kNone && graph::has_trait(node_at(model, maker), graph::Trait::convolution);
}

// The sum of the value and one number that is all that reads the value, or kNone.
int sum_behind(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int sum = graph::only_reader(index, value);
  if (sum == graph::kNone || !node_at(model, sum).is("Add")) return graph::kNone;
  const auto step = graph::float32_constant_step(model, index, node_at(model, sum));
  return step && step->constant->count() == 1 ? sum : graph::kNone;
}

}  // namespace

std::vector<Gate> find_gated_activations(const onnx::Model& model, const graph::Index& index) {
  std::vector<Gate> gates;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!graph::is_on(node, graph::List::gates)) continue;
    const std::string &value = node.inputs().front(), &gate = node.outputs().front();
    const int product = graph::only_reader(index, gate);
    if (product == graph::kNone || !is_of_convolution(model, index, value)) continue;
    const auto& mul = node_at(model, product);
    const auto is_computed = [&](const auto& input) { return index.initializer(input) == graph::kNone; };
    if (mul.is("Mul") && std::all_of(mul.inputs().begin(), mul.inputs().end(), is_computed))
      gates.push_back({static_cast<int>(n), product, sum_behind(model, index, mul.outputs().front())});
  }
  return gates;
}

GateNames all_gates(const onnx::Model& model, const graph::Index& index) {
  GateNames names;
  for (const auto& gate : find_gated_activations(model, index))
    names.insert(node_at(model, gate.sigmoid).outputs().front());
  return names;
}

namespace {

using graph::is_product;
using graph::Trait;

class Chains {
 public:
  Chains(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& selected,
         const GateNames& integer_gates)
      : model_(model), index_(index), kept_(model.graph.nodes.size()), feeds_(kept_.size()), in_gate_(kept_.size()) {
    const auto& nodes = model.graph.nodes;
    if (!integer_gates.empty()) mark_gates(integer_gates);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const bool starts = is_product(nodes[n]) || is_table(nodes[n], index);
      const bool carries = in_gate_[n] || graph::has_trait(nodes[n], Trait::carries_integers);
      kept_[n] = selected[n] && (starts || (carries && reads_integers(n)));
    }
    for (std::size_t n = nodes.size(); n-- > 0;) {
      feeds_[n] = std::any_of(nodes[n].outputs().begin(), nodes[n].outputs().end(),
                              [&](const auto& value) { return feeds_product(value); });
      if (kept_[n] && !is_product(nodes[n]) && !is_table(nodes[n], index) && !feeds_[n] &&
          !fuses_with_convolution(nodes[n]))
        kept_[n] = false;
    }
  }

  FloatParts floats() const {
    FloatParts floats;
    floats.bypass = true;
    for (std::size_t n = 0; n < kept_.size(); ++n) {
      floats.nodes.push_back(!kept_[n]);
      const auto& node = model_.graph.nodes[n];
      // A matrix product makes integers only where it is asked to; convolutions have no kernel from integers to float.
      if (kept_[n] && graph::is_matrix_product(node) && !feeds_[n]) floats.values.insert(node.outputs().front());
    }
    return floats;
  }

 private:
  void mark_gates(const GateNames& names) {
    for (const auto& gate : find_gated_activations(model_, index_)) {
      if (!names.contains(model_.graph.nodes[static_cast<std::size_t>(gate.sigmoid)].outputs().front())) continue;
      for (const int node : {gate.sigmoid, gate.product, gate.sum}) {
        if (node != graph::kNone) in_gate_[static_cast<std::size_t>(node)] = true;
      }
    }
  }

  bool reads_integers(std::size_t n) const {
    const auto& node = model_.graph.nodes[n];
    const std::size_t count = in_gate_[n] || graph::has_trait(node, Trait::joins) ? node.inputs().size() : 1;
    return std::all_of(node.inputs().begin(), node.inputs().begin() + static_cast<std::ptrdiff_t>(count),
                       [&](const auto& value) {
                         if (in_gate_[n] && index_.initializer(value) != graph::kNone) return true;
                         const int producer = index_.producer(value);
                         return producer != graph::kNone && kept_[static_cast<std::size_t>(producer)];
                       });
  }

  bool feeds_product(const std::string& value) const {
    const auto readers = index_.consumers(value);
    return std::any_of(readers.begin(), readers.end(), [&](int reader) {
      const auto n = static_cast<std::size_t>(reader);
      return kept_[n] && (is_product(model_.graph.nodes[n]) || feeds_[n]);
    });
  }

  bool fuses_with_convolution(const onnx::Node& node) const {
    if (!graph::has_trait(node, Trait::clips)) return false;
    const auto& maker = model_.graph.nodes[static_cast<std::size_t>(index_.producer(node.inputs().front()))];
    return is_product(maker) && !graph::is_matrix_product(maker) && index_.consumers(node.inputs().front()).size() == 1;
  }

  const onnx::Model& model_;
  const graph::Index& index_;
  std::vector<bool> kept_;   // nodes that compute on integers
  std::vector<bool> feeds_;  // nodes whose results reach a product through such nodes
  std::vector<bool> in_gate_;
};

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
    if (graph::is_on(node, graph::List::scatters)) return {inputs[0], inputs[2]};
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

bool is_table(const onnx::Node& node, const graph::Index& index) {
  return graph::has_trait(node, Trait::looks_up) && index.initializer(node.inputs().front()) != graph::kNone;
}

FloatParts integer_chains(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& selected,
                          const GateNames& integer_gates) {
  return Chains(model, index, selected, integer_gates).floats();
}

calibration::Ranges mask_ranges(const onnx::Model& model, const Placement& placement,
                                const calibration::Statistics& statistics) {
  return Finder(model, placement, statistics).run();
}

namespace {

class WideValues {
 public:
  WideValues(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& nodes,
             const Placement& placement)
      : graph_(model.graph), index_(index), nodes_(nodes), placement_(placement) {
    for (const auto& activation : placement.fused) fused_[activation.input] = activation.output;
    for (const auto& mark : placement.marks)  // who shares comes after whom it shares with
      scales_[mark.value] = mark.shares ? scale_of(*mark.shares) : mark.value;
  }

  // Around the nodes alone.
  std::set<std::string> beside() {
    each_wide([&](const onnx::Node& node) {
      add(node.inputs());
      add(node.outputs());
    });
    return with_fused();
  }

  // Where formats are given: as far as operators carry them, but a product of 8 bits keeps what it reads so, whatever
  // makes it, and what it makes unless it is asked for 16.
  std::set<std::string> as_given() {
    find_narrow();
    each_wide([&](const onnx::Node& node) {
      add(node.inputs());
      add_unless_narrow(node.outputs());
    });
    std::size_t before = 0;
    do {
      before = wide_.size();
      for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
        const auto& node = graph_.nodes[n];
        if (!placement_.selected[n] || graph::is_product(node) || is_table(node, index_)) continue;
        if (any_wide(node.inputs())) add_unless_narrow(node.outputs());
        if (any_wide(node.outputs())) {
          std::vector<std::string> carried;
          std::copy_if(node.inputs().begin(), node.inputs().end(), std::back_inserter(carried),
                       [&](const auto& value) { return !is_made_narrow(value); });
          add_unless_narrow(carried);
        }
      }
    } while (wide_.size() != before);
    return with_fused();
  }

 private:
  template <typename F>
  void each_wide(const F& visit) const {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n] && placement_.selected[n]) visit(graph_.nodes[n]);
    }
  }

  void add(const std::vector<std::string>& values) { wide_.insert(values.begin(), values.end()); }

  void add_unless_narrow(const std::vector<std::string>& values) {
    for (const auto& value : values) {
      const auto activation = fused_.find(value);  // comes of it in the kernel that makes it
      const auto& made = activation == fused_.end() ? value : activation->second;
      if (!narrow_.contains(scale_of(made))) wide_.insert(value);
    }
  }

  bool any_wide(const std::vector<std::string>& values) const {
    return std::any_of(values.begin(), values.end(), [&](const auto& value) { return wide_.contains(value); });
  }

  bool keeps_8_bits(int node) const {
    const auto n = static_cast<std::size_t>(node);
    const bool has_weights = graph::is_product(graph_.nodes[n]) || is_table(graph_.nodes[n], index_);
    return has_weights && placement_.selected[n] && !nodes_[n];
  }

  // What products of 8 bits read, by whose scale it has.
  void find_narrow() {
    for (const auto& mark : placement_.marks) {
      const auto readers = index_.consumers(mark.value);
      if (std::any_of(readers.begin(), readers.end(), [&](int reader) { return keeps_8_bits(reader); }))
        narrow_.insert(scale_of(mark.value));
    }
  }

  const std::string& scale_of(const std::string& value) const {
    const auto found = scales_.find(value);
    return found == scales_.end() ? value : found->second;
  }

  bool is_made_narrow(const std::string& value) const {
    const int maker = index_.producer(value);
    return maker != graph::kNone && keeps_8_bits(maker);
  }

  std::set<std::string> with_fused() {
    for (const auto& activation : placement_.fused) {
      if (wide_.contains(activation.input)) wide_.insert(activation.output);
    }
    return std::move(wide_);
  }

  const onnx::Graph& graph_;
  const graph::Index& index_;
  const std::vector<bool>& nodes_;
  const Placement& placement_;
  std::map<std::string, std::string> fused_, scales_;
  std::set<std::string> wide_, narrow_;  // values, and scales
};

}  // namespace

std::set<std::string> wide_values(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& nodes,
                                  bool formats_given, const Placement& placement) {
  if (nodes.empty()) return {};
  WideValues values(model, index, nodes, placement);
  return formats_given ? values.as_given() : values.beside();
}

}  // namespace detent::quantization
