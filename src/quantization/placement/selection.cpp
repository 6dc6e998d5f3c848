#include "quantization/placement/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "config/derived.h"
#include "config/targets.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "quantization/placement/name_pattern.h"

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
    for (const auto type : target.float_types) types.erase(std::string(type));
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

}  // namespace detent::quantization
