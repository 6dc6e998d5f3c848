#include "onnx/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace detent::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

constexpr std::array<std::string_view, 9> kOwnDomains{"",
                                                      "ai.onnx",
                                                      "ai.onnx.ml",
                                                      "ai.onnx.training",
                                                      "ai.onnx.preview.training",
                                                      "com.microsoft",
                                                      "com.microsoft.nchwc",
                                                      "com.ms.internal.nhwc",
                                                      kPrivateDomain};
constexpr int kMaxDepth = 64;   // of bodies, as elsewhere
constexpr int kMaxCalls = 100;  // of functions that call functions

// Calls by function, and other nodes.
struct Uses {
  std::uint64_t nodes = 0;
  std::map<std::string, std::uint64_t> calls;
};

struct Function {
  Uses uses;
  std::uint64_t expanded = 0;
  enum { untouched, open, done } state = untouched;
};

using Functions = std::map<std::string, Function>;

std::string name_of(std::string_view domain, std::string_view op_type) {
  return fmt::format("{}::{}", domain, op_type);
}

pbf_reader reader_of(std::string_view message) { return {message.data(), message.size()}; }

template <class Fn>
void each(std::string_view message, Fn fn) {
  auto reader = reader_of(message);
  while (reader.next()) {
    if (reader.wire_type() == pbf_wire_type::length_delimited) {
      const auto number = reader.tag();
      const auto view = reader.get_view();
      fn(number, std::string_view(view.data(), view.size()));
    } else {
      reader.skip();
    }
  }
}

// Calls fn(domain, op_type) for a node and those of its bodies, the innermost first.
// NodeProto: op_type 4, attribute 5, domain 7. AttributeProto: g 6, graphs 11. GraphProto: node 1.
template <class Fn>
void each_node(std::string_view node, int depth, const Fn& fn) {
  if (depth > kMaxDepth) return;  // refused where bodies are read
  std::string_view op_type, domain;
  each(node, [&](auto number, std::string_view value) {
    if (number == 4) op_type = value;
    if (number == 7) domain = value;
    if (number != 5) return;
    each(value, [&](auto field, std::string_view graph) {
      if (field != 6 && field != 11) return;
      each(graph, [&](auto of_graph, std::string_view inner) {
        if (of_graph == 1) each_node(inner, depth + 1, fn);
      });
    });
  });
  fn(domain, op_type);
}

void check_domain(std::string_view domain, std::string_view op_type, const std::string& where) {
  if (domain != kPrivateDomain) return;
  throw bad_input(
      fmt::format("{}: operator '{}' is of the domain '{}', which is detent's own", where, printable(op_type), domain),
      "give the model as it was before");
}

void add_node(std::string_view node, Uses& uses, const std::string& where) {
  each_node(node, 0, [&](std::string_view domain, std::string_view op_type) {
    check_domain(domain, op_type, where);
    ++uses.nodes;
    ++uses.calls[name_of(domain, op_type)];
  });
}

// FunctionProto: name 1, node 7, domain 10.
void add_function(std::string_view payload, Functions& functions, const std::string& where) {
  std::string_view name, domain;
  Uses uses;
  each(payload, [&](auto number, std::string_view value) {
    if (number == 1) name = value;
    if (number == 10) domain = value;
    if (number == 7) add_node(value, uses, where);
  });
  if (std::find(kOwnDomains.begin(), kOwnDomains.end(), domain) != kOwnDomains.end()) {
    throw bad_input(fmt::format("{}: function '{}' is in the domain '{}', which belongs to the runtime's operators",
                                where, printable(name), printable(domain)),
                    "give the function a domain of its own");
  }
  Function& function = functions[name_of(domain, name)];
  if (uses.nodes >= function.uses.nodes) function.uses = std::move(uses);  // overloads: the largest
}

std::uint64_t expanded(const Uses& uses, Functions& functions, int depth, const std::string& where);

std::uint64_t expanded(const std::string& name, Functions& functions, int depth, const std::string& where) {
  Function& function = functions.at(name);
  if (function.state == Function::open)
    throw bad_input(fmt::format("{}: function '{}' calls itself", where, printable(name)));
  if (depth > kMaxCalls) throw bad_input(fmt::format("{}: functions call each other too deeply", where));
  if (function.state == Function::untouched) {
    function.state = Function::open;
    function.expanded = expanded(function.uses, functions, depth + 1, where);
    function.state = Function::done;
  }
  return function.expanded;
}

// Sums stay far from overflow: what is too large is refused before anything is multiplied by it.
std::uint64_t expanded(const Uses& uses, Functions& functions, int depth, const std::string& where) {
  std::uint64_t nodes = uses.nodes;
  for (const auto& [name, calls] : uses.calls) {
    if (!functions.contains(name)) continue;
    const std::uint64_t size = expanded(name, functions, depth, where);
    if (size > 0) nodes += std::min(calls, kMaxExpandedNodes / size + 1) * size;
    if (nodes > kMaxExpandedNodes) {
      throw bad_input(
          fmt::format("{}: its functions come to more than {} nodes where they are called", where, kMaxExpandedNodes),
          "inline them in part, and look for functions that call each other many times");
    }
  }
  return nodes;
}

}  // namespace

std::uint64_t check_functions(const Model& model, const std::string& where) {
  Functions functions;
  for (const auto& field : model.other) {
    if (field.number == 25) add_function(payload_of(field), functions, where);
  }
  if (functions.empty()) {  // then nothing is called, and nothing has to be counted
    for (const auto& node : model.graph.nodes) {
      each_node(node.encode().view(), 0, [&](auto domain, auto op_type) { check_domain(domain, op_type, where); });
    }
    return model.graph.nodes.size();
  }
  Uses uses;
  for (const auto& node : model.graph.nodes) add_node(node.encode().view(), uses, where);
  const auto nodes = expanded(uses, functions, 0, where);
  for (const auto& [name, function] : functions) expanded(name, functions, 0, where);  // also those without a caller
  return nodes;
}

namespace {

OpsetImport opset_of(const Wire& raw) {
  OpsetImport opset;
  auto reader = reader_of(raw.view());
  while (reader.next()) {
    if (reader.tag() == 1 && reader.wire_type() == pbf_wire_type::length_delimited) {
      opset.domain = reader.get_string();
    } else if (reader.tag() == 2 && reader.wire_type() == pbf_wire_type::varint) {
      opset.version = reader.get_int64();
    } else {
      reader.skip();
    }
  }
  if (opset.domain == "ai.onnx") opset.domain.clear();
  return opset;
}

LocalFunction function_of(const Wire& raw) {
  LocalFunction function;
  auto reader = reader_of(raw.view());
  while (reader.next()) {
    if (reader.wire_type() != pbf_wire_type::length_delimited) {
      reader.skip();
      continue;
    }
    const auto number = reader.tag();
    const auto data = reader.get_view();
    const std::string_view view(data.data(), data.size());
    switch (number) {
      case 1: function.name = view; break;
      case 4: function.inputs.emplace_back(view); break;
      case 5: function.outputs.emplace_back(view); break;
      case 7: function.nodes.emplace_back(raw.part(view)); break;
      case 9: function.opsets.push_back(opset_of(raw.part(view))); break;
      case 10: function.domain = view; break;
      case 11: function.defaults.emplace_back(raw.part(view)); break;
      case 13: function.overload = view; break;
      default: break;
    }
  }
  return function;
}

}  // namespace

std::vector<LocalFunction> read_functions(const Model& model) {
  std::vector<LocalFunction> functions;
  with_damage_as_bad_input("a model-local function", [&] {
    for (const auto& field : model.other) {
      if (field.number == kFunctionField) functions.push_back(function_of(field.wire.part(payload_of(field))));
    }
  });
  return functions;
}

std::string reference_of(const Attribute& attribute) {
  constexpr std::uint32_t kRefAttrName = 21;
  auto reader = reader_of(attribute.raw().view());
  while (reader.next()) {
    if (reader.tag() == kRefAttrName && reader.wire_type() == pbf_wire_type::length_delimited)
      return reader.get_string();
    reader.skip();
  }
  return {};
}

Attribute renamed(const Attribute& attribute, const std::string& name) {
  std::string bytes;
  protozero::pbf_writer(bytes).add_string(1, name);
  auto reader = reader_of(attribute.raw().view());
  const char* begin = reader.data().data();
  while (reader.next()) {
    const auto number = reader.tag();
    reader.skip();
    if (number != 1) bytes.append(begin, static_cast<std::size_t>(reader.data().data() - begin));
    begin = reader.data().data();
  }
  return Attribute(Wire::own(std::move(bytes)));
}

namespace {

constexpr int kGiven = -1;  // no node makes it: an input or a constant

std::string_view text_in(std::string_view message, std::uint32_t field) {
  std::string_view text;
  each(message, [&](auto number, std::string_view value) {
    if (number == field) text = value;
  });
  return text;
}

// NodeProto: input 1, output 2, attribute 5. AttributeProto: g 6, graphs 11.
struct NodeNames {
  std::string_view wire;
  std::vector<std::string_view> reads, makes, bodies;

  explicit NodeNames(std::string_view node) : wire(node) {
    each(node, [&](auto number, std::string_view value) {
      if (number == 1 && !value.empty()) reads.push_back(value);
      if (number == 2 && !value.empty()) makes.push_back(value);
      if (number != 5) return;
      each(value, [&](auto field, std::string_view graph) {
        if (field == 6 || field == 11) bodies.push_back(graph);
      });
    });
  }

  std::string label() const { return Node(Wire(wire, nullptr)).label(); }
};

struct GraphNames {
  std::string output, whose;  // what one is called in messages, before its name and behind it
  std::vector<NodeNames> nodes;
  std::vector<std::string_view> given, outputs;
};

// GraphProto: node 1, initializer 5, input 11, output 12, sparse_initializer 15. TensorProto: name 8.
GraphNames body_names(std::string_view graph, const NodeNames& holder) {
  GraphNames names{fmt::format("node {}: output", holder.label()), " of its body", {}, {}, {}};
  each(graph, [&](auto number, std::string_view value) {
    if (number == 1) names.nodes.emplace_back(value);
    if (number == 5) names.given.push_back(text_in(value, 8));
    if (number == 11) names.given.push_back(text_in(value, 1));
    if (number == 12) names.outputs.push_back(text_in(value, 1));
    if (number == 15) names.given.push_back(text_in(text_in(value, 1), 8));
  });
  return names;
}

// FunctionProto: input 4, output 5, node 7.
GraphNames function_names(std::string_view function) {
  GraphNames names{"output", "", {}, {}, {}};
  each(function, [&](auto number, std::string_view value) {
    if (number == 4) names.given.push_back(value);
    if (number == 5) names.outputs.push_back(value);
    if (number == 7) names.nodes.emplace_back(value);
  });
  return names;
}

GraphNames main_names(const Model& model) {
  const auto& graph = model.graph;
  GraphNames names{"graph output", "", {}, {}, {}};
  for (const auto& node : graph.nodes) names.nodes.emplace_back(node.encode().view());
  for (const auto& tensor : graph.initializers) names.given.push_back(tensor.name);
  for (const auto& input : graph.inputs) names.given.push_back(input.name);
  for (const auto& name : graph.sparse_initializers) names.given.push_back(name);
  for (const auto& output : graph.outputs) names.outputs.push_back(output.name);
  return names;
}

// What the bodies of a graph's nodes define, at any depth.
void add_inner(const GraphNames& graph, std::unordered_set<std::string_view>& defined) {
  for (const auto& node : graph.nodes) {
    for (const auto& wire : node.bodies) {
      const auto body = body_names(wire, node);
      defined.insert(body.given.begin(), body.given.end());
      for (const auto& inner : body.nodes) defined.insert(inner.makes.begin(), inner.makes.end());
      add_inner(body, defined);
    }
  }
}

using Names = std::unordered_set<std::string_view>;

class Scopes {
 public:
  explicit Scopes(std::string where) : where_(std::move(where)) {}

  /// The names that the graph and what is in it read of those around it.
  Names check(const GraphNames& graph) {
    open_.push_back({&graph, {}, {}, {}, 0});
    define(graph);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto& node = graph.nodes[n];
      open_.back().node = static_cast<int>(n);
      for (const auto name : node.reads)
        read(name, [&] { return fmt::format("node {}: input '{}'", node.label(), printable(name)); });
      check_bodies(node);
    }
    open_.back().node = static_cast<int>(graph.nodes.size());
    for (const auto name : graph.outputs)
      read(name, [&] { return fmt::format("{} '{}'{}", graph.output, printable(name), graph.whose); });
    check_order(open_.back());
    auto from_around = std::move(open_.back().from_around);
    open_.pop_back();
    return from_around;
  }

 private:
  struct Edge {
    int maker, reader;
    std::string_view value;
  };
  struct Open {
    const GraphNames* graph;
    std::unordered_map<std::string_view, int> makers;  // nodes of this graph, or kGiven
    std::vector<Edge> edges;
    Names from_around;
    int node;  // the one looked at
  };

  // ONNX Runtime hands a value around a node to all of its bodies, in place of a constant of that name as well.
  void check_bodies(const NodeNames& node) {
    Names own, from_around;
    for (const auto& wire : node.bodies) {
      const auto body = body_names(wire, node);
      from_around.merge(check(body));
      own.insert(body.given.begin(), body.given.end());
    }
    for (const auto name : own) {
      if (from_around.contains(name))
        throw bad_input(
            fmt::format("{}, node {}: one of its bodies has a constant '{}', and another reads the value of "
                        "that name around them",
                        where_, node.label(), printable(name)),
            "give each value a name of its own");
    }
  }

  void define(const GraphNames& graph) {
    auto& makers = open_.back().makers;
    for (const auto name : graph.given) makers.emplace(name, kGiven);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const auto name : graph.nodes[n].makes) {
        if (makers.emplace(name, static_cast<int>(n)).second) continue;
        throw bad_input(fmt::format("{}, node {}: output '{}' is already defined elsewhere", where_,
                                    graph.nodes[n].label(), printable(name)));
      }
    }
  }

  // Of a graph inside, the node that holds it reads the value.
  template <class Reader>
  void read(std::string_view name, const Reader& reader) {
    for (std::size_t depth = open_.size(); depth-- > 0;) {
      auto& graph = open_[depth];
      const auto found = graph.makers.find(name);
      if (found == graph.makers.end()) {
        graph.from_around.insert(name);
        continue;
      }
      if (found->second != kGiven) graph.edges.push_back({found->second, graph.node, name});
      if (found->second >= graph.node && is_around(depth, name)) {
        throw bad_input(
            fmt::format("{}, {} is read before its own graph defines it, and a graph around has another value "
                        "of that name",
                        where_, reader()),
            "give each value a name of its own");
      }
      return;
    }
    refuse(name, reader());
  }

  bool is_around(std::size_t depth, std::string_view name) const {
    return std::any_of(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(depth),
                       [&](const auto& around) { return around.makers.contains(name); });
  }

  [[noreturn]] void refuse(std::string_view name, const std::string& reader) const {
    std::unordered_set<std::string_view> inner;
    add_inner(*open_.front().graph, inner);
    if (!inner.contains(name)) throw bad_input(fmt::format("{}, {} is not defined anywhere", where_, reader));
    throw bad_input(fmt::format("{}, {} is a value of a body that it does not stand in", where_, reader),
                    "a node reads values of its own graph and of those around it: make the value an output of the "
                    "node that holds the body");
  }

  void check_order(const Open& open) const {
    const std::size_t count = open.graph->nodes.size();
    std::vector<std::vector<int>> readers(count);
    std::vector<std::size_t> missing(count + 1, 0);
    for (const auto& edge : open.edges) {
      readers[static_cast<std::size_t>(edge.maker)].push_back(edge.reader);
      ++missing[static_cast<std::size_t>(edge.reader)];
    }
    std::vector<std::size_t> ready;
    for (std::size_t n = 0; n < count; ++n) {
      if (missing[n] == 0) ready.push_back(n);
    }
    std::size_t done = 0;
    for (; !ready.empty(); ++done) {
      const auto next = ready.back();
      ready.pop_back();
      for (const int reader : readers[next]) {
        const auto at = static_cast<std::size_t>(reader);
        if (--missing[at] == 0 && at < count) ready.push_back(at);
      }
    }
    if (done < count) refuse_cycle(open, missing);
  }

  // Backwards along what is missing, until a node comes again.
  [[noreturn]] void refuse_cycle(const Open& open, const std::vector<std::size_t>& missing) const {
    std::vector<const Edge*> needs(open.graph->nodes.size(), nullptr);
    for (const auto& edge : open.edges) {
      const auto at = static_cast<std::size_t>(edge.reader);
      if (at < needs.size() && missing[static_cast<std::size_t>(edge.maker)] != 0) needs[at] = &edge;
    }
    const auto first = std::find_if(needs.begin(), needs.end(), [](const auto* edge) { return edge != nullptr; });
    std::vector<bool> seen(needs.size(), false);
    auto at = static_cast<std::size_t>(first - needs.begin());
    for (; !seen[at]; at = static_cast<std::size_t>(needs[at]->maker)) seen[at] = true;
    throw bad_input(fmt::format("{}, node {}: the graph has a cycle: '{}', which it reads, is made of its own results",
                                where_, open.graph->nodes[at].label(), printable(needs[at]->value)));
  }

  const std::string where_;
  std::vector<Open> open_;  // from the outermost graph to the one looked at
};

}  // namespace

void check_scope(const Model& model, const std::string& where) {
  const auto main = main_names(model);
  const bool has_bodies =
      std::any_of(main.nodes.begin(), main.nodes.end(), [](const auto& node) { return !node.bodies.empty(); });
  if (!has_bodies && model.functions.empty()) return;
  for (const auto& field : model.other) {
    if (field.number != kFunctionField) continue;
    const auto function = function_names(payload_of(field));
    Scopes(fmt::format("{}, function '{}'", where, printable(text_in(payload_of(field), 1)))).check(function);
  }
  Scopes(where).check(main);
}

}  // namespace detent::onnx
