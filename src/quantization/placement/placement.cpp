#include "quantization/placement/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/presets.h"
#include "config/targets.h"
#include "graph/decisions.h"
#include "graph/operators.h"
#include "graph/traits.h"
#include "quantization/emit/dynamic.h"
#include "quantization/placement/rules.h"
#include "quantization/placement/selection.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/weight_operators.h"

namespace detent::quantization {
namespace {

void refuse_quantized(const onnx::Model& model) {
  std::size_t count = 0;
  const onnx::Node* first = nullptr;
  for (const auto& node : model.graph.nodes) {
    if (!graph::has_trait(node, graph::Trait::quantized)) continue;
    if (first == nullptr) first = &node;
    ++count;
  }
  if (first == nullptr) return;
  throw bad_input(fmt::format("model '{}' is quantized already: {} such nodes, the first is {}", model.path.string(),
                              count, first->label()),
                  "give the float model");
}

std::string op_types_of(const onnx::Model& model) {
  std::set<std::string> types;
  for (const auto& node : model.graph.nodes) types.insert(node.op_type());
  return fmt::format("{}", fmt::join(types, ", "));
}

std::string nothing_hint(const onnx::Model& model, const graph::ValueTypes& types) {
  const auto has = [&](onnx::DataType type) {
    return std::any_of(types.begin(), types.end(), [&](const auto& t) { return t.second.type == type; });
  };
  if (has(onnx::DataType::float16)) return "it computes in float16: give --float 32, or the float32 model";
  if (has(onnx::DataType::float64) && !has(onnx::DataType::float32))
    return "it computes in float64: export it in float32";
  return fmt::format("its operator types are {}; select with --op-types or --nodes", op_types_of(model));
}

// Takes out the values, and what would share their scale.
void drop(std::set<std::string> values, std::vector<Mark>& marks) {
  std::size_t before = 0;
  do {
    before = marks.size();
    std::erase_if(marks, [&](const Mark& mark) {
      const bool gone = values.contains(mark.value) || (mark.shares && values.contains(*mark.shares));
      if (gone) values.insert(mark.value);
      return gone;
    });
  } while (marks.size() != before);
}

// What makes shapes, positions and indices has to be exact, and is no work. Nodes that were named are another matter.
void leave_index_arithmetic(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                            const QuantConfig& config, std::vector<bool>& selected) {
  if (!config.nodes.empty()) return;
  const auto arithmetic = graph::index_arithmetic(model, index, types);
  for (std::size_t n = 0; n < selected.size(); ++n)
    selected[n] = selected[n] && !arithmetic.from_shapes[n] && !arithmetic.into_indices[n];
}

// The model gives their weight out as it is, so that it stays, and integers for what they read would be of no use.
std::vector<std::string> leave_weights_given_out(const onnx::Model& model, const graph::Index& index,
                                                 std::vector<bool>& selected) {
  const auto depends = graph::depends_on_input(model, index);
  const auto is_constant = [&](int producer) {
    return producer == graph::kNone || !depends[static_cast<std::size_t>(producer)];
  };
  LeftInFloat left;
  for (std::size_t n = 0; n < selected.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!selected[n] || !graph::is_product(node) || node.inputs().size() <= graph::kWeightInput) continue;
    const auto& weight = node.inputs()[graph::kWeightInput];
    if (!index.is_output(weight) || !is_constant(index.producer(weight))) continue;
    selected[n] = false;
    left.add(node, "its weight is an output of the model");
  }
  return left.notes();
}

// Nothing is to be won, and no sample shows a range, where a product's weight or what a node reads or makes has no
// elements.
std::vector<std::string> leave_what_is_empty(const onnx::Model& model, const graph::Index& index,
                                             const graph::ValueTypes& types, std::vector<bool>& selected) {
  const auto is_empty = [&](const std::string& value) {
    const auto type = types.find(value);
    if (type == types.end() || !type->second.shape) return false;
    const auto& shape = *type->second.shape;
    return std::any_of(shape.begin(), shape.end(), [](const auto& dim) { return dim.value == 0; });
  };
  LeftInFloat left;
  for (std::size_t n = 0; n < selected.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!selected[n]) continue;
    const auto& inputs = node.inputs();
    if (graph::is_product(node) && reads_empty_weight(model, index, node)) {
      left.add(node, "its weight has no elements");
    } else if ((!inputs.empty() && is_empty(inputs[0])) || is_empty(node.outputs()[0])) {
      left.add(node, "what it reads or makes has no elements");
    } else {
      continue;
    }
    selected[n] = false;
  }
  return left.notes();
}

// Where the file would be larger than the float model's.
std::vector<std::string> leave_weights_that_stay(const onnx::Model& model, const graph::Index& index,
                                                 const QuantConfig& config, const TransposedConstants& transposed,
                                                 std::vector<bool>& selected) {
  LeftInFloat left;
  if (config.block_float != BlockFloat::none) return {};  // all weights stay
  const auto of_user = select_static_nodes(model, config);
  const auto others = config::target(config).is_ort_cpu ? OtherReaders::rounded_with_transposes : OtherReaders::rounded;
  for (const auto n : enlarging_nodes(model, index, config.weight_type, transposed, of_user, others)) {
    if (selected[n]) left.add(model.graph.nodes[n], std::string(kBesideFloat));
    selected[n] = false;
  }
  return left.notes();
}

void mark_bypassed(const graph::Index& index, Placement& placement) {
  const auto selected = [&](int node) { return placement.selected[static_cast<std::size_t>(node)]; };
  for (auto& mark : placement.marks) {
    const int producer = index.producer(mark.value);
    if (!mark.is_constant) mark.float_readers_unrounded = producer == graph::kNone || !selected(producer);
  }
}

// Flags what the names say, and all that has a scale with one of these. Weights have their own form.
void flag(std::set<std::string> names, bool Mark::*which, std::vector<Mark>& marks) {
  std::size_t before = 0;
  do {
    before = names.size();
    for (auto& mark : marks) {
      if (mark.is_weight) continue;
      mark.*which = names.contains(mark.value) || (mark.shares && names.contains(*mark.shares));
      if (!(mark.*which)) continue;
      names.insert(mark.value);
      if (mark.shares) names.insert(*mark.shares);
    }
  } while (names.size() != before);
}

// Values whose range begins at 0 whatever the model reads, by their operator or that of what they share a scale with.
std::set<std::string> values_from_zero(const Placement& placement) {
  std::set<std::string> values;
  for (const auto& [value, range] : placement.fixed_ranges) {
    if (range.min == 0) values.insert(value);
  }
  for (const auto& mark : placement.marks) {  // who shares comes after whom it shares with
    if (mark.shares && values.contains(*mark.shares)) values.insert(mark.value);
  }
  return values;
}

std::map<std::string, float> least_spans(const onnx::Model& model, const config::Target& target) {
  std::map<std::string, float> spans;
  for (const auto& [op_type, span] : target.least_spans) {
    for (const auto& node : model.graph.nodes) {
      if (node.is(op_type)) spans[node.outputs().front()] = span;
    }
  }
  return spans;
}

// The operands of products of two activations.
void mark_centred(const onnx::Model& model, const graph::Index& index, const QuantConfig& config,
                  Placement& placement) {
  const bool has_zero = config.activation_type == QuantType::uint8 && !config.activation_symmetric;
  const auto from_zero = has_zero ? values_from_zero(placement) : std::set<std::string>();
  std::set<std::string> centred, second;
  for (std::size_t n = 0; n < placement.selected.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!placement.selected[n] || !node.is("MatMul") || node.inputs().size() <= graph::kWeightInput) continue;
    if (index.initializer(node.inputs()[graph::kWeightInput]) != graph::kNone) continue;
    if (!from_zero.contains(node.inputs().front())) centred.insert(node.inputs().front());
    second.insert(node.inputs()[graph::kWeightInput]);
  }
  centred.insert(second.begin(), second.end());
  flag(std::move(centred), &Mark::centred, placement.marks);
  if (config.weight_range != WeightRange::full) flag(std::move(second), &Mark::narrow, placement.marks);
  std::set<std::string> signs;
  for (const auto& mark : placement.marks) {
    if (mark.centred) signs.insert(mark.value);
  }
  // With a sign, integers do not saturate at the 0 of a Relu.
  for (auto& fused : placement.fused) fused.removable = fused.removable && !signs.contains(fused.output);
}

}  // namespace

std::vector<std::string> Placement::to_observe() const {
  std::vector<std::string> values;
  std::set<std::string> seen;
  for (const auto& mark : marks) {
    if (mark.is_constant || mark.shares || fixed_ranges.contains(mark.value)) continue;
    const std::string& source = source_of(mark.value);
    if (seen.insert(source).second) values.push_back(source);
  }
  for (const auto& value : joined) {
    if (seen.insert(value).second) values.push_back(value);
  }
  return values;
}

const Mark* Placement::find(const std::string& value) const {
  const auto found = std::find_if(marks.begin(), marks.end(), [&](const auto& mark) { return mark.value == value; });
  return found == marks.end() ? nullptr : &*found;
}

const Mark& Placement::root_of(const Mark& mark) const {
  const auto* root = &mark;
  while (root->shares) {
    const auto* next = find(*root->shares);
    if (next == nullptr) break;
    root = next;
  }
  return *root;
}

const std::string& Placement::source_of(const std::string& value) const {
  const auto found = inherits.find(value);
  return found == inherits.end() ? value : found->second;
}

Marks::Marks(const onnx::Model& model, const graph::ValueTypes& types, const graph::Index& index)
    : model_(model), types_(types), index_(index) {}

bool Marks::quantizable(const std::string& value) const {
  if (value.empty()) return false;
  // A value that goes straight from an input to an output has no node whose output could be renamed.
  if (index_.is_output(value) && index_.producer(value) == graph::kNone) return false;
  return graph::type_of(model_, types_, value) == onnx::DataType::float32;
}

bool Marks::contains(const std::string& value) const { return position_.contains(value) || biases_.contains(value); }

Mark& Marks::put(const std::string& value) {
  const auto [it, added] = position_.try_emplace(value, order_.size());
  if (added) order_.emplace_back();
  order_[it->second] = Mark{value, index_.initializer(value) != graph::kNone, false, {}, {}, false, false};
  return *order_[it->second];
}

void Marks::activation(const std::string& value) {
  if (!quantizable(value)) return;
  const auto known = position_.find(value);
  if (known == position_.end()) {
    put(value);
  } else if (auto& mark = *order_[known->second]; mark.is_constant) {
    mark.granularity = Granularity::tensor();
  }
}

void Marks::weight(const std::string& value, const Granularity& granularity, const std::optional<Summation>& paired) {
  if (!quantizable(value)) return;
  const auto known = position_.find(value);
  if (known == position_.end()) {
    put(value).granularity = granularity;
  } else if (auto& mark = *order_[known->second]; mark.granularity != granularity || !mark.is_weight) {
    // Kernels and runtimes know channels along one axis only: that of the reader.
    mark.granularity = Granularity::tensor();
  }
  Mark& mark = *order_[position_.at(value)];
  mark.is_weight = mark.is_constant;
  if (paired && std::find(mark.paired.begin(), mark.paired.end(), *paired) == mark.paired.end())
    mark.paired.push_back(*paired);
}

void Marks::shared(const std::string& value, const std::string& provider) {
  if (!quantizable(value) || index_.initializer(value) != graph::kNone) return;
  put(value).shares = provider;
}

void Marks::erase(const std::string& value) {
  const auto found = position_.find(value);
  if (found == position_.end()) return;
  order_[found->second].reset();
  position_.erase(found);
}

std::vector<Mark> Marks::in_order() const {
  std::vector<Mark> marks;
  for (const auto& mark : order_) {
    if (mark) marks.push_back(*mark);
  }
  return marks;
}

std::int64_t needed_opset(const QuantConfig& config) noexcept {
  if (!config::preset(config).quantizes) return config::target(config).opset;
  const bool is_late = is_float(config.weight_type) || config::writes_16_bits(config);
  const std::int64_t of_form = is_late ? 19 : config.per_channel ? 13 : 10;
  return std::max({config::preset(config).opset, config::target(config).opset, of_form});
}

// Takes from the values that are to have 16 bits what the target could then not run.
void keep_narrow(const onnx::Model& model, const config::Target& target, const Placement& placement,
                 std::set<std::string>& wide) {
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!placement.selected[n] || !target.has_8_bits_alone(node.op_type())) continue;
    for (const auto& value : node.inputs()) wide.erase(value);
    for (const auto& value : node.outputs()) wide.erase(value);
  }
}

void share_transposed(const TransposedConstants& transposed, std::vector<Mark>& marks) {
  std::map<std::string, Mark*> constants;
  for (auto& mark : marks) {
    if (mark.is_constant) constants[mark.value] = &mark;
  }
  std::map<Mark*, std::vector<Mark*>> all;
  for (const auto& [value, of] : transposed) {
    const auto found = constants.find(value), source = constants.find(of);
    if (found == constants.end() || source == constants.end() || !found->second->is_weight) continue;
    const auto& own = found->second->granularity;
    auto wanted = source->second->granularity;
    if (wanted.kind == Granularity::Kind::axis) wanted.axis = 1 - wanted.axis;
    if (own != wanted) source->second->granularity = Granularity::tensor();
    source->second->is_weight = true;
    all[source->second].push_back(found->second);
  }
  for (const auto& [source, of] : all) {
    for (auto* mark : of) {
      mark->shares = source->value;
      if (source->granularity.is_tensor()) mark->granularity = Granularity::tensor();
    }
  }
}

namespace {

// A table whose transpose is a weight gets that one's integers, whatever reads it: it need not be stored in float then.
std::vector<Mark> with_sources(const TransposedConstants& transposed, Marks& marks) {
  const auto known = marks.in_order();
  for (const auto& [value, of] : transposed) {
    const auto found =
        std::find_if(known.begin(), known.end(), [name = &value](const auto& mark) { return mark.value == *name; });
    if (found == known.end() || !found->is_weight || marks.contains(of)) continue;
    auto granularity = found->granularity;
    if (granularity.kind == Granularity::Kind::axis) granularity.axis = 1 - granularity.axis;
    marks.weight(of, granularity);
  }
  return marks.in_order();
}

Mark* find(Placement& placement, const std::string& value) {
  const auto found = std::find_if(placement.marks.begin(), placement.marks.end(),
                                  [&](const auto& mark) { return mark.value == value; });
  return found == placement.marks.end() ? nullptr : &*found;
}

Mark* root(Placement& placement, Mark* mark) {
  while (mark != nullptr && mark->shares) {
    auto* next = find(placement, *mark->shares);
    if (next == nullptr) break;
    mark = next;
  }
  return mark;
}

// Means lie within the range of what they are taken of.
bool is_mean(const onnx::Node& node) { return graph::is_on(node, graph::List::averages); }

bool is_marked(const Placement& placement, const std::string& value) { return placement.find(value) != nullptr; }

// A convolution, or an activation after one, that this reader alone reads.
bool is_fused_branch(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone || index.consumers(value).size() != 1 || index.is_output(value)) return false;
  return graph::has_trait(model.graph.nodes[static_cast<std::size_t>(producer)], graph::Trait::convolution);
}

// Of each quantized sum of two activations the branch that a convolution makes for it alone: a runtime that adds within
// the convolution's kernel does so before rounding. It is observed all the same: it is quantized where a fallback
// leaves the other summand in float.
void add_fused_branches(const onnx::Model& model, const graph::Index& index, Placement& placement,
                        std::set<std::string>& values) {
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!node.is("Add") || !placement.selected[n] || node.inputs().size() != 2) continue;
    const auto& inputs = node.inputs();
    if (!is_marked(placement, inputs[0]) || !is_marked(placement, inputs[1])) continue;
    for (std::size_t i = 2; i-- > 0;) {
      if (!is_fused_branch(model, index, inputs[i])) continue;
      if (values.insert(inputs[i]).second) placement.joined.push_back(inputs[i]);
      break;
    }
  }
}

// Where the inputs are activations that a node of the graph makes.
void share_output_scales(const onnx::Model& model, const graph::Index& index, const std::vector<std::string>& op_types,
                         Placement& placement) {
  if (op_types.empty()) return;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const bool aligned = std::find(op_types.begin(), op_types.end(), node.op_type()) != op_types.end();
    if (!aligned || !placement.selected[n] || placement.fixed_ranges.contains(node.outputs().front())) continue;
    auto* const output = root(placement, find(placement, node.outputs().front()));
    if (output == nullptr) continue;
    for (const auto& value : node.inputs()) {
      auto* const input = root(placement, find(placement, value));
      if (input == nullptr || input == output || input->is_constant) continue;
      if (is_mean(node)) {
        output->shares = input->value;
        break;
      }
      if (index.producer(input->value) == graph::kNone || placement.fixed_ranges.contains(input->value)) continue;
      input->shares = output->value;
      placement.joined.push_back(input->value);
    }
  }
}

}  // namespace

Placement place(const onnx::Model& model, const graph::ValueTypes& types, const QuantConfig& config,
                const FloatParts& floats, const TransposedConstants& transposed) {
  if (!config.formats_given) refuse_quantized(model);
  const graph::Index index(model);
  Placement placement;
  placement.selected = select_static_nodes(model, config);
  for (std::size_t n = 0; n < floats.nodes.size(); ++n)
    placement.selected[n] = placement.selected[n] && !floats.nodes[n];
  leave_index_arithmetic(model, index, types, config, placement.selected);
  placement.notes = leave_weights_given_out(model, index, placement.selected);
  for (auto& note : leave_what_is_empty(model, index, types, placement.selected))
    placement.notes.push_back(std::move(note));
  for (auto& note : leave_weights_that_stay(model, index, config, transposed, placement.selected))
    placement.notes.push_back(std::move(note));
  const auto left = placement.notes;
  Marks marks(model, types, index);
  RuleContext context{model, index, types, config, marks, placement, left_operands(model)};
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (placement.selected[n]) apply_rule(context, n);
  }
  const bool shares_transposes = config::target(config).is_ort_cpu;
  placement.marks = shares_transposes ? with_sources(transposed, marks) : marks.in_order();
  placement.least_spans = least_spans(model, config::target(config));
  if (shares_transposes) share_transposed(transposed, placement.marks);
  auto in_float = floats.values;
  if (config::target(config).fuses_sums) add_fused_branches(model, index, placement, in_float);
  drop(std::move(in_float), placement.marks);
  share_output_scales(model, index, config::target(config).aligned_types, placement);
  if (floats.bypass) mark_bypassed(index, placement);
  auto wide = wide_values(model, index, floats.wide_nodes, config.formats_given, placement);
  if (!config.formats_given) keep_narrow(model, config::target(config), placement, wide);
  flag(std::move(wide), &Mark::wide, placement.marks);
  if (config::target(config).centred_operands) mark_centred(model, index, config, placement);
  const auto passthrough = passthrough_types(model, config);
  for (const auto& mark : placement.marks) {
    if (mark.is_constant || mark.shares) continue;
    std::string source = statistics_source(model, index, types, passthrough, mark.value);
    if (source != mark.value) placement.inherits[mark.value] = std::move(source);
  }
  if (placement.marks.empty() && !floats.may_be_all && recurrent_layers(model, config).empty() &&
      layers_to_store(model, config).empty()) {
    throw bad_input(
        fmt::format("model '{}' has nothing to quantize: none of its nodes has values that these options quantize",
                    model.path.string()),
        left.empty() ? nothing_hint(model, types) : fmt::format("{}", fmt::join(left, "; ")));
  }
  return placement;
}

}  // namespace detent::quantization
