#include "graph/rewrites/unfold.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "onnx/bodies.h"
#include "onnx/functions.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using onnx::Node;

constexpr int kMaxDepth = 64;  // as where captured names are read

// What bodies and functions may take in memory where they are unfolded: less than any budget, and what grows with the
// file in any case.
constexpr std::uint64_t kMostUnfolded = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostPerByte = 16;
constexpr std::uint64_t kPartOfMemory = 8;  // the runtime and each copy of the model hold the same names once more

// What a value takes where a model is read, asked for types, changed and written, with the node that makes it; and a
// process without a model. Measured on chains of 10,000 to 95,000 nodes and on nodes with as many inputs or outputs.
constexpr std::uint64_t kBytesPerValue = 3 << 10, kBytesOfProcess = std::uint64_t{40} << 20;

// Of a smaller graph the plan of a run tells the smallest budget that works.
constexpr std::uint64_t kSmallGraph = 16 << 20;

// What a node takes without the values of its attributes, which are views of the file. Only of one as it was read.
std::uint64_t size_of(const Node& node) {
  std::uint64_t size =
      node.encode().view().size() + sizeof(std::string) * (node.inputs().size() + node.outputs().size());
  for (const auto& attribute : node.attributes())
    size += sizeof(onnx::Attribute) + attribute.name().size() - attribute.raw().view().size();
  return size;
}

// A call of a function, whose nodes have attributes of it.
struct Call {
  const onnx::LocalFunction* function = nullptr;
  std::vector<onnx::Attribute> attributes;

  const onnx::Attribute* attribute(const std::string& name) const {
    for (const auto* all : {&attributes, &function->defaults}) {
      const auto found = std::find_if(all->begin(), all->end(), [&](const auto& a) { return a.name() == name; });
      if (found != all->end()) return &*found;
    }
    return nullptr;
  }
};

// What names are called, from a body to those around it. A function sees nothing around it.
struct Scope {
  const Scope* around = nullptr;
  const Call* call = nullptr;  // that the nodes belong to
  std::unordered_map<std::string, std::string> names = {};

  const std::string& of(const std::string& name) const {
    for (const auto* scope = this; scope != nullptr; scope = scope->around) {
      if (const auto found = scope->names.find(name); found != scope->names.end()) return found->second;
    }
    return name;
  }
};

class Unfolding {
 public:
  Unfolding(onnx::Model& model, const UnfoldLimits& limits)
      : model_(model),
        limits_(limits),
        functions_(onnx::read_functions(model)),
        most_(kMostUnfolded + kMostPerByte * (model.file ? model.file->bytes().size() : 0)) {
    for (const auto& infos : {model.graph.inputs, model.graph.value_infos}) {
      for (const auto& info : infos) names_.insert(info.name);
    }
    for (const auto& tensor : model.graph.initializers) names_.insert(tensor.name);
    for (const auto& node : model.graph.nodes) {
      names_.insert(node.name());
      names_.insert(node.outputs().begin(), node.outputs().end());
      for (auto& name : captured_names_of(node)) names_.insert(std::move(name));
    }
  }

  void run() {
    find_calls();
    const auto nodes = std::move(model_.graph.nodes);
    model_.graph.nodes.clear();
    for (const auto& node : nodes) {
      if (callee(node) != nullptr || (has_body(node) && can_be(node, 0))) {
        add(node, main_, 0, {});
      } else {
        model_.graph.nodes.push_back(node);
      }
    }
    forget_functions();
  }

 private:
  // Also of those that are defined nowhere, so that no body takes such a name.
  std::vector<std::string> captured_names_of(const Node& node) const {
    return has_body(node) ? captured_names(model_, node) : std::vector<std::string>();
  }

  // Functions that can be put in place of their calls.
  void find_calls() {
    if (functions_.empty() || onnx::check_functions(model_, "the model") > kMostInlined) return;
    for (const auto& function : functions_) {
      const auto fits = [&](const auto& opset) {
        const auto own = model_.opset(opset.domain);
        return own == opset.version || (own == 0 && !opset.domain.empty());
      };
      const bool inlined = function.overload.empty() &&
                           std::none_of(function.defaults.begin(), function.defaults.end(), is_body) &&
                           std::all_of(function.opsets.begin(), function.opsets.end(), fits) &&
                           std::all_of(function.nodes.begin(), function.nodes.end(),
                                       [&](const auto& node) { return !has_body(node) || can_be(node, 0); });
      if (!inlined) continue;
      callees_[function.domain + "::" + function.name] = &function;
      for (const auto& opset : function.opsets) {
        if (model_.opset(opset.domain) == 0) model_.set_opset(opset.domain, opset.version);
      }
    }
  }

  const onnx::LocalFunction* callee(const Node& node) const {
    if (callees_.empty() || node.domain().empty()) return nullptr;
    if (has_body(node)) return nullptr;  // its body belongs to what is around the call, not to the function
    const auto found = callees_.find(node.domain() + "::" + node.op_type());
    return found == callees_.end() ? nullptr : found->second;
  }

  // What stays may call the others.
  void forget_functions() {
    std::erase_if(model_.functions, [&](const auto& name) { return callees_.contains(name); });
    const auto& nodes = model_.graph.nodes;
    if (!model_.functions.empty() || std::any_of(nodes.begin(), nodes.end(), has_body)) return;
    std::erase_if(model_.other, [](const auto& field) { return field.number == onnx::kFunctionField; });
  }

  bool can_be(const Node& node, int depth) const {
    // A Scan of opset 8 has another list of inputs.
    const bool is_known = node.is("If") || node.is("Loop") || (node.is("Scan") && model_.opset() >= 9);
    const auto& attributes = node.attributes();
    if (!is_known || depth > kMaxDepth) return false;
    if (std::any_of(attributes.begin(), attributes.end(),
                    [](const auto& a) { return is_body(a) && a.as_graphs().size() != 1; }))
      return false;
    for (const auto& body : read_bodies(model_, node)) {
      if (!body.sparse_initializers.empty() || !defines_each_once(body)) return false;
      for (const auto& inner : body.nodes) {
        if (has_body(inner) && !can_be(inner, depth + 1)) return false;
      }
    }
    return true;
  }

  static bool defines_each_once(const onnx::Graph& body) {
    std::unordered_set<std::string> names;
    const auto define = [&](const std::string& name) { return name.empty() || names.insert(name).second; };
    const auto defines = [&](const auto& all) {
      return std::all_of(all.begin(), all.end(), [&](const auto& each) { return define(each.name); });
    };
    return defines(body.inputs) && defines(body.initializers) &&
           std::all_of(body.nodes.begin(), body.nodes.end(), [&](const auto& node) {
             return std::all_of(node.outputs().begin(), node.outputs().end(), define);
           });
  }

  void take(std::uint64_t bytes) {
    taken_ += bytes;
    if (limits_.stop.stop_requested()) throw interrupted();
    if (limits_.memory && taken_ > *limits_.memory / kPartOfMemory)
      throw resource_error(
          fmt::format("model '{}': its bodies and functions come to more than {} where they are put in "
                      "place, which the memory budget of {} has no room for",
                      model_.path.string(), format_size(*limits_.memory / kPartOfMemory), format_size(*limits_.memory)),
          "raise --memory-budget");
    if (taken_ <= most_) return;
    throw bad_input(fmt::format("model '{}': its bodies and functions come to more than {} of names where they are put "
                                "in place",
                                model_.path.string(), format_size(most_)),
                    "give nodes and values shorter names, and look for functions that call each other many times");
  }

  std::string unique(const std::string& name, const std::string& path) {
    if (name.empty() || names_.insert(name).second) return name;
    take(path.size() + name.size());
    const std::string wanted = path + "/" + name;
    std::string made = wanted;
    if (names_.insert(made).second) return made;
    for (int& i = numbers_[wanted];;) {
      made = fmt::format("{}_{}", wanted, ++i);
      if (names_.insert(made).second) return made;
    }
  }

  void add(Node node, const Scope& scope, int body, const std::string& path) {
    if (&scope != &main_) take(size_of(node));
    const std::string inside = inside_of(path, node.id());  // not by the name that it gets, which has the path in it
    if (scope.call != nullptr) fill_in(node, *scope.call);
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (const auto& name = scope.of(node.inputs()[i]); name != node.inputs()[i]) node.set_input(i, name);
    }
    for (std::size_t o = 0; o < node.outputs().size(); ++o) {
      if (const auto& name = scope.of(node.outputs()[o]); name != node.outputs()[o]) node.set_output(o, name);
    }
    if (&scope != &main_) {
      if (auto name = unique(node.name(), path); name != node.name()) node.set_name(std::move(name));
    }
    node.set_body(body);
    if (const auto* function = callee(node)) return add_call(node, *function, body, inside);
    if (has_body(node)) add_bodies(node, scope, body, inside);
    model_.graph.nodes.push_back(std::move(node));
  }

  // Attributes that are the call's.
  static void fill_in(Node& node, const Call& call) {
    const auto attributes = node.attributes();
    for (const auto& attribute : attributes) {
      const auto reference = onnx::reference_of(attribute);
      if (reference.empty()) continue;
      node.remove_attribute(attribute.name());
      if (const auto* given = call.attribute(reference)) node.set_attribute(onnx::renamed(*given, attribute.name()));
    }
  }

  void add_call(const Node& node, const onnx::LocalFunction& function, int body, const std::string& inside) {
    take(sizeof(std::string) * (function.inputs.size() + function.outputs.size()));
    const Call call{&function, node.attributes()};
    Scope scope{nullptr, &call};
    for (std::size_t i = 0; i < function.inputs.size(); ++i)
      scope.names[function.inputs[i]] = i < node.inputs().size() ? node.inputs()[i] : std::string();
    std::vector<std::pair<std::string, std::string>> passed;  // inputs that are outputs as well
    for (std::size_t o = 0; o < function.outputs.size() && o < node.outputs().size(); ++o) {
      const auto& output = node.outputs()[o];
      if (output.empty()) continue;
      const auto [found, is_new] = scope.names.try_emplace(function.outputs[o], output);
      if (!is_new) passed.emplace_back(found->second, output);
    }
    for (const auto& inner : function.nodes) {
      for (const auto& name : inner.outputs()) {
        if (name.empty() || scope.names.contains(name)) continue;
        const auto shared = constants_.find({&function, name});
        scope.names[name] = shared != constants_.end() ? shared->second : unique(name, inside);
      }
    }
    for (const auto& inner : function.nodes) {
      const auto& name = inner.outputs().empty() ? inner.name() : inner.outputs().front();
      const bool is_shared = is_own_constant(inner) && !is_output(function, name);
      if (is_shared && !constants_.try_emplace({&function, name}, scope.of(name)).second) continue;
      add(inner, scope, is_shared ? 0 : body, inside);
    }
    for (const auto& [from, to] : passed) {
      Node identity("Identity", unique(to, inside), {from}, {to});
      identity.set_body(body);
      model_.graph.nodes.push_back(std::move(identity));
    }
  }

  // One that is the same in all calls.
  static bool is_own_constant(const Node& node) {
    return node.is("Constant") && std::all_of(node.attributes().begin(), node.attributes().end(),
                                              [](const auto& a) { return onnx::reference_of(a).empty(); });
  }
  static bool is_output(const onnx::LocalFunction& function, const std::string& name) {
    return std::find(function.outputs.begin(), function.outputs.end(), name) != function.outputs.end();
  }

  static std::string inside_of(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "/" + name;
  }

  void add_bodies(Node& node, const Scope& scope, int around, const std::string& path) {
    auto graphs = read_bodies(model_, node);
    const auto attributes = node.attributes();
    auto inputs = node.inputs();
    std::vector<int> bodies;
    std::size_t next = 0;
    for (const auto& attribute : attributes) {
      if (!is_body(attribute)) continue;
      node.remove_attribute(attribute.name());
      auto& graph = graphs.at(next++);
      model_.bodies.push_back({attribute.name(), around, graph.inputs, graph.outputs, graph.other});
      bodies.push_back(static_cast<int>(model_.bodies.size()));
      const std::string inside = path + "/" + attribute.name();
      for (auto& output : add_body(graph, scope, bodies.back(), inside)) inputs.push_back(std::move(output));
    }
    node.set_inputs(std::move(inputs));
    node.set_bodies(std::move(bodies));
  }

  // Gives back what its outputs are called.
  std::vector<std::string> add_body(onnx::Graph& graph, const Scope& around, int body, const std::string& path) {
    take(sizeof(onnx::ValueInfo) * (graph.inputs.size() + graph.outputs.size() + graph.value_infos.size()) +
         sizeof(onnx::Tensor) * graph.initializers.size() + sizeof(onnx::RawField) * graph.other.size());
    Scope scope{&around, around.call};
    const auto define = [&](const std::string& name) -> const std::string& {
      return scope.names.try_emplace(name, unique(name, path)).first->second;
    };
    std::vector<std::string> inputs;
    for (const auto& input : graph.inputs) inputs.push_back(define(input.name));
    if (!inputs.empty()) {
      Node made(onnx::kBodyInputs, unique(path + "/inputs", path), {}, std::move(inputs), {}, onnx::kPrivateDomain);
      made.set_body(body);
      model_.graph.nodes.push_back(std::move(made));
    }
    for (auto& tensor : graph.initializers) {
      if (const auto& name = define(tensor.name); name != tensor.name) {
        tensor.name = name;
        tensor.raw = {};  // the message carries another name
      }
      model_.graph.initializers.push_back(std::move(tensor));
    }
    for (const auto& node : graph.nodes) {
      for (const auto& name : node.outputs()) define(name);
    }
    for (auto& node : graph.nodes) add(std::move(node), scope, body, path);
    for (const auto& info : graph.value_infos)
      model_.graph.value_infos.push_back(onnx::renamed(info, scope.of(info.name)));
    std::vector<std::string> outputs;
    for (const auto& output : graph.outputs) outputs.push_back(scope.of(output.name));
    return outputs;
  }

  onnx::Model& model_;
  const UnfoldLimits& limits_;
  const std::vector<onnx::LocalFunction> functions_;
  std::unordered_map<std::string, const onnx::LocalFunction*> callees_;
  std::map<std::pair<const onnx::LocalFunction*, std::string>, std::string> constants_;  // by their names in there
  const Scope main_ = {};
  std::unordered_set<std::string> names_;
  std::unordered_map<std::string, int> numbers_;  // that names got because they were taken
  const std::uint64_t most_;                      // that may be unfolded
  std::uint64_t taken_ = 0;
};

}  // namespace

void require_room(const onnx::Model& model, const std::optional<std::uint64_t>& memory) {
  if (!memory) return;
  const auto& graph = model.graph;
  std::uint64_t values = graph.inputs.size() + graph.initializers.size() + graph.outputs.size();
  for (const auto& node : graph.nodes) values += node.outputs().size();
  const auto taken = kBytesPerValue * values;
  if (taken <= kSmallGraph || taken + kBytesOfProcess <= *memory) return;
  throw resource_error(
      fmt::format("model '{}' has {} nodes and {} values, which take about {}; the memory budget is {}",
                  model.path.string(), graph.nodes.size(), values, format_size(taken + kBytesOfProcess),
                  format_size(*memory)),
      "raise --memory-budget");
}

void unfold(onnx::Model& model, const UnfoldLimits& limits) {
  const auto& nodes = model.graph.nodes;
  require_room(model, limits.memory);
  if (model.functions.empty() && std::none_of(nodes.begin(), nodes.end(), has_body)) return;
  Unfolding(model, limits).run();
  take_constant_branches(model);
  require_room(model, limits.memory);
}

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
