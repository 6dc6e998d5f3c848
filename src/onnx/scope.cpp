#include "onnx/scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <protozero/pbf_reader.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "onnx/local_functions.h"
#include "onnx/model.h"

namespace detent::onnx {
namespace {

using protozero::pbf_wire_type;

constexpr int kGiven = -1;  // no node makes it: an input or a constant

// Calls fn(number, value) for each field of a message that has a length.
template <class Fn>
void each(std::string_view message, Fn fn) {
  protozero::pbf_reader reader(message.data(), message.size());
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
