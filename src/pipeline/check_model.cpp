#include "pipeline/check_model.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/error.h"
#include "checking/headline.h"
#include "config/targets.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "graph/bfloat16.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "onnx/quark.h"
#include "quantization/assignment.h"
#include "quantization/emit/qdq.h"
#include "run/model/float_types_16_bit.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kMostLines = 4;

std::vector<std::string> lines_of(const CheckResult& result) {
  std::vector<std::string> lines{checking::headline(result)};
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

// Operators of block floats leave the shape and the type as they are.
onnx::Model without_block_floats(onnx::Model model) {
  for (auto& node : model.graph.nodes) {
    if (node.domain() == onnx::kQuarkDomain)
      node = onnx::Node("Identity", node.name(), {node.inputs().front()}, node.outputs());
  }
  return model;
}

graph::ValueTypes types_of(const exec::PortsOf& ports_of, const onnx::Model& model, const Shapes& shapes) {
  auto simple = without_block_floats(model);
  const auto low = run::find_16_bit_floats(simple);
  if (low.brain) graph::relabel_bfloat16_as_float16(simple);
  auto types = exec::infer_value_types(ports_of, simple, shapes);
  if (!low.brain || low.half) return types;
  for (auto& [name, value] : types) {
    if (value.type == onnx::DataType::float16) value.type = onnx::DataType::bfloat16;
  }
  return types;
}

// The user's model has been loaded before: that the runtime dies of this one is no fault of that.
TargetNotes notes_of(const QuantizeOptions& options, const onnx::Model& model, const exec::Runtime& runtime,
                     const Shapes& shapes) {
  const auto& target = options.config.target;
  CheckResult result;
  try {
    result = check_model(target, model, runtime, shapes, options.stop);
  } catch (const exec::SessionDied& e) {
    throw device_error(
        fmt::format("what target '{}' makes of the quantized model cannot be told, so nothing was written: {}", target,
                    e.what()),
        e.hint());
  }
  TargetNotes told{lines_of(result), {}};
  if (result.macs && *result.macs > 0)
    told.integer_macs = static_cast<double>(*result.integer_macs) / static_cast<double>(*result.macs);
  return told;
}

}  // namespace

CheckResult check_model(const std::string& target, const onnx::Model& model, const exec::Runtime& runtime,
                        const Shapes& shapes, const std::stop_token& stop) {
  const auto ports_of = exec::guarded_ports(runtime, {.stop = stop});
  auto result = check_model(target, model, types_of(ports_of, model, {}));
  if (result.macs || shapes.empty()) return result;
  const auto counted = check_model(target, model, types_of(ports_of, model, shapes));
  result.macs = counted.macs;
  result.integer_macs = counted.integer_macs;
  return result;
}

onnx::Model model_to_check(const std::filesystem::path& file) {
  auto model = onnx::read_model(file);
  graph::lift_constants(model);
  graph::sort_topologically(model);
  return model;
}

TargetNotes target_notes(const QuantizeOptions& options, const std::filesystem::path& quantized,
                         const exec::Runtime& runtime, const Shapes& shapes) {
  if (config::target(options.config).is_ort_cpu) return {};
  auto model = model_to_check(quantized);
  model.path = options.output;
  return notes_of(options, model, runtime, shapes);
}

std::optional<double> integers_on_cpu(const QuantizeOptions& options, onnx::Model model, const exec::Runtime& runtime,
                                      const Shapes& shapes) {
  graph::lift_constants(model);
  graph::sort_topologically(model);
  return notes_of(options, model, runtime, shapes).integer_macs;
}

TargetNotes target_notes(const QuantizeOptions& options, const onnx::Model& model,
                         const quantization::Placement& placement, const exec::Runtime& runtime) {
  const auto& config = options.config;
  if (config::target(config).is_ort_cpu) return {};
  quantization::Proposals proposals;
  for (const auto& value : placement.to_observe()) proposals.ranges[value] = {{-1.0F, 1.0F}, "minmax"};
  for (const auto& tensor : model.graph.initializers) {
    const auto* mark = placement.find(tensor.name);
    if (mark != nullptr) proposals.constants[tensor.name] = empty_scan(tensor, *mark);
  }
  const auto assignment = quantization::assign(model, placement, proposals, config);
  return notes_of(options, quantization::emit_qdq(model, assignment, config).model, runtime, {});
}

}  // namespace detent::pipeline
