#include "speed/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "config/enum_names.h"
#include "data/synthetic_inputs.h"
#include "exec/kernel_times.h"
#include "graph/traits.h"
#include "onnx/write.h"
#include "quantization/assignment.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/qdq.h"
#include "quantization/placement/integer_chains.h"
#include "quantization/placement/placement.h"

namespace detent::speed {
namespace {

using graph::Trait;

constexpr double kSecondsEach = 0.05;  // of runs, but three at the least
constexpr std::size_t kRuns = 40;

std::string text_of(const onnx::Attribute& a) {
  using Kind = onnx::Attribute::Kind;
  switch (a.kind()) {
    case Kind::f: return fmt::format("{}={}", a.name(), a.as_float());
    case Kind::i: return fmt::format("{}={}", a.name(), a.as_int());
    case Kind::s: return fmt::format("{}={}", a.name(), a.as_string());
    case Kind::ints: return fmt::format("{}={}", a.name(), fmt::join(a.as_ints(), "x"));
    case Kind::floats: return fmt::format("{}={}", a.name(), fmt::join(a.as_floats(), "x"));
    default: return a.name();
  }
}

// What of the format decides which kernels the runtime has; empty for the default one.
std::string format_of(const QuantConfig& config) {
  const QuantConfig usual;
  const auto word = [](QuantType type) {
    return config::word_of(config::enum_names<QuantType>(), static_cast<int>(type));
  };
  std::string text = config.per_channel ? "" : " per tensor";
  if (config.activation_type != usual.activation_type || config.weight_type != usual.weight_type)
    text += fmt::format(" {} by {}", word(config.activation_type), word(config.weight_type));
  return text;
}

bool is_activation(const TimedModel& subject, const std::string& value) {
  return !value.empty() && subject.index.initializer(value) == graph::kNone;
}

// In the place of a table: what a row takes does not depend on how many there are.
onnx::Tensor rows_of(const onnx::Tensor& table) {
  const std::int64_t rows = 2, width = table.dims.back();
  return onnx::make_tensor<float>(table.name, onnx::DataType::float32, {rows, width},
                                  std::vector<float>(static_cast<std::size_t>(rows * width), 1.0F));
}

// The node as a model, with the shapes of its values.
onnx::Model model_of_node(const TimedModel& subject, std::size_t position) {
  const auto& model = subject.model;
  const auto& node = model.graph.nodes[position];
  onnx::Model part;
  part.path = model.path;
  part.file = model.file;
  part.external = model.external;
  part.ir_version = model.ir_version;
  part.opsets = model.opsets;
  part.other = model.other;
  part.graph.nodes = {node};
  const auto info = [&](const std::string& value) {
    return onnx::make_value_info(value, graph::type_of(model, subject.types, value), subject.types.at(value).shape);
  };
  std::vector<std::string> seen;
  for (const auto& value : node.inputs()) {
    if (value.empty() || std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
    seen.push_back(value);
    if (is_activation(subject, value)) {
      part.graph.inputs.push_back(info(value));
    } else {
      const auto& constant = model.graph.initializers[static_cast<std::size_t>(subject.index.initializer(value))];
      part.graph.initializers.push_back(quantization::is_table(node, subject.index) ? rows_of(constant) : constant);
    }
  }
  for (const auto& value : node.outputs()) {
    if (!value.empty()) part.graph.outputs.push_back(info(value));
  }
  return part;
}

onnx::Model in_integers(const onnx::Model& part, const graph::ValueTypes& types, const QuantConfig& given) {
  QuantConfig config = given;
  config.nodes.clear();
  config.exclude_nodes.clear();
  config.op_types = {part.graph.nodes.front().op_type()};
  config.exclude_op_types.clear();
  if (part.graph.nodes.front().is("LSTM")) return quantization::make_dynamic(part, config, true).model;
  auto placement = quantization::place(part, types, config);
  quantization::Proposals proposals;
  for (const auto& value : placement.to_observe()) proposals.ranges[value] = {{-1, 1}, {}};
  for (const auto& [value, range] : placement.fixed_ranges) proposals.ranges[value] = {range, {}};
  proposals.constants = quantization::scan_weights(part, placement, true);
  const auto assignment = quantization::assign(part, std::move(placement), proposals, config);
  return quantization::emit_qdq(part, assignment, config).model;
}

std::vector<data::Array> synthetic(const TimedModel& subject, const onnx::Model& part) {
  std::vector<data::InputSpec> inputs;
  for (const auto& input : part.graph.inputs)
    inputs.push_back({input.name, graph::type_of(subject.model, subject.types, input.name),
                      graph::static_shape(subject.types, input.name)});
  return data::synthetic_inputs(inputs, {});
}

bool changes_layout(const exec::Kernel& kernel) {
  return kernel.op_type == "Transpose" || kernel.op_type == "ReorderInput" || kernel.op_type == "ReorderOutput";
}

}  // namespace

std::string kernel_table_key(const TimedModel& subject, std::size_t position) {
  const auto& node = subject.model.graph.nodes[position];
  const bool is_arithmetic = graph::has_trait(node, Trait::element_wise) && !graph::has_trait(node, Trait::clips);
  if (!graph::is_product(node) && !is_arithmetic && !node.is("LSTM")) return {};
  std::vector<std::string> inputs, attributes;
  for (const auto& value : node.inputs()) {
    if (value.empty()) {
      inputs.emplace_back("-");
      continue;
    }
    const auto shape = graph::static_shape(subject.types, value);
    const bool computed = is_activation(subject, value);
    if (!shape) return {};
    // The runtime tells an unknown rank as 0.
    const bool known =
        !shape->empty() && graph::type_of(subject.model, subject.types, value) == onnx::DataType::float32;
    if (computed && !known) return {};
    inputs.push_back(fmt::format("{}[{}]", computed ? "" : "constant", fmt::join(*shape, "x")));
  }
  for (const auto& value : node.outputs()) {
    if (!value.empty() && !graph::static_shape(subject.types, value)) return {};
  }
  for (const auto& a : node.attributes()) attributes.push_back(text_of(a));
  std::sort(attributes.begin(), attributes.end());
  return fmt::format("{}({}) {}{}", node.op_type(), fmt::join(inputs, ", "), fmt::join(attributes, " "),
                     format_of(subject.config));
}

std::string lookup_key(const TimedModel& subject, std::size_t position) {
  const auto& node = subject.model.graph.nodes[position];
  if (!quantization::is_table(node, subject.index) || node.int_or("axis", 0) != 0) return {};
  const auto& table =
      subject.model.graph.initializers[static_cast<std::size_t>(subject.index.initializer(node.inputs()[0]))];
  const auto shape = graph::static_shape(subject.types, node.inputs()[1]);
  if (!shape || shape->empty() || table.dims.size() != 2 || table.type != onnx::DataType::float32) return {};
  if (subject.index.initializer(node.inputs()[1]) != graph::kNone) return {};
  return fmt::format("{}(rows of {}, [{}]){}", node.op_type(), table.dims[1], fmt::join(*shape, "x"),
                     format_of(subject.config));
}

namespace {

exec::KernelTimesOptions timing(const std::filesystem::path& directory, std::stop_token stop) {
  return {.threads = 1,
          .runs = kRuns,
          .seconds = kSecondsEach,
          .fastest = true,
          .directory = directory,
          .stop = std::move(stop)};
}

}  // namespace

double time_form(const TimedModel& subject, std::size_t position,
                 const std::function<onnx::Model(onnx::Model alone)>& make, const exec::Runtime& runtime,
                 const std::filesystem::path& directory, std::stop_token stop) {
  auto part = model_of_node(subject, position);
  const std::vector<std::vector<data::Array>> samples{synthetic(subject, part)};
  double seconds = 0;
  for (const auto& kernel :
       exec::kernel_times(runtime, make(std::move(part)), samples, timing(directory, std::move(stop))))
    seconds += kernel.seconds;
  return seconds;
}

KernelTimes time_kernel(const TimedModel& subject, std::size_t position, const exec::Runtime& runtime,
                        const std::filesystem::path& directory, std::stop_token stop) {
  const auto part = model_of_node(subject, position);
  const std::vector<std::vector<data::Array>> samples{synthetic(subject, part)};
  const auto options = timing(directory, std::move(stop));
  KernelTimes times;
  bool done = false;  // the operator itself
  for (const auto& kernel : exec::kernel_times(runtime, part, samples, options)) {
    (!changes_layout(kernel) ? times.in_float : done ? times.out_of_blocks : times.into_blocks) += kernel.seconds;
    done = done || !changes_layout(kernel);
  }
  done = false;
  const auto quantized = in_integers(part, subject.types, subject.config);
  for (const auto& kernel : exec::kernel_times(runtime, quantized, samples, options)) {
    const bool quantizes = kernel.op_type == "QuantizeLinear", dequantizes = kernel.op_type == "DequantizeLinear";
    if (!done && (quantizes || changes_layout(kernel))) {
      times.quantize += kernel.seconds;
    } else if (done && (dequantizes || changes_layout(kernel))) {
      times.dequantize += kernel.seconds;
    } else {
      // Where the runtime has no integer kernel, weights and activations are dequantized in every run.
      times.in_integers += kernel.seconds;
    }
    done = done || !(quantizes || dequantizes || changes_layout(kernel));
  }
  return times;
}

}  // namespace detent::speed
