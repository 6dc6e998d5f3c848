#include "quantization/placement/integer_chains.h"

#include <algorithm>
#include <string>

#include "graph/traits.h"

namespace detent::quantization {
namespace {

using graph::is_product;
using graph::Trait;

// Its kernel makes integers only where it is asked to; convolutions have no kernel from integers to float.
bool makes_float(const onnx::Node& node) { return graph::is_matrix_product(node); }

class Chains {
 public:
  Chains(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& selected,
         const GateNames& integer_gates)
      : model_(model), index_(index), kept_(model.graph.nodes.size()), feeds_(kept_.size()), in_gate_(kept_.size()) {
    const auto& nodes = model.graph.nodes;
    if (!integer_gates.empty()) mark_gates(integer_gates);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const bool starts = is_product(nodes[n]) || is_table(nodes[n], index);
      const bool carries = in_gate_[n] || graph::has_trait(nodes[n], Trait::carries_integers);
      kept_[n] = selected[n] && (starts || (carries && reads_integers(n)));
    }
    for (std::size_t n = nodes.size(); n-- > 0;) {
      feeds_[n] = std::any_of(nodes[n].outputs().begin(), nodes[n].outputs().end(),
                              [&](const auto& value) { return feeds_product(value); });
      if (kept_[n] && !is_product(nodes[n]) && !is_table(nodes[n], index) && !feeds_[n] &&
          !fuses_with_convolution(nodes[n]))
        kept_[n] = false;
    }
  }

  FloatParts floats() const {
    FloatParts floats;
    floats.bypass = true;
    for (std::size_t n = 0; n < kept_.size(); ++n) {
      floats.nodes.push_back(!kept_[n]);
      const auto& node = model_.graph.nodes[n];
      if (kept_[n] && makes_float(node) && !feeds_[n]) floats.values.insert(node.outputs().front());
    }
    return floats;
  }

 private:
  void mark_gates(const GateNames& names) {
    for (const auto& gate : find_gated_activations(model_, index_)) {
      if (!names.contains(model_.graph.nodes[static_cast<std::size_t>(gate.sigmoid)].outputs().front())) continue;
      for (const int node : {gate.sigmoid, gate.product, gate.sum}) {
        if (node != graph::kNone) in_gate_[static_cast<std::size_t>(node)] = true;
      }
    }
  }

  bool reads_integers(std::size_t n) const {
    const auto& node = model_.graph.nodes[n];
    const std::size_t count = in_gate_[n] || graph::has_trait(node, Trait::joins) ? node.inputs().size() : 1;
    return std::all_of(node.inputs().begin(), node.inputs().begin() + static_cast<std::ptrdiff_t>(count),
                       [&](const auto& value) {
                         if (in_gate_[n] && index_.initializer(value) != graph::kNone) return true;
                         const int producer = index_.producer(value);
                         return producer != graph::kNone && kept_[static_cast<std::size_t>(producer)];
                       });
  }

  bool feeds_product(const std::string& value) const {
    const auto readers = index_.consumers(value);
    return std::any_of(readers.begin(), readers.end(), [&](int reader) {
      const auto n = static_cast<std::size_t>(reader);
      return kept_[n] && (is_product(model_.graph.nodes[n]) || feeds_[n]);
    });
  }

  bool fuses_with_convolution(const onnx::Node& node) const {
    if (!graph::has_trait(node, Trait::clips)) return false;
    const auto& maker = model_.graph.nodes[static_cast<std::size_t>(index_.producer(node.inputs().front()))];
    return is_product(maker) && !makes_float(maker) && index_.consumers(node.inputs().front()).size() == 1;
  }

  const onnx::Model& model_;
  const graph::Index& index_;
  std::vector<bool> kept_;   // nodes that compute on integers
  std::vector<bool> feeds_;  // nodes whose results reach a product through such nodes
  std::vector<bool> in_gate_;
};

}  // namespace

bool is_table(const onnx::Node& node, const graph::Index& index) {
  return graph::has_trait(node, Trait::looks_up) && index.initializer(node.inputs().front()) != graph::kNone;
}

FloatParts integer_chains(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& selected,
                          const GateNames& integer_gates) {
  return Chains(model, index, selected, integer_gates).floats();
}

}  // namespace detent::quantization
