#include "quantization/placement/wide_values.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "graph/traits.h"
#include "quantization/placement/integer_chains.h"

namespace detent::quantization {
namespace {

class WideValues {
 public:
  WideValues(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& nodes,
             const Placement& placement)
      : graph_(model.graph), index_(index), nodes_(nodes), placement_(placement) {
    for (const auto& activation : placement.fused) fused_[activation.input] = activation.output;
    for (const auto& mark : placement.marks)  // who shares comes after whom it shares with
      scales_[mark.value] = mark.shares ? scale_of(*mark.shares) : mark.value;
  }

  // Around the nodes alone.
  std::set<std::string> beside() {
    each_wide([&](const onnx::Node& node) {
      add(node.inputs());
      add(node.outputs());
    });
    return with_fused();
  }

  // Where formats are given: as far as operators carry them, but a product of 8 bits keeps what it reads so, whatever
  // makes it, and what it makes unless it is asked for 16.
  std::set<std::string> as_given() {
    find_narrow();
    each_wide([&](const onnx::Node& node) {
      add(node.inputs());
      add_unless_narrow(node.outputs());
    });
    std::size_t before = 0;
    do {
      before = wide_.size();
      for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
        const auto& node = graph_.nodes[n];
        if (!placement_.selected[n] || graph::is_product(node) || is_table(node, index_)) continue;
        if (any_wide(node.inputs())) add_unless_narrow(node.outputs());
        if (any_wide(node.outputs())) {
          std::vector<std::string> carried;
          std::copy_if(node.inputs().begin(), node.inputs().end(), std::back_inserter(carried),
                       [&](const auto& value) { return !is_made_narrow(value); });
          add_unless_narrow(carried);
        }
      }
    } while (wide_.size() != before);
    return with_fused();
  }

 private:
  template <typename F>
  void each_wide(const F& visit) const {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n] && placement_.selected[n]) visit(graph_.nodes[n]);
    }
  }

  void add(const std::vector<std::string>& values) { wide_.insert(values.begin(), values.end()); }

  void add_unless_narrow(const std::vector<std::string>& values) {
    for (const auto& value : values) {
      const auto activation = fused_.find(value);  // comes of it in the kernel that makes it
      const auto& made = activation == fused_.end() ? value : activation->second;
      if (!narrow_.contains(scale_of(made))) wide_.insert(value);
    }
  }

  bool any_wide(const std::vector<std::string>& values) const {
    return std::any_of(values.begin(), values.end(), [&](const auto& value) { return wide_.contains(value); });
  }

  bool keeps_8_bits(int node) const {
    const auto n = static_cast<std::size_t>(node);
    const bool has_weights = graph::is_product(graph_.nodes[n]) || is_table(graph_.nodes[n], index_);
    return has_weights && placement_.selected[n] && !nodes_[n];
  }

  // What products of 8 bits read, by whose scale it has.
  void find_narrow() {
    for (const auto& mark : placement_.marks) {
      const auto readers = index_.consumers(mark.value);
      if (std::any_of(readers.begin(), readers.end(), [&](int reader) { return keeps_8_bits(reader); }))
        narrow_.insert(scale_of(mark.value));
    }
  }

  const std::string& scale_of(const std::string& value) const {
    const auto found = scales_.find(value);
    return found == scales_.end() ? value : found->second;
  }

  bool is_made_narrow(const std::string& value) const {
    const int maker = index_.producer(value);
    return maker != graph::kNone && keeps_8_bits(maker);
  }

  std::set<std::string> with_fused() {
    for (const auto& activation : placement_.fused) {
      if (wide_.contains(activation.input)) wide_.insert(activation.output);
    }
    return std::move(wide_);
  }

  const onnx::Graph& graph_;
  const graph::Index& index_;
  const std::vector<bool>& nodes_;
  const Placement& placement_;
  std::map<std::string, std::string> fused_, scales_;
  std::set<std::string> wide_, narrow_;  // values, and scales
};

}  // namespace

std::set<std::string> wide_values(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& nodes,
                                  bool formats_given, const Placement& placement) {
  if (nodes.empty()) return {};
  WideValues values(model, index, nodes, placement);
  return formats_given ? values.as_given() : values.beside();
}

}  // namespace detent::quantization
