#include "onnx/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <protozero/pbf_reader.hpp>

#include "base/error.h"
#include "onnx/model.h"

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

template <class Fn>
void each(pbf_reader reader, Fn fn) {
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

pbf_reader reader_of(std::string_view message) { return {message.data(), message.size()}; }

// Calls fn(domain, op_type) for a node and those of its bodies, the innermost first.
// NodeProto: op_type 4, attribute 5, domain 7. AttributeProto: g 6, graphs 11. GraphProto: node 1.
template <class Fn>
void each_node(std::string_view node, int depth, const Fn& fn) {
  if (depth > kMaxDepth) return;  // refused where bodies are read
  std::string_view op_type, domain;
  each(reader_of(node), [&](auto number, std::string_view value) {
    if (number == 4) op_type = value;
    if (number == 7) domain = value;
    if (number != 5) return;
    each(reader_of(value), [&](auto field, std::string_view graph) {
      if (field != 6 && field != 11) return;
      each(reader_of(graph), [&](auto of_graph, std::string_view inner) {
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
  each(reader_of(payload), [&](auto number, std::string_view value) {
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

}  // namespace detent::onnx
