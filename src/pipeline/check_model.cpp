#include "pipeline/check_model.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/bytes.h"
#include "config/targets.h"
#include "quantization/assignment.h"
#include "quantization/emit/qdq.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kMostLines = 4;

std::vector<std::string> lines_of(const CheckResult& result) {
  std::vector<std::string> lines{fmt::format("{}: {} accepted, {} fall back, {} refused; {} of the graph",
                                             result.target, counted(result.accepted, "node"), result.falls_back,
                                             result.refused, counted(result.partitions, "part"))};
  std::map<std::pair<Verdict, std::string>, std::vector<const CheckedNode*>> alike;
  for (const auto& node : result.nodes) {
    if (node.verdict != Verdict::accepted) alike[{node.verdict, node.rule}].push_back(&node);
  }
  for (const auto& [key, nodes] : alike) {
    if (lines.size() > kMostLines) {
      lines.push_back(fmt::format("{}: detent check --target {} tells the other nodes", result.target, result.target));
      break;
    }
    const auto more = nodes.size() == 1 ? "" : fmt::format(" and {} more", nodes.size() - 1);
    const auto* what = key.first == Verdict::refused ? "refused"
                       : nodes.front()->on_cpu       ? "left to the CPU"
                                                     : "in float";
    lines.push_back(fmt::format("{}: {} '{}'{}: {}, {}", result.target, nodes.front()->op_type, nodes.front()->name,
                                more, what, key.second));
  }
  return lines;
}

// What scales follow from, with nothing in it: the weights are not read.
quantization::ConstantScan empty_scan(const onnx::Tensor& tensor, const quantization::Mark& mark) {
  std::size_t slices = 1;
  if (mark.granularity.kind == quantization::Granularity::Kind::axis)
    slices = static_cast<std::size_t>(tensor.dims.at(mark.granularity.axis));
  return {std::vector<calibration::KeyRange>(slices), std::vector<float>(slices)};
}

}  // namespace

std::vector<std::string> told_of_target(const QuantConfig& config, const onnx::Model& quantized,
                                        const exec::Runtime& runtime) {
  if (config::target(config).is_ort_cpu) return {};
  return lines_of(check_model(config.target, quantized, exec::probe_values(runtime, quantized)));
}

std::vector<std::string> told_of_target(const QuantConfig& config, const onnx::Model& model,
                                        const quantization::Placement& placement, const exec::Runtime& runtime) {
  if (config::target(config).is_ort_cpu) return {};
  quantization::Proposals proposals;
  for (const auto& value : placement.to_observe()) proposals.ranges[value] = {{-1.0F, 1.0F}, "minmax"};
  for (const auto& tensor : model.graph.initializers) {
    const auto* mark = placement.find(tensor.name);
    if (mark != nullptr) proposals.constants[tensor.name] = empty_scan(tensor, *mark);
  }
  const auto assignment = quantization::assign(model, placement, proposals, config);
  return told_of_target(config, quantization::emit_qdq(model, assignment, config).model, runtime);
}

}  // namespace detent::pipeline
