#include "onnx/bodies.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "onnx/functions.h"
#include "onnx/write.h"

namespace detent::onnx {
namespace {

const Body& body_at(const Model& model, int body) { return model.bodies.at(static_cast<std::size_t>(body - 1)); }

bool is_dequantizer(const Node& node) { return node.op_type() == "DequantizeLinear" && !node.outputs().empty(); }
bool is_body_inputs(const Node& node) { return node.op_type() == kBodyInputs && node.domain() == kPrivateDomain; }

class Folding {
 public:
  explicit Folding(const Model& model) : model_(model) {
    for (const auto& input : model.graph.inputs) names_.insert(input.name);
    for (const auto& tensor : model.graph.initializers) names_.insert(tensor.name);
    for (const auto& output : model.graph.outputs) outputs_.insert(output.name);
    for (const auto& node : model.graph.nodes) {
      names_.insert(node.name());
      names_.insert(node.outputs().begin(), node.outputs().end());
    }
  }

  FoldedGraph run() {
    find_ranks();
    repeat_dequantizers();
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (is_body_inputs(nodes_[n])) {
        inputs_[body_of_[n]] = nodes_[n].outputs();
        continue;
      }
      of_body_[body_of_[n]].push_back(n);
      for (const auto& name : nodes_[n].outputs()) made_in_[name] = body_of_[n];
    }
    for (const auto& info : model_.graph.value_infos) {
      const auto made = made_in_.find(info.name);
      infos_[made == made_in_.end() ? 0 : made->second].push_back(info);
    }
    return {nodes_in(0), std::move(infos_[0])};
  }

 private:
  std::string fresh(const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
    return name;
  }

  // From which on Transpose takes values of the type.
  static std::int64_t opset_of_transpose(DataType type) {
    switch (type) {
      case DataType::float8e4m3fn:
      case DataType::float8e4m3fnuz:
      case DataType::float8e5m2:
      case DataType::float8e5m2fnuz:
      case DataType::int4:
      case DataType::uint4: return 21;
      case DataType::float4e2m1: return 23;
      case DataType::float8e8m0: return 24;
      case DataType::int2:
      case DataType::uint2: return 25;
      default: return 0;
    }
  }

  // Ranks of constants, and of those that a Transpose turns.
  void find_ranks() {
    const auto body_of = body_of_nodes(model_);
    for (const auto& tensor : model_.graph.initializers) {
      if (model_.opset() >= opset_of_transpose(tensor.type)) ranks_[tensor.name] = tensor.dims.size();
    }
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const Node& node = model_.graph.nodes[n];
      if (!node.is("Transpose") || node.inputs().empty() || node.outputs().empty()) continue;
      const auto found = ranks_.find(node.inputs().front());
      if (found == ranks_.end()) continue;
      ranks_.try_emplace(node.outputs().front(), found->second);
      turned_in_.try_emplace(node.outputs().front(), body_of[n]);
    }
  }

  bool is_transposed_in(const std::string& name, int body) const {
    const auto found = turned_in_.find(name);
    return found != turned_in_.end() && found->second == body;
  }

  // The runtime packs the weight of a product that it computes on few bits or with activations in float. It takes
  // integers, scales and zero points from the graph that the product stands in: it ends with an error, or by a signal,
  // where they are those of a graph around it.
  bool may_be_packed(const Node& node) const {
    if ((!node.is("MatMul") && !node.is("Gemm")) || node.inputs().size() < 2) return false;
    const auto made = made_by_.find(node.inputs()[1]);
    return made != made_by_.end() && ranks_.contains(model_.graph.nodes[made->second].inputs().front());
  }

  // A constant of the graphs around as one of the body: a Transpose that moves nothing, which the runtime computes when
  // it loads the model. So the file holds the constant once, whatever bodies read it.
  std::string own_constant(const std::string& name, int body) {
    const auto rank = ranks_.find(name);
    if (rank == ranks_.end() || is_transposed_in(name, body)) return name;
    const auto [own, is_new] = own_constants_.try_emplace({name, body});
    if (!is_new) return own->second;
    std::vector<std::int64_t> order(rank->second);
    std::iota(order.begin(), order.end(), 0);
    own->second = fresh(name + "_in_body");
    add(Node("Transpose", own->second, {name}, {own->second}, {Attribute::of_ints("perm", order)}), body);
    return own->second;
  }

  void own_constants(Node& dequantizer, int body) {
    for (std::size_t i = 0; i < dequantizer.inputs().size(); ++i)
      dequantizer.set_input(i, own_constant(dequantizer.inputs()[i], body));
  }

  // A copy stands before the first node of the body that reads it.
  void repeat_dequantizers() {
    const auto& nodes = model_.graph.nodes;
    const auto body_of = body_of_nodes(model_);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (is_dequantizer(nodes[n])) made_by_[nodes[n].outputs().front()] = n;
    }
    std::set<std::pair<std::size_t, int>> packed;  // dequantizers, and the bodies that products read them in
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (body_of[n] != 0 && may_be_packed(nodes[n])) packed.emplace(made_by_.at(nodes[n].inputs()[1]), body_of[n]);
    }
    std::map<std::pair<std::size_t, int>, std::string> copies;
    std::set<std::size_t> read;  // where they stand
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      Node node = nodes[n];
      const std::size_t own = inputs_before_unfolding(model_, node);
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        const auto made = made_by_.find(node.inputs()[i]);
        if (made == made_by_.end()) continue;
        const auto d = made->second;
        if (body_of[d] == body_of[n] || i >= own) {
          read.insert(d);
          continue;
        }
        const auto [copy, is_new] = copies.try_emplace({d, body_of[n]});
        if (is_new) {
          Node repeated = nodes[d];
          copy->second = fresh(nodes[d].outputs().front());
          repeated.set_name(fresh(nodes[d].name()));
          repeated.set_output(0, copy->second);
          if (packed.contains({d, body_of[n]})) own_constants(repeated, body_of[n]);
          add(std::move(repeated), body_of[n]);
        }
        node.set_input(i, copy->second);
      }
      if (packed.contains({n, body_of[n]})) own_constants(node, body_of[n]);
      add(std::move(node), body_of[n]);
    }
    remove_unread(copies, read);
  }

  void remove_unread(const std::map<std::pair<std::size_t, int>, std::string>& copies,
                     const std::set<std::size_t>& read) {
    std::set<std::string_view> unread;
    for (const auto& [place, copy] : copies) {
      const auto& output = model_.graph.nodes[place.first].outputs().front();
      if (!read.contains(place.first) && !outputs_.contains(output)) unread.insert(output);
    }
    std::size_t kept = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (is_dequantizer(nodes_[n]) && unread.contains(nodes_[n].outputs().front())) continue;
      if (kept != n) nodes_[kept] = std::move(nodes_[n]);
      body_of_[kept++] = body_of_[n];
    }
    nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(kept), nodes_.end());
    body_of_.resize(kept);
  }

  void add(Node node, int body) {
    nodes_.push_back(std::move(node));
    body_of_.push_back(body);
  }

  std::vector<Node> nodes_in(int body) {
    std::vector<Node> nodes;
    for (const auto n : of_body_[body]) nodes.push_back(nodes_[n].bodies().empty() ? nodes_[n] : folded(nodes_[n]));
    return nodes;
  }

  Node folded(const Node& node) {
    const auto own = static_cast<std::ptrdiff_t>(inputs_before_unfolding(model_, node));
    auto output = node.inputs().begin() + own;
    Node whole = node;
    whole.set_inputs({node.inputs().begin(), output});
    for (const int body : node.bodies()) {
      const auto end = output + std::ssize(body_at(model_, body).outputs);
      const auto graph = encode_graph(graph_of(body, {output, end}));
      whole.set_attribute(Attribute::of_messages(body_at(model_, body).attribute, Attribute::Kind::g, {graph}));
      output = end;
    }
    return whole;
  }

  // Outputs of a body have to be made in it, each by its own name.
  Graph graph_of(int body, const std::vector<std::string>& outputs) {
    const Body& declared = body_at(model_, body);
    Graph graph{nodes_in(body), {}, {}, {}, std::move(infos_[body]), {}, declared.other};
    const auto& inputs = inputs_[body];
    for (std::size_t i = 0; i < declared.inputs.size(); ++i)
      graph.inputs.push_back(i < inputs.size() ? renamed(declared.inputs[i], inputs[i]) : declared.inputs[i]);
    std::set<std::string_view> seen;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      std::string name = outputs[o];
      const auto made = made_in_.find(name);
      if (made == made_in_.end() || made->second != body || !seen.insert(outputs[o]).second) {
        name = fresh(outputs[o] + "_Output");
        graph.nodes.emplace_back("Identity", name, std::vector{outputs[o]}, std::vector{name});
      }
      graph.outputs.push_back(renamed(declared.outputs[o], name));
    }
    return graph;
  }

  const Model& model_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> outputs_;
  std::unordered_map<std::string_view, std::size_t> ranks_;    // of constants
  std::unordered_map<std::string_view, int> turned_in_;        // bodies of the Transposes
  std::unordered_map<std::string_view, std::size_t> made_by_;  // outputs of DequantizeLinear -> their nodes
  std::map<std::pair<std::string, int>, std::string> own_constants_;
  std::vector<Node> nodes_;
  std::vector<int> body_of_;
  std::unordered_map<std::string, int> made_in_;
  std::map<int, std::vector<std::string>> inputs_;
  std::map<int, std::vector<std::size_t>> of_body_;
  std::map<int, std::vector<ValueInfo>> infos_;
};

}  // namespace

bool is_inside(const Model& model, int inner, int outer) {
  while (inner != outer && inner != 0) inner = body_at(model, inner).around;
  return inner == outer;
}

std::size_t inputs_before_unfolding(const Model& model, const Node& node) {
  std::size_t outputs = 0;
  for (const int body : node.bodies()) outputs += body_at(model, body).outputs.size();
  return node.inputs().size() - outputs;
}

std::vector<int> body_of_nodes(const Model& model) {
  std::vector<int> bodies(model.graph.nodes.size(), 0);
  if (model.bodies.empty()) return bodies;
  std::vector<bool> present(model.bodies.size() + 1, false);
  for (const auto& node : model.graph.nodes) {
    for (const int body : node.bodies()) present[static_cast<std::size_t>(body)] = true;
  }
  std::unordered_map<std::string_view, int> made_in;
  for (std::size_t n = 0; n < bodies.size(); ++n) {
    const Node& node = model.graph.nodes[n];
    int body = node.body();
    while (body != 0 && !present[static_cast<std::size_t>(body)]) body = body_at(model, body).around;
    for (std::size_t i = 0; i < inputs_before_unfolding(model, node); ++i) {
      const auto made = made_in.find(node.inputs()[i]);
      if (made == made_in.end() || is_inside(model, body, made->second)) continue;
      if (!is_inside(model, made->second, body))
        throw internal_error(fmt::format("{} reads values of two bodies", node.label()));
      body = made->second;
    }
    for (const auto& name : node.outputs()) {
      if (!name.empty()) made_in[name] = body;  // else it is left out
    }
    bodies[n] = body;
  }
  return bodies;
}

FoldedGraph fold_bodies(const Model& model) { return Folding(model).run(); }

}  // namespace detent::onnx
