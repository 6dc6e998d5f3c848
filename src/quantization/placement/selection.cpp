#include "quantization/placement/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/error.h"
#include "config/presets.h"
#include "config/targets.h"
#include "graph/operators.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

// Flags of nodes that any entry matches.
std::vector<bool> match_names(const onnx::Model& model, const std::vector<std::string>& entries, const char* option) {
  std::vector<bool> matched(model.graph.nodes.size(), false);
  for (const auto& entry : entries) {
    for (const auto n : match_nodes(model, entry, option)) matched[n] = true;
  }
  return matched;
}

// Those of ONNX Runtime's quantize_static.
const std::vector<std::string>& default_op_types() {
  static const auto kTypes = [] {
    std::vector<std::string> types;
    for (const auto& row : graph::all_traits()) {
      if (row.is(graph::Trait::by_default)) types.emplace_back(row.type);
    }
    std::sort(types.begin(), types.end());
    return types;
  }();
  return kTypes;
}

void check_op_types(const onnx::Model& model, const std::vector<std::string>& types, const char* option) {
  for (const auto& type : types) {
    const bool known = std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(),
                                   [&](const auto& n) { return n.op_type() == type; });
    const auto& defaults = default_op_types();
    if (known || std::find(defaults.begin(), defaults.end(), type) != defaults.end()) continue;
    throw usage_error(fmt::format("{}: '{}' has no node of type '{}'", option, model.path.string(), type),
                      "operator types are listed by: detent inspect MODEL");
  }
}

}  // namespace

std::vector<std::size_t> match_nodes(const onnx::Model& model, const std::string& entry, const char* option) {
  const NamePattern pattern(entry);
  std::vector<std::size_t> nodes;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (pattern.matches(model.graph.nodes[n].id())) nodes.push_back(n);
  }
  if (nodes.empty())
    throw usage_error(fmt::format("{}: no node of '{}' matches '{}'", option, model.path.string(), entry),
                      "names are listed by: detent inspect MODEL; a regular expression starts with '^'");
  return nodes;
}

namespace {

// Nodes of which `type_fits` says so, and that the user's lists of nodes hold or do not hold.
template <class TypeFits>
std::vector<bool> select(const onnx::Model& model, const QuantConfig& config, const TypeFits& type_fits) {
  check_op_types(model, config.op_types, "--op-types");
  check_op_types(model, config.exclude_op_types, "--exclude-op-types");
  const auto wanted = match_names(model, config.nodes, "--nodes");
  const auto excluded = match_names(model, config.exclude_nodes, "--exclude-nodes");
  std::vector<bool> selected(model.graph.nodes.size(), false);
  for (std::size_t n = 0; n < selected.size(); ++n)
    selected[n] = type_fits(model.graph.nodes[n]) && !excluded[n] && (config.nodes.empty() || wanted[n]);
  return selected;
}

bool lists(const std::vector<std::string>& types, const onnx::Node& node) {
  return std::find(types.begin(), types.end(), node.op_type()) != types.end();
}

}  // namespace

std::vector<bool> select_nodes(const onnx::Model& model, const QuantConfig& config) {
  const auto& target = config::target(config);
  std::set<std::string> types(config.op_types.begin(), config.op_types.end());
  if (types.empty() && is_float(config.weight_type)) types = {"Conv", "ConvTranspose", "Gemm", "MatMul"};
  if (types.empty()) types.insert(default_op_types().begin(), default_op_types().end());
  if (config.op_types.empty() && config::writes_hard_sigmoids(config)) types.insert("HardSigmoid");  // as gates only
  if (config.op_types.empty()) {
    types.insert(target.op_types.begin(), target.op_types.end());
    std::erase_if(types, [&](const auto& type) { return !target.accepts(type); });
  }
  for (const auto& type : config.exclude_op_types) types.erase(type);
  const graph::Index index(model);
  return select(model, config, [&](const onnx::Node& node) {
    const bool domain_known = node.domain().empty() || node.domain() == "com.microsoft";
    const bool of_activations = graph::is_matrix_product(node) && node.inputs().size() > graph::kWeightInput &&
                                index.initializer(node.inputs()[graph::kWeightInput]) == graph::kNone;
    const bool takes_activations = !target.constant_weights_only || (target.centred_operands && node.is("MatMul"));
    return domain_known && types.contains(node.op_type()) && (takes_activations || !of_activations);
  });
}

std::vector<bool> select_static_nodes(const onnx::Model& model, const QuantConfig& config) {
  auto selected = select_nodes(model, config);
  for (std::size_t n = 0; n < selected.size(); ++n)
    selected[n] = selected[n] && model.graph.nodes[n].op_type() != "LSTM";
  return selected;
}

std::vector<bool> select_of_all_types(const onnx::Model& model, const QuantConfig& config) {
  return select(model, config, [&](const onnx::Node& node) {
    return (config.op_types.empty() || lists(config.op_types, node)) && !lists(config.exclude_op_types, node);
  });
}

NamePattern::NamePattern(const std::string& text) : text_(text) {
  if (text.starts_with('^')) pattern_.emplace(text);
}

std::vector<std::string> LeftInFloat::notes() const {
  std::vector<std::string> notes;
  for (const auto& [why, nodes] : nodes_) {
    notes.push_back(fmt::format(
        "{}{} in float: {}", nodes.front(),
        nodes.size() > 1 ? fmt::format(" and {} more stay", nodes.size() - 1) : std::string(" stays"), why.first));
  }
  return notes;
}

std::size_t LeftInFloat::count() const {
  std::size_t count = 0;
  for (const auto& [why, nodes] : nodes_) count += nodes.size();
  return count;
}

bool reads_empty_weight(const onnx::Model& model, const graph::Index& index, const onnx::Node& product) {
  if (product.inputs().size() <= graph::kWeightInput) return false;
  const int at = index.initializer(product.inputs()[graph::kWeightInput]);
  return at != graph::kNone && model.graph.initializers[static_cast<std::size_t>(at)].count() == 0;
}

std::string reason_against_gemm(const onnx::Node& gemm) {
  if (gemm.int_or("transA", 0) != 0) return "its first input is transposed";
  if (gemm.float_or("alpha", 1) != 1) return "its alpha is not 1";
  if (gemm.float_or("beta", 1) != 1 && gemm.inputs().size() > 2) return "its beta is not 1";
  return {};
}

std::set<std::string> passthrough_types(const onnx::Model& model, const QuantConfig& config) {
  check_op_types(model, config.passthrough_op_types, "--set passthrough-op-types");
  std::set<std::string> types;
  for (const auto& row : graph::all_traits()) {
    if (row.is(graph::Trait::rearranges)) types.emplace(row.type);
  }
  types.insert(config.passthrough_op_types.begin(), config.passthrough_op_types.end());
  return types;
}

std::string statistics_source(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              const std::set<std::string>& passthrough, const std::string& value) {
  std::string source = value;
  while (true) {
    const int producer = index.producer(source);
    if (producer == graph::kNone) return source;
    const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
    if (!node.domain().empty() || !passthrough.contains(node.op_type()) || node.inputs().empty()) return source;
    const std::string& input = node.inputs().front();
    const bool is_activation = !input.empty() && index.initializer(input) == graph::kNone &&
                               graph::type_of(model, types, input) == onnx::DataType::float32;
    if (!is_activation) return source;
    source = input;
  }
}

namespace {

// Of a type whose exponent has these bits; all are set in infinite values and NaN alone.
template <class Bits>
bool are_finite(const onnx::TensorData& data, Bits exponent) {
  bool finite = true;
  data.write_to([&](std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
      Bits bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof bits);
      finite &= (bits & exponent) != exponent;
    }
  });
  return finite;
}

// Rows of a table that are looked up are seldom those that hold such values; what is added is added as a whole.
bool adds(const onnx::Node& node, std::size_t input) {
  return graph::is_on(node, graph::List::adds) || (node.is("Where") && input > 0);
}

bool fills_with_infinity(const onnx::Model& model, const onnx::Node& node) {
  const auto* value = node.is("ConstantOfShape") ? node.attribute("value") : nullptr;
  return value != nullptr && !all_finite(onnx::read_attribute_tensor(model, node, *value));
}

}  // namespace

bool all_finite(const onnx::Tensor& tensor) {
  switch (tensor.type) {
    case onnx::DataType::float32: return are_finite<std::uint32_t>(tensor.data, 0x7f800000U);
    case onnx::DataType::float16: return are_finite<std::uint16_t>(tensor.data, 0x7c00U);
    case onnx::DataType::bfloat16: return are_finite<std::uint16_t>(tensor.data, 0x7f80U);
    default: return true;
  }
}

std::set<std::string> infinite_values(const onnx::Model& model) {
  const graph::Index index(model);
  std::set<std::string> found, finite;
  const auto is_infinite = [&](const std::string& name) {
    const int at = index.initializer(name);
    if (at == graph::kNone || finite.contains(name)) return false;
    const bool is_finite = all_finite(model.graph.initializers[static_cast<std::size_t>(at)]);
    (is_finite ? finite : found).insert(name);
    return !is_finite;
  };
  for (const auto& node : model.graph.nodes) {
    if (!graph::is_on(node, graph::List::infinities) && !node.is("ConstantOfShape")) continue;
    bool any = fills_with_infinity(model, node);
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      const auto& input = node.inputs()[i];
      any = found.contains(input) || (adds(node, i) && is_infinite(input)) || any;
    }
    if (any) found.insert(node.outputs().begin(), node.outputs().end());
  }
  return found;
}

}  // namespace detent::quantization
