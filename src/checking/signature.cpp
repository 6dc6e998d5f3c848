#include "checking/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "graph/traits.h"
#include "quantization/formats.h"

namespace detent::checking {
namespace {

using graph::kNone;

const onnx::Node& at(const onnx::Model& model, int node) { return model.graph.nodes[static_cast<std::size_t>(node)]; }

bool is(const onnx::Node& node, std::string_view op_type) {
  return node.op_type() == op_type && (node.domain().empty() || node.domain() == "com.microsoft");
}

const onnx::Tensor* constant(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int i = index.initializer(value);
  return i == kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(i)];
}

struct Kind {
  std::string_view text;
  std::int64_t middle;
};

Kind kind_of(onnx::DataType type) {
  switch (type) {
    case onnx::DataType::uint8: return {"u8", 128};
    case onnx::DataType::int8: return {"s8", 0};
    case onnx::DataType::uint16: return {"u16", 32768};
    case onnx::DataType::int16: return {"s16", 0};
    case onnx::DataType::uint4: return {"u4", 8};
    case onnx::DataType::int4: return {"s4", 0};
    default: return {"other", 0};
  }
}

// The form that a QuantizeLinear or DequantizeLinear gives, by its scale and zero point.
Form form_by(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  Form form;
  const auto& inputs = node.inputs();
  const auto* scale = inputs.size() > 1 ? constant(model, index, inputs[1]) : nullptr;
  const auto* zero = inputs.size() > 2 ? constant(model, index, inputs[2]) : nullptr;
  const auto* stored = inputs.empty() ? nullptr : constant(model, index, inputs[0]);
  const auto type = zero != nullptr ? zero->type : stored != nullptr ? stored->type : onnx::DataType::uint8;
  const auto [text, middle] = kind_of(type);
  if (scale != nullptr) form.scales = onnx::to_doubles(*scale);
  const bool has_integers = zero != nullptr && text != "other";
  const auto zeros = has_integers ? onnx::to_int64s(*zero) : std::vector<std::int64_t>{0};
  const bool centred = std::all_of(zeros.begin(), zeros.end(), [m = middle](std::int64_t z) { return z == m; });
  form.zero_point = zeros.empty() ? 0 : zeros.front();
  form.text = std::string(text) + (centred ? "=" : "");
  if (stored == nullptr || !is(node, "DequantizeLinear")) return form;
  form.is_constant = true;
  const bool blocks = node.int_or("block_size", 0) > 0;
  form.text += blocks ? "/b" : form.scales.size() > 1 ? "/c" : "/t";
  return form;
}

Form form_of_output(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  if (index.is_output(value) || readers.empty()) return {};
  for (const int reader : readers) {
    if (!is(at(model, reader), "QuantizeLinear")) return {};
  }
  return form_by(model, index, at(model, readers.front()));
}

// The only reader of a value, or kNone.
int only_reader(const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  return readers.size() == 1 && !index.is_output(value) ? readers.front() : kNone;
}

// What makes the first input of a node, if that alone reads it.
const onnx::Node* maker_for(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (node.inputs().empty() || only_reader(index, node.inputs().front()) == kNone) return nullptr;
  const int maker = index.producer(node.inputs().front());
  return maker == kNone ? nullptr : &at(model, maker);
}

}  // namespace

Form form_of_input(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, std::size_t i) {
  if (i >= node.inputs().size() || node.inputs()[i].empty()) return {"-"};
  const int maker = index.producer(node.inputs()[i]);
  if (maker != kNone && at(model, maker).domain() == onnx::kQuarkDomain) {
    const bool is_constant = index.initializer(at(model, maker).inputs().front()) != kNone;
    return {"bf", is_constant};
  }
  if (maker != kNone && is(at(model, maker), "DequantizeLinear")) return form_by(model, index, at(model, maker));
  Form form;
  form.is_constant = index.initializer(node.inputs()[i]) != kNone;
  return form;
}

bool fuses_with_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const auto* maker = graph::has_trait(node, graph::Trait::clips) ? maker_for(model, index, node) : nullptr;
  return maker != nullptr && graph::is_product(*maker);
}

bool fuses_with_maker(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                      const config::Target& target) {
  if (!graph::has_trait(node, graph::Trait::clips) && !target.has_activation(node.op_type())) return false;
  const auto* maker = maker_for(model, index, node);
  return maker != nullptr && (graph::is_product(*maker) || target.runs_activation_along(maker->op_type()));
}

Signature signature_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                       const config::Target& target) {
  const std::size_t from = is(node, "Where") ? 1 : 0;
  Signature forms{form_of_input(model, index, node, from), form_of_input(model, index, node, from + 1), {}};
  if (node.outputs().empty()) return forms;
  forms.output = form_of_output(model, index, node.outputs().front());
  const int reader = only_reader(index, node.outputs().front());
  if (forms.output.text == "f32" && reader != kNone && fuses_with_maker(model, index, at(model, reader), target))
    forms.output = form_of_output(model, index, at(model, reader).outputs().front());
  return forms;
}

/// Name and text of each file in tables/, written by the build.
std::span<const std::pair<std::string_view, std::string_view>> table_files();

namespace {

std::string_view next(std::string_view& rest, char separator) {
  const auto end = rest.find(separator);
  const auto part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return part;
}

bool matches(std::string_view alternatives, std::string_view text) {
  if (alternatives == "*") return true;
  while (!alternatives.empty()) {
    if (next(alternatives, '|') == text) return true;
  }
  return false;
}

// The same without what is said of the zero point.
std::string without_zero(std::string text) {
  std::erase(text, '=');
  return text;
}
std::string with_zero(const std::string& text) {
  if (text == "f32" || text == "-") return text;
  auto plain = without_zero(text);
  const auto slash = plain.find('/');
  return plain.insert(slash == std::string::npos ? plain.size() : slash, "=");
}

}  // namespace

Table::Table(std::string_view text) {
  while (!text.empty()) {
    auto line = next(text, '\n');
    if (line.empty() || line.front() == '#') continue;
    std::array<std::string_view, 6> fields;
    for (auto& field : fields) field = next(line, '\t');
    rows_.push_back({fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]});
  }
}

const Row* Table::find(std::string_view op_type, std::string_view first, std::string_view second,
                       std::string_view output) const {
  for (const auto& row : rows_) {
    if (matches(row.op_types, op_type) && matches(row.first, first) && matches(row.second, second) &&
        matches(row.output, output))
      return &row;
  }
  return nullptr;
}

const Row* Table::find(std::string_view op_type, const Signature& forms) const {
  // Of two inputs the table has the constant as the second; an index is none of two.
  if (op_type != "Gather" && forms.first.is_constant && !forms.second.is_constant && forms.second.text != "-")
    return find(op_type, {forms.second, forms.first, forms.output});
  const auto& [first, second, output] = forms;
  std::string constant = second.text;
  if (constant == "f32" && !second.is_constant && first.text == "f32") constant = "f32";
  // Zero points of results decide nothing, and of most operators a table has results as the first input or in float.
  const std::string outputs[] = {output.text, without_zero(output.text), with_zero(output.text),
                                 output.text == "f32" ? "f32" : first.text, "f32"};
  const std::string firsts[] = {first.text, with_zero(first.text), without_zero(first.text)};
  // Types without a row for each channel have one for the tensor, and the other way round.
  const bool is_weight = constant.ends_with("/c") || constant.ends_with("/t");
  const auto other =
      is_weight ? constant.substr(0, constant.size() - 1) + (constant.ends_with("/c") ? "t" : "c") : constant;
  const std::string seconds[] = {constant,
                                 without_zero(constant),
                                 with_zero(constant),
                                 other,
                                 without_zero(other),
                                 with_zero(other),
                                 first.text,
                                 first.is_constant ? first.text : without_zero(first.text),
                                 "-"};
  for (const auto& s : seconds) {
    for (const auto& f : firsts) {
      for (const auto& o : outputs) {
        if (const auto* row = find(op_type, f, s, o)) return row;
      }
    }
  }
  return nullptr;
}

bool differs(std::string_view alternatives, const std::string& text) {
  return !matches(alternatives, text) && !matches(alternatives, without_zero(text)) &&
         !matches(alternatives, with_zero(text));
}

bool on_integers(const Row& row) {
  return row.kernel == "int8" || row.kernel == "int16" || row.kernel == "htp" || row.kernel == "block floats";
}

const Row* Table::nearest_on_integers(std::string_view op_type, const Signature& forms) const {
  const Row* best = nullptr;
  int fewest = 0;
  for (const auto& row : rows_) {
    if (!matches(row.op_types, op_type) || row.op_types == "*" || !on_integers(row) || matches(row.first, "f32"))
      continue;
    const bool second_of_a_kind = forms.second.is_constant == (row.second.find('/') != std::string_view::npos);
    const int differences = 2 * !matches(row.first, forms.first.text) + 2 * !matches(row.second, forms.second.text) +
                            differs(row.output, forms.output.text) + 4 * !second_of_a_kind +
                            3 * (matches(row.output, "f32") && forms.output.text != "f32");  // integers go on behind it
    if (best != nullptr && differences >= fewest) continue;
    best = &row;
    fewest = differences;
  }
  return best;
}

const Table* table_of(std::string_view target) {
  static const auto all = [] {
    std::map<std::string_view, Table> tables;
    for (const auto& [name, text] : table_files()) tables.emplace(name, Table(text));
    return tables;
  }();
  const auto found = all.find(target.substr(0, target.find(':')));
  return found == all.end() ? nullptr : &found->second;
}

namespace {

bool wants(const config::Target& target, std::string_view option, std::string_view value) {
  return std::any_of(target.settings.begin(), target.settings.end(),
                     [&](const auto& s) { return s.option == option && s.value == value; });
}

bool is_power_of_two(double scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5;
}

bool all_powers_of_two(const Form& form) {
  return std::all_of(form.scales.begin(), form.scales.end(), is_power_of_two);
}

bool has_quantized_output(const Signature& forms) { return !forms.output.scales.empty(); }

Violation fixed_range(const onnx::Node& node, const Signature& forms, const config::Target& target) {
  // The HTP runs other grids on integers too; these are what ONNX Runtime's configuration for it asks for.
  if (target.htp_rewrites) return {};
  for (const auto& fixed : target.fixed_ranges) {
    const auto type = kind_of(quantization::data_type(fixed.type)).text;
    if (!node.is(fixed.op_type) || !has_quantized_output(forms) || !forms.output.text.starts_with(type)) continue;
    const auto expected = quantization::compute_params(fixed.low, fixed.high, {fixed.type});
    const bool fits = forms.output.scales.front() == static_cast<double>(expected.scale) &&
                      forms.output.zero_point == expected.zero_point;
    if (!fits)
      return {fmt::format("results of {} have scale {} and zero point {}", fixed.op_type, expected.scale,
                          expected.zero_point),
              "quantize with this target"};
  }
  return {};
}

Violation alignment(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, const Signature& forms,
                    const config::Target& target) {
  if (!target.aligns(node.op_type()) || !has_quantized_output(forms)) return {};
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    const auto form = form_of_input(model, index, node, i);
    if (form.is_constant || form.scales.empty()) continue;
    // What comes from outside has the scale that its own values ask for.
    const auto& pair = model.graph.nodes[static_cast<std::size_t>(index.producer(node.inputs()[i]))];
    const int maker = index.producer(pair.inputs().front());
    if (maker != graph::kNone) {
      const auto& read = model.graph.nodes[static_cast<std::size_t>(maker)].inputs();
      if (!read.empty() && index.is_input(read.front())) continue;
    }
    if (form.scales == forms.output.scales && form.zero_point == forms.output.zero_point) continue;
    return {fmt::format("inputs and output of {} have one scale", node.op_type()), "quantize with this target"};
  }
  return {};
}

}  // namespace

Violation violation(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, const Signature& forms,
                    const config::Target& target) {
  if (wants(target, "power-of-two-scale", "true") &&
      !(all_powers_of_two(forms.first) && all_powers_of_two(forms.second) && all_powers_of_two(forms.output)))
    return {"scales are powers of two", "quantize with --set power-of-two-scale"};
  if (target.explicit_convolutions && graph::has_trait(node, graph::Trait::convolution) &&
      (node.attribute("kernel_shape") == nullptr || node.attribute("strides") == nullptr ||
       node.attribute("dilations") == nullptr || node.attribute("group") == nullptr))
    return {"convolutions have all their attributes", "quantize with this target"};
  if (auto broken = fixed_range(node, forms, target); !broken.rule.empty()) return broken;
  return alignment(model, index, node, forms, target);
}

}  // namespace detent::checking
