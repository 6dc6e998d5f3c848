#include "run/model/target_runtime.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "config/targets.h"
#include "exec/session.h"
#include "graph/traits.h"

namespace detent::run {
namespace {

using Row = std::pair<std::string_view, std::string_view>;

constexpr std::array<Row, 7> kRows{{{"QNNExecutionProvider", "qnn"},
                                    {"OpenVINOExecutionProvider", "openvino"},
                                    {"NvTensorRTRTXExecutionProvider", "tensorrt"},
                                    {"TensorrtExecutionProvider", "tensorrt"},
                                    {"VitisAIExecutionProvider", "amd-npu:xint8"},
                                    {"CoreMLExecutionProvider", "coreml"},
                                    {"XnnpackExecutionProvider", "xnnpack"}}};

}  // namespace

std::span<const Row> targets_of_providers() { return kRows; }

void name_target(Options& options) {
  auto& target = options.config.target;
  if (config::is_target_file(target)) target = config::read_target(target);
  if (target != config::kAutomaticTarget) return;
  const auto providers = exec::available_providers(options.runtime);
  const auto& names = providers.names;
  const auto found = std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) {
    return std::find(names.begin(), names.end(), row.first) != names.end();
  });
  target = found == kRows.end() ? "ort-cpu" : found->second;
  options.notes.push_back(
      found == kRows.end()
          ? fmt::format("--target auto: ort-cpu, since {} has no provider of another target (it has {})",
                        providers.runtime, fmt::join(names, ", "))
          : fmt::format("--target auto: {}, since {} has {}", target, providers.runtime, found->first));
}

std::optional<Options> with_named_target(const Options& options) {
  const auto& given = options.config.target;
  if (given != config::kAutomaticTarget && !config::is_target_file(given)) return std::nullopt;
  std::optional<Options> named(options);
  name_target(*named);
  return named;
}

namespace {

using onnx::DataType;
using onnx::Node;

using Types = std::unordered_map<std::string, DataType>;

constexpr int kOldest = 21;  // 1.21, as all below: minor versions, tried by tests/e2e/test_claims.py

DataType type_of(const Types& types, const Node& node, std::size_t input) {
  if (input >= node.inputs().size()) return DataType::undefined;
  const auto found = types.find(node.inputs()[input]);
  return found == types.end() ? DataType::undefined : found->second;
}

bool is_float8(DataType type) { return type == DataType::float8e4m3fn || type == DataType::float8e5m2; }

int first_version_with(const Node& node, const Types& types) {
  constexpr int kWideBlocks = 24, kAllExperts = 28, kNarrowCaches = 27;
  const auto bits = node.int_or("bits", 4);
  if (node.op_type() == "MatMulNBits") return bits == 4 ? kOldest : kWideBlocks;
  if (node.op_type() == "GatherBlockQuantized")
    return onnx::bits_of(type_of(types, node, 0)) == 4 ? kOldest : kWideBlocks;  // of bytes, as a product reads them
  if (node.op_type() == "QMoE") {
    const auto* activation = node.attribute("activation_type");
    return activation != nullptr && activation->as_string() == "swiglu" ? kWideBlocks : kAllExperts;
  }
  const bool has_narrow_cache = node.op_type() == "GroupQueryAttention" && node.attribute("k_quant_type") != nullptr;
  return has_narrow_cache ? kNarrowCaches : kOldest;
}

// Whose channels 1.21 moves to the end, as integer convolutions have them, where it does not interpolate.
bool is_cubic(const Node& node) {
  const auto* mode = node.attribute("mode");
  return node.is("Resize") && mode != nullptr && mode->as_string() == "cubic";
}

}  // namespace

std::string needed_runtime(const onnx::Model& model) {
  constexpr int kWideOpset = 22, kKnown = 24;
  Types types;
  for (const auto& tensor : model.graph.initializers) types.emplace(tensor.name, tensor.type);
  int needed = kOldest;
  std::set<std::string> which;
  if (model.opset() > kWideOpset) {
    needed = kKnown;
    which.insert(fmt::format("opset {}", model.opset()));
  }
  const auto& nodes = model.graph.nodes;
  const bool has_integers =
      std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return graph::is_quantize_linear(node); });
  if (has_integers && std::any_of(nodes.begin(), nodes.end(), is_cubic)) {
    needed = kKnown;
    which.insert("cubic Resize among integers");
  }
  for (const auto& node : nodes) {
    if (node.domain() != "com.microsoft") continue;
    const int first = first_version_with(node, types);
    if (first == kOldest) continue;
    needed = std::max(needed, first);
    const auto* bits = node.attribute("bits");
    which.insert(node.op_type() + (bits != nullptr ? fmt::format(" of {} bits", bits->as_int()) : std::string()));
  }
  if (which.empty()) return {};
  return fmt::format("the file needs ONNX Runtime 1.{} or later: {}", needed, fmt::join(which, ", "));
}

std::vector<std::string> loading_conditions(const onnx::Model& model) {
  Types types;
  for (const auto& tensor : model.graph.initializers) types.emplace(tensor.name, tensor.type);
  const auto& nodes = model.graph.nodes;
  const bool any = std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    return graph::is_quantize_linear(node) && is_float8(type_of(types, node, 2));
  });
  if (!any) return {};
  return {"ONNX Runtime before 1.32 loads it only with session.disable_quant_qdq set to 1."};
}

}  // namespace detent::run
