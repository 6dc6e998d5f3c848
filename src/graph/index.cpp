#include "graph/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "graph/execution.h"
#include "graph/traits.h"
#include "onnx/bodies.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

constexpr int kMaxDepth = 64;  // nesting of bodies; real models stay below 5

// The names that a body defines itself, and where those are that the bodies around it define.
struct Defined {
  const Defined* around = nullptr;
  std::unordered_set<std::string_view> names = {};

  Defined(const onnx::Graph& body, const Defined* outer) : around(outer) {
    for (const auto& input : body.inputs) names.insert(input.name);
    for (const auto& tensor : body.initializers) names.insert(tensor.name);
    for (const auto& name : body.sparse_initializers) names.insert(name);
    for (const auto& n : body.nodes) names.insert(n.outputs().begin(), n.outputs().end());
  }
  static bool has(const Defined* defined, const std::string& name) {
    for (; defined != nullptr; defined = defined->around) {
      if (defined->names.contains(name)) return true;
    }
    return false;
  }
};

void collect_captures(const onnx::Model& model, const onnx::Node& node, const Defined* around, int depth,
                      std::set<std::string>& out) {
  if (depth > kMaxDepth) throw bad_input(fmt::format("node {}: bodies are nested too deeply", node.label()));
  for (const auto& body : read_bodies(model, node)) {
    const Defined inside(body, around);
    const auto read = [&](const std::string& name) {
      if (!name.empty() && !Defined::has(&inside, name)) out.insert(name);
    };
    for (const auto& n : body.nodes) {
      for (const auto& name : n.inputs()) read(name);
      collect_captures(model, n, &inside, depth + 1, out);
    }
    for (const auto& output : body.outputs) read(output.name);
  }
}

}  // namespace

std::vector<std::string> captured_names(const onnx::Model& model, const onnx::Node& node) {
  std::set<std::string> names;
  collect_captures(model, node, nullptr, 0, names);
  return {names.begin(), names.end()};
}

Index::Index(const onnx::Model& model) {
  const auto& graph = model.graph;
  values_.reserve(graph.nodes.size() * 2 + graph.initializers.size());
  for (const auto& input : graph.inputs) {
    Value& value = values_[input.name];
    if (value.input)
      throw bad_input(
          fmt::format("model '{}': input '{}' is defined twice", model.path.string(), printable(input.name)));
    value.input = true;
  }
  for (std::size_t i = 0; i < graph.initializers.size(); ++i) {
    Value& value = values_[graph.initializers[i].name];
    if (value.initializer != kNone) {
      throw bad_input(fmt::format("model '{}': initializer '{}' is defined twice", model.path.string(),
                                  printable(graph.initializers[i].name)));
    }
    value.initializer = static_cast<int>(i);
  }
  for (const auto& node : graph.nodes) node_names_.insert(node.name());
  for (const auto& name : graph.sparse_initializers) values_[name].sparse = true;
  define_outputs(model);
  add_reads(model);
}

void Index::define_outputs(const onnx::Model& model) {
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    for (const auto& name : model.graph.nodes[n].outputs()) {
      if (name.empty()) continue;
      Value& value = values_[name];
      if (value.defined()) {
        throw bad_input(fmt::format("model '{}', node {}: output '{}' is already defined elsewhere",
                                    model.path.string(), model.graph.nodes[n].label(), printable(name)));
      }
      value.producer = static_cast<int>(n);
    }
  }
}

void Index::add_reads(const onnx::Model& model) {
  const auto& nodes = model.graph.nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const auto read = [&](const std::string& name, bool captured) {
      const auto found = values_.find(name);
      if (found == values_.end() || !found->second.defined()) {
        throw bad_input(fmt::format("model '{}', node {}: input '{}' is not defined anywhere", model.path.string(),
                                    nodes[n].label(), printable(name)));
      }
      Value& value = found->second;
      if (value.consumers.empty() || value.consumers.back() != static_cast<int>(n))
        value.consumers.push_back(static_cast<int>(n));
      value.captured = value.captured || captured;
    };
    for (const auto& name : nodes[n].inputs()) {
      if (!name.empty()) read(name, false);
    }
    for (const auto& name : captured_names(model, nodes[n])) read(name, true);
  }
  for (const auto& output : model.graph.outputs) {
    const auto found = values_.find(output.name);
    if (found == values_.end() || !found->second.defined()) {
      throw bad_input(fmt::format("model '{}': graph output '{}' is not defined anywhere", model.path.string(),
                                  printable(output.name)));
    }
    found->second.output = true;
  }
}

const Index::Value* Index::find(std::string_view value) const {
  const auto found = values_.find(value);
  return found == values_.end() ? nullptr : &found->second;
}
int Index::producer(std::string_view value) const {
  const Value* v = find(value);
  return v == nullptr ? kNone : v->producer;
}
std::span<const int> Index::consumers(std::string_view value) const {
  const Value* v = find(value);
  return v == nullptr ? std::span<const int>() : std::span<const int>(v->consumers);
}
bool Index::is_captured(std::string_view value) const {
  const Value* v = find(value);
  return v != nullptr && v->captured;
}
int Index::initializer(std::string_view value) const {
  const Value* v = find(value);
  return v == nullptr ? kNone : v->initializer;
}
bool Index::is_input(std::string_view value) const {
  const Value* v = find(value);
  return v != nullptr && v->input;
}
bool Index::is_output(std::string_view value) const {
  const Value* v = find(value);
  return v != nullptr && v->output;
}

std::string Index::fresh_name(const std::string& wanted) {
  std::string name = wanted;
  for (int n = 1; knows(name) || node_names_.contains(name); ++n) name = fmt::format("{}_{}", wanted, n);
  values_[name];
  return name;
}

std::vector<bool> depends_on_input(const onnx::Model& model, const Index& index) {
  const auto& nodes = model.graph.nodes;
  std::vector<bool> depends(nodes.size(), false);
  const auto is_variable = [&](const std::string& name) {
    if (const int p = index.producer(name); p != kNone) return static_cast<bool>(depends[static_cast<std::size_t>(p)]);
    return index.is_input(name);  // an initializer that is also an input may be overridden by the caller
  };
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    bool variable = has_trait(nodes[n], Trait::random);
    for (const auto& name : nodes[n].inputs()) variable = variable || (!name.empty() && is_variable(name));
    for (const auto& name : captured_names(model, nodes[n])) variable = variable || is_variable(name);
    depends[n] = variable;
  }
  return depends;
}

void sort_topologically(onnx::Model& model) {
  const Index index(model);
  auto& nodes = model.graph.nodes;
  std::vector<int> missing(nodes.size(), 0);
  std::vector<std::vector<int>> readers(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    for (const auto& name : nodes[n].outputs()) {
      for (const int reader : index.consumers(name)) {
        readers[n].push_back(reader);
        ++missing[static_cast<std::size_t>(reader)];
      }
    }
  }
  std::set<int> ready;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (missing[n] == 0) ready.insert(static_cast<int>(n));
  }
  std::vector<onnx::Node> sorted;
  sorted.reserve(nodes.size());
  while (!ready.empty()) {
    const auto n = static_cast<std::size_t>(*ready.begin());
    ready.erase(ready.begin());
    sorted.push_back(nodes[n]);
    for (const int reader : readers[n]) {
      if (--missing[static_cast<std::size_t>(reader)] == 0) ready.insert(reader);
    }
  }
  if (sorted.size() != nodes.size())
    throw bad_input(fmt::format("model '{}': the graph has a cycle", model.path.string()));
  nodes = std::move(sorted);
}

void add_initializers(const onnx::Model& model, ValueTypes& types) {
  for (const auto& tensor : model.graph.initializers) {
    std::vector<onnx::Dim> dims;
    for (const auto d : tensor.dims) dims.push_back({d, ""});
    types[tensor.name] = {tensor.type, std::move(dims)};
  }
}

onnx::DataType type_of(const onnx::Model& model, const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found != types.end()) return found->second.type;
  const auto& initializers = model.graph.initializers;
  const auto tensor =
      std::find_if(initializers.begin(), initializers.end(), [&](const auto& t) { return t.name == value; });
  return tensor == initializers.end() ? onnx::DataType::undefined : tensor->type;
}

std::optional<std::vector<std::int64_t>> static_shape(const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found == types.end() || !found->second.shape) return std::nullopt;
  std::vector<std::int64_t> shape;
  for (const auto& dim : *found->second.shape) {
    if (!dim.is_static()) return std::nullopt;
    shape.push_back(dim.value);
  }
  return shape;
}

std::optional<std::uint64_t> static_bytes(const ValueTypes& types, const std::string& value) {
  const auto shape = static_shape(types, value);
  if (!shape || onnx::bits_of(types.at(value).type) == 0) return std::nullopt;
  const auto count = onnx::element_count(*shape);
  return count ? onnx::byte_count(types.at(value).type, *count) : std::nullopt;
}

std::optional<std::size_t> rank_of(const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found == types.end() || !found->second.shape) return std::nullopt;
  return found->second.shape->size();
}

bool is_body(const onnx::Attribute& attribute) noexcept {
  using Kind = onnx::Attribute::Kind;
  return attribute.kind() == Kind::g || attribute.kind() == Kind::graphs;
}

bool has_body(const onnx::Node& node) noexcept {
  return std::any_of(node.attributes().begin(), node.attributes().end(), is_body);
}

std::vector<onnx::Graph> read_bodies(const onnx::Model& model, const onnx::Node& node) {
  std::vector<onnx::Graph> bodies;
  for (const auto& attribute : node.attributes()) {
    if (!is_body(attribute)) continue;
    for (const auto& wire : attribute.as_graphs()) {
      const bool in_file = model.file && model.file->contains(as_byte_span(wire.view()));
      bodies.push_back(
          onnx::read_graph(wire, in_file ? model.file : nullptr, *model.external, "body of " + node.label()));
    }
  }
  return bodies;
}

std::vector<bool> cuts_inside_bodies(const onnx::Model& model) {
  std::vector<bool> inside(model.graph.nodes.size() + 1, false);
  if (model.bodies.empty()) return inside;
  const auto body_of = onnx::body_of_nodes(model);
  std::vector<std::size_t> first(model.bodies.size() + 1, inside.size());  // node of each body
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    for (int body = body_of[n]; body != 0; body = model.bodies[static_cast<std::size_t>(body - 1)].around) {
      auto& found = first[static_cast<std::size_t>(body)];
      found = std::min(found, n);
    }
  }
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    for (const int body : model.graph.nodes[n].bodies()) {
      for (std::size_t cut = first[static_cast<std::size_t>(body)] + 1; cut <= n; ++cut) inside[cut] = true;
    }
  }
  return inside;
}

namespace {

std::optional<std::size_t> told_rank(const ValueTypes& types, const std::string& name) {
  const auto shape = told_shape(types, name);
  return shape ? std::optional(shape->size()) : std::nullopt;
}

std::optional<std::size_t> stated_rank(const onnx::Model& model, const Index& index, const std::string& name) {
  const int constant = index.initializer(name);
  if (constant != kNone) return model.graph.initializers[static_cast<std::size_t>(constant)].dims.size();
  for (const auto* infos : {&model.graph.inputs, &model.graph.value_infos}) {
    const auto found = std::find_if(infos->begin(), infos->end(), [&](const auto& info) { return info.name == name; });
    if (found != infos->end() && found->shape) return found->shape->size();
  }
  return std::nullopt;
}

// Of what a body of a Scan gives: as told of it; else a state has the rank that it has at first, and what is put
// together along a new axis has one more outside.
std::optional<std::size_t> rank_in_scan(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                        const onnx::Node& scan, std::size_t output) {
  const auto own = onnx::inputs_before_unfolding(model, scan);
  if (const auto told = told_rank(types, scan.inputs()[own + output])) return told;
  const auto scanned = static_cast<std::size_t>(std::max<std::int64_t>(scan.int_or("num_scan_inputs", 0), 0));
  if (scanned > own) return std::nullopt;
  if (output < own - scanned) {
    const auto stated = stated_rank(model, index, scan.inputs()[output]);
    return stated ? stated : told_rank(types, scan.inputs()[output]);
  }
  if (output >= scan.outputs().size()) return std::nullopt;
  const auto outside = told_rank(types, scan.outputs()[output]);
  return outside ? std::optional(*outside - 1) : std::nullopt;
}

}  // namespace

std::vector<int> state_scan_ranks(onnx::Model& model, const ValueTypes& types) {
  const auto is_scan = [](const onnx::Node& node) { return node.is("Scan") && !node.bodies().empty(); };
  if (std::none_of(model.graph.nodes.begin(), model.graph.nodes.end(), is_scan)) return {};
  const Index index(model);
  std::vector<int> unknown;
  for (const auto& node : model.graph.nodes) {
    if (!is_scan(node)) continue;
    const int body = node.bodies().front();
    auto& outputs = model.bodies[static_cast<std::size_t>(body - 1)].outputs;
    const auto first = onnx::inputs_before_unfolding(model, node);
    bool all = true;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].shape) continue;
      const auto rank = rank_in_scan(model, index, types, node, o);
      all = all && rank.has_value();
      if (!rank) continue;
      const auto found = types.find(node.inputs()[first + o]);
      const auto type = found != types.end() ? found->second.type : outputs[o].type;
      outputs[o] = onnx::make_value_info(outputs[o].name, type, std::vector<onnx::Dim>(*rank));
    }
    if (!all) unknown.push_back(body);
  }
  return unknown;
}

}  // namespace detent::graph
