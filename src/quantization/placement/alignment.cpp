#include "quantization/placement/alignment.h"

#include <algorithm>

#include "graph/traits.h"

namespace detent::quantization {
namespace {

Mark* find(Placement& placement, const std::string& value) {
  const auto found = std::find_if(placement.marks.begin(), placement.marks.end(),
                                  [&](const auto& mark) { return mark.value == value; });
  return found == placement.marks.end() ? nullptr : &*found;
}

Mark* root(Placement& placement, Mark* mark) {
  while (mark != nullptr && mark->shares) {
    auto* next = find(placement, *mark->shares);
    if (next == nullptr) break;
    mark = next;
  }
  return mark;
}

// Means lie within the range of what they are taken of.
bool is_mean(const onnx::Node& node) { return node.is("AveragePool") || node.is("GlobalAveragePool"); }

bool is_marked(const Placement& placement, const std::string& value) { return placement.find(value) != nullptr; }

// A convolution, or an activation after one, that this reader alone reads.
bool is_fused_branch(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone || index.consumers(value).size() != 1 || index.is_output(value)) return false;
  return graph::has_trait(model.graph.nodes[static_cast<std::size_t>(producer)], graph::Trait::convolution);
}

}  // namespace

void share_output_scales(const onnx::Model& model, const graph::Index& index,
                         const std::vector<std::string_view>& op_types, Placement& placement) {
  if (op_types.empty()) return;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const bool aligned = std::find(op_types.begin(), op_types.end(), node.op_type()) != op_types.end();
    if (!aligned || !placement.selected[n] || placement.fixed_ranges.contains(node.outputs().front())) continue;
    auto* const output = root(placement, find(placement, node.outputs().front()));
    if (output == nullptr) continue;
    for (const auto& value : node.inputs()) {
      auto* const input = root(placement, find(placement, value));
      if (input == nullptr || input == output || input->is_constant) continue;
      if (is_mean(node)) {
        output->shares = input->value;
        break;
      }
      if (index.producer(input->value) == graph::kNone || placement.fixed_ranges.contains(input->value)) continue;
      input->shares = output->value;
      placement.joined.push_back(input->value);
    }
  }
}

void add_fused_branches(const onnx::Model& model, const graph::Index& index, Placement& placement,
                        std::set<std::string>& values) {
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!node.is("Add") || !placement.selected[n] || node.inputs().size() != 2) continue;
    const auto& inputs = node.inputs();
    if (!is_marked(placement, inputs[0]) || !is_marked(placement, inputs[1])) continue;
    for (std::size_t i = 2; i-- > 0;) {
      if (!is_fused_branch(model, index, inputs[i])) continue;
      if (values.insert(inputs[i]).second) placement.joined.push_back(inputs[i]);
      break;
    }
  }
}

}  // namespace detent::quantization
