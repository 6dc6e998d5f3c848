#include "checking/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "checking/signature.h"
#include "checking/table.h"
#include "graph/traits.h"

namespace detent::checking {
namespace {

// Between 8-bit integers ONNX Runtime looks their results up.
constexpr std::array<std::string_view, 4> kCurves{"LeakyRelu", "LogSoftmax", "Sigmoid", "Softmax"};
constexpr std::array<std::string_view, 2> kPools{"AveragePool", "GlobalAveragePool"};

// The nodes of a group that compute.
std::vector<const onnx::Node*> computing(const onnx::Model& model, const Group& group) {
  std::vector<const onnx::Node*> nodes;
  for (const int n : group.nodes) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(n)];
    if (!graph::is_q_or_dq(node)) nodes.push_back(&node);
  }
  return nodes;
}

bool saturates(const Signature& forms) {
  return forms.first.text.starts_with("u8") && forms.second.text.starts_with("s8") && forms.second.is_constant;
}

std::string of_float_kernel(const onnx::Node& node, const Signature& forms, const config::Target& target) {
  const auto* table = table_of(target.is_ort_cpu ? "ort-cpu" : target.name);
  const auto* row = table == nullptr ? nullptr : table->find(node.op_type(), forms);
  if (row == nullptr || on_integers(*row) || forms.first.text == "f32") return "";
  if (row->kernel == "none") return "";
  return fmt::format("{} is computed in {}", node.op_type(), row->kernel);
}

}  // namespace

std::string cause_of(const onnx::Model& model, const graph::Index& index, const Group& group,
                     const Differences& differences, const config::Target& target) {
  if (differences.differ == 0) return "";
  const auto nodes = computing(model, group);
  const bool on_cpu = target.is_ort_cpu || target.name == "openvino";
  for (const auto* node : nodes) {
    const auto forms = signature_of(model, index, *node, target);
    if (graph::is_product(*node) && differences.over_one > 0 && on_cpu && saturates(forms) &&
        !sums_8_bit_products_exactly())
      return "pairs of uint8 x int8 products saturate in 16 bits on this CPU, which has no VNNI; quantize with "
             "--set weight-range=pairs";
  }
  for (const auto* node : nodes) {
    if (auto cause = of_float_kernel(*node, signature_of(model, index, *node, target), target); !cause.empty())
      return cause;
  }
  if (differences.max_steps > 1 || nodes.empty()) return "";
  const auto is_one_of = [&](const auto& names) {
    return nodes.size() == 1 && std::find(names.begin(), names.end(), nodes.front()->op_type()) != names.end();
  };
  if (is_one_of(kCurves)) return fmt::format("{} from a table that was made in float32", nodes.front()->op_type());
  if (is_one_of(kPools)) return "the mean is rounded in float32";
  return nodes.size() > 1 ? "one kernel for several operators, which scales in float32"
                          : "scales are applied in float32: values near the middle between two integers";
}

}  // namespace detent::checking
