#include "graph/rewrites/fixed_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "onnx/retyped.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using Symbols = std::map<std::string, std::int64_t>;

void check(const onnx::ValueInfo& input, const std::vector<std::int64_t>& shape) {
  if (!input.shape) return;
  if (input.shape->size() != shape.size())
    throw usage_error(
        fmt::format("--shape: input '{}' has {} dimensions, not {}", input.name, input.shape->size(), shape.size()));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto& dim = (*input.shape)[d];
    if (dim.is_static() && dim.value != shape[d])
      throw usage_error(fmt::format("--shape: axis {} of input '{}' is {}, not {}", d, input.name, dim.value, shape[d]),
                        "give the model's own number for axes that are static");
  }
}

// Axes of the same name are as long as each other. "?" and the like stand for axes without one.
bool is_name(const std::string& symbol) {
  return std::any_of(symbol.begin(), symbol.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
}

void bind_symbols(const onnx::ValueInfo& input, const std::vector<std::int64_t>& shape, Symbols& symbols) {
  if (!input.shape) return;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto& symbol = (*input.shape)[d].symbol;
    if (!is_name(symbol)) continue;
    const auto [known, added] = symbols.try_emplace(symbol, shape[d]);
    if (!added && known->second != shape[d])
      throw usage_error(fmt::format("--shape: the axis '{}' is {} and {}", symbol, known->second, shape[d]));
  }
}

void replace_symbols(onnx::ValueInfo& value, const Symbols& symbols) {
  if (!value.shape) return;
  auto dims = *value.shape;
  bool changed = false;
  for (auto& dim : dims) {
    const auto known = symbols.find(dim.symbol);
    if (dim.is_static() || known == symbols.end()) continue;
    dim = {known->second, ""};
    changed = true;
  }
  if (changed) value = onnx::retyped(value, value.type, std::move(dims));
}

}  // namespace

Notes fix_input_shapes(onnx::Model& model, const std::map<std::string, std::vector<std::int64_t>>& shapes) {
  auto& inputs = model.graph.inputs;
  Symbols symbols;
  for (const auto& entry : shapes) {
    const auto& name = entry.first;
    const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const auto& i) { return i.name == name; });
    if (input == inputs.end())
      throw usage_error(fmt::format("--shape: model '{}' has no input '{}'", model.path.string(), name));
    check(*input, entry.second);
    bind_symbols(*input, entry.second, symbols);
    std::vector<onnx::Dim> dims;
    for (const auto d : entry.second) dims.push_back({d, ""});
    *input = onnx::retyped(*input, input->type, std::move(dims));
  }
  for (auto& input : inputs) replace_symbols(input, symbols);
  for (auto& output : model.graph.outputs) replace_symbols(output, symbols);
  model.graph.value_infos.clear();
  return {};
}

std::vector<onnx::ValueInfo> take_output_shapes(onnx::Model& model) {
  auto said = model.graph.outputs;
  for (auto& output : model.graph.outputs) {
    if (output.shape) output = onnx::retyped(output, output.type, std::nullopt);
  }
  return said;
}

void give_output_shapes(onnx::Model& model, const ValueTypes& types, const std::vector<onnx::ValueInfo>& said) {
  for (std::size_t i = 0; i < said.size(); ++i) {
    auto& output = model.graph.outputs[i];
    output = said[i];
    const auto found = types.find(output.name);
    if (!said[i].shape || found == types.end() || !found->second.shape) continue;
    auto dims = *found->second.shape;
    if (dims.size() != said[i].shape->size()) continue;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (!dims[d].is_static()) dims[d] = (*said[i].shape)[d];
    }
    output = onnx::retyped(output, output.type, std::move(dims));
  }
}

namespace {

// What a Shape gives, which may leave out axes at both ends; empty where it is not known.
std::vector<std::int64_t> told_by(const onnx::Node& node, const ValueTypes& types) {
  const auto found = types.find(node.inputs()[0]);
  if (found == types.end() || !found->second.shape) return {};
  const auto& dims = *found->second.shape;
  const auto rank = static_cast<std::int64_t>(dims.size());
  const auto place = [&](const char* name, std::int64_t otherwise) {
    const auto axis = node.int_or(name, otherwise);
    return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  std::vector<std::int64_t> told;
  for (auto axis = place("start", 0); axis < place("end", rank); ++axis) {
    const auto& dim = dims[static_cast<std::size_t>(axis)];
    if (!dim.is_static()) return {};
    told.push_back(dim.value);
  }
  return told;
}

}  // namespace

std::size_t fold_shapes(onnx::Model& model, const ValueTypes& types) {
  const Index index(model);
  std::vector<bool> gone(model.graph.nodes.size());
  std::size_t count = 0;
  for (std::size_t n = 0; n < gone.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!node.is("Shape") || node.body() != 0) continue;
    const auto& name = node.outputs()[0];
    const auto told = index.is_output(name) ? std::vector<std::int64_t>() : told_by(node, types);
    if (told.empty()) continue;
    const auto axes = static_cast<std::int64_t>(told.size());
    model.graph.initializers.push_back(onnx::make_tensor<std::int64_t>(name, onnx::DataType::int64, {axes}, told));
    gone[n] = true;
    ++count;
  }
  remove_nodes(model, gone);
  return count;
}

std::vector<const onnx::ValueInfo*> dynamic_inputs(const onnx::Model& model) {
  const Index index(model);
  std::vector<const onnx::ValueInfo*> dynamic;
  for (const auto& input : model.graph.inputs) {
    const bool fixed = input.shape && std::all_of(input.shape->begin(), input.shape->end(),
                                                  [](const auto& dim) { return dim.is_static(); });
    if (!fixed && index.initializer(input.name) == kNone) dynamic.push_back(&input);
  }
  return dynamic;
}

std::string shape_text(const onnx::ValueInfo& value) {
  if (!value.shape) return "of unknown shape";
  std::vector<std::string> dims;
  for (const auto& dim : *value.shape)
    dims.push_back(dim.is_static() ? std::to_string(dim.value) : dim.symbol.empty() ? "?" : dim.symbol);
  return fmt::format("[{}]", fmt::join(dims, ","));
}

}  // namespace detent::graph
