// What a model holds and what running it takes, without running it.
#include "detent/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "exec/session.h"
#include "exec/timing.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "graph/transformer.h"
#include "onnx/bodies.h"
#include "onnx/model.h"
#include "planning/memory.h"
#include "quantization/weight_operators.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "solve/sweep/finetune.h"

namespace detent {
namespace {

std::string shape_text(const std::optional<std::vector<onnx::Dim>>& shape) {
  if (!shape) return "?";
  std::vector<std::string> dims;
  for (const auto& dim : *shape)
    dims.push_back(dim.is_static() ? std::to_string(dim.value) : dim.symbol.empty() ? "?" : dim.symbol);
  return fmt::format("[{}]", fmt::join(dims, ","));
}

std::vector<ValueReport> describe(const std::vector<onnx::ValueInfo>& values, const graph::Index& index,
                                  const graph::ValueTypes& types) {
  std::vector<ValueReport> reports;
  for (const auto& value : values) {
    if (index.initializer(value.name) != graph::kNone) continue;
    const auto found = types.find(value.name);
    const bool declared = value.type != onnx::DataType::undefined;
    const auto type = declared || found == types.end() ? value.type : found->second.type;
    const auto& shape = value.shape || found == types.end() ? value.shape : found->second.shape;
    reports.push_back(
        {value.name, type == onnx::DataType::undefined ? "" : std::string(onnx::name_of(type)), shape_text(shape)});
  }
  return reports;
}

// What makes a value of stored integers: a DequantizeLinear, or a Cast and a Mul behind it; nullptr: another node does.
const onnx::Node* dequantized_constant(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone) return nullptr;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  if (node.inputs().empty()) return nullptr;
  const auto& first = node.inputs().front();
  const bool is_stored = index.initializer(first) != graph::kNone;
  const bool is_constant = node.is("Mul")
                               ? node.inputs().size() == 2 && index.initializer(node.inputs()[1]) != graph::kNone &&
                                     dequantized_constant(model, index, first) != nullptr
                               : is_stored && (graph::is_dequantize_linear(node) || node.is("Cast"));
  return is_constant ? &node : nullptr;
}

// A node's constants. Integers with their scales belong to the first node that reads what they stand for.
void add_parameters(const onnx::Model& model, const onnx::Node& node, const graph::Index& index, LayerReport& layer) {
  for (const auto& name : node.inputs()) {
    if (const auto* weights = dequantized_constant(model, index, name)) {
      const auto readers = index.consumers(name);
      if (!readers.empty() && &model.graph.nodes[static_cast<std::size_t>(readers.front())] == &node)
        add_parameters(model, *weights, index, layer);
      continue;
    }
    const int i = index.initializer(name);
    if (i == graph::kNone) continue;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(i)];
    layer.parameters += static_cast<std::uint64_t>(tensor.count());
    layer.parameter_bytes += tensor.data.size();
  }
}

// The runtime tells an unknown rank as that of a scalar. Of axes whose length is not known, and of bodies, either may
// come; of a product by a matrix no scalar does.
void forget_unknown_ranks(const onnx::Model& model, const graph::Index& index, graph::ValueTypes& types) {
  const auto is_open = [&](const auto& name) {
    return !name.empty() && index.initializer(name) == graph::kNone && !graph::static_bytes(types, name);
  };
  for (const auto& node : model.graph.nodes) {
    const bool has_bodies = node.is("If") || node.is("Loop") || node.is("Scan") || node.op_type() == onnx::kBodyInputs;
    const int weight = graph::is_product(node) ? index.initializer(node.inputs()[1]) : graph::kNone;
    const bool by_matrix =
        weight != graph::kNone && model.graph.initializers[static_cast<std::size_t>(weight)].dims.size() > 1;
    const bool may_be_unknown =
        has_bodies || by_matrix || std::any_of(node.inputs().begin(), node.inputs().end(), is_open);
    for (const auto& output : node.outputs()) {
      const auto found = types.find(output);
      const bool counts = has_bodies && found != types.end() && found->second.type != onnx::DataType::float32;
      if (may_be_unknown && !counts && found != types.end() && found->second.shape && found->second.shape->empty())
        found->second.shape.reset();
    }
  }
}

LayerReport describe_layer(const onnx::Model& model, const onnx::Node& node, const graph::Index& index,
                           const graph::ValueTypes& types) {
  LayerReport layer;
  layer.name = node.id();
  layer.op_type = node.op_type();
  layer.activation_bytes = 0;
  const bool is_constant = !node.outputs().empty() && dequantized_constant(model, index, node.outputs().front());
  if (!is_constant) add_parameters(model, node, index, layer);
  for (const auto& name : node.outputs()) {
    if (name.empty() || is_constant) continue;
    const auto bytes = graph::static_bytes(types, name);
    if (!bytes) layer.activation_bytes.reset();
    if (layer.activation_bytes && bytes) *layer.activation_bytes += *bytes;
  }
  if (const auto work = graph::work_of(model, index, types, node)) {
    layer.macs = work->macs;
    layer.flops = work->flops;
  }
  if (!node.outputs().empty()) {
    const auto found = types.find(node.outputs().front());
    if (found != types.end()) layer.output_shape = shape_text(found->second.shape);
  }
  return layer;
}

void check_shapes(const onnx::Model& model, const InspectOptions& options) {
  for (const auto& [name, shape] : options.config.input_shapes) {
    const auto& inputs = model.graph.inputs;
    const auto input =
        std::find_if(inputs.begin(), inputs.end(), [&, &wanted = name](const auto& i) { return i.name == wanted; });
    if (input == inputs.end())
      throw usage_error(fmt::format("--shape: model '{}' has no input '{}'", model.path.string(), name));
    if (input->shape && input->shape->size() != shape.size()) {
      throw usage_error(
          fmt::format("--shape: input '{}' has {} dimensions, not {}", name, input->shape->size(), shape.size()));
    }
  }
}

void describe_layers(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     Inspection& report) {
  report.activation_bytes = 0;
  report.macs = 0;
  std::uint64_t heaviest = 0;
  for (const auto& node : model.graph.nodes) {
    report.layers.push_back(describe_layer(model, node, index, types));
    const auto& layer = report.layers.back();
    if (!layer.activation_bytes) report.activation_bytes.reset();
    if (!layer.macs) report.macs.reset();
    if (report.macs) *report.macs += *layer.macs;
    if (report.activation_bytes) *report.activation_bytes += *layer.activation_bytes;
    const std::uint64_t weight = layer.parameter_bytes + layer.activation_bytes.value_or(0);
    if (report.heaviest && weight <= heaviest) continue;
    heaviest = weight;
    report.heaviest = report.layers.size() - 1;
  }
}

// Operators on integers, and those that are such after a DequantizeLinear.
bool is_on_integers(const onnx::Node& node) {
  static const std::set<std::string_view> kTypes{
      "MatMulNBits",           "GatherBlockQuantized", "QLinearMatMul", "QGemm",
      "QLinearConv",           "MatMulInteger",        "ConvInteger",   "MatMulIntegerToFloat",
      "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",  "QAttention",    "QMoE"};
  return kTypes.contains(node.op_type());
}

bool reads_dequantized(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (!node.domain().empty() || quantization::weight_operator(node) == nullptr) return false;
  return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const std::string& input) {
    const int producer = index.producer(input);
    if (producer == graph::kNone) return false;
    const auto& maker = model.graph.nodes[static_cast<std::size_t>(producer)];
    if (!graph::is_dequantize_linear(maker) || maker.inputs().empty()) return false;
    // Others than tables hand on what they read, whatever it is.
    return !graph::has_trait(node, graph::Trait::looks_up) || index.initializer(maker.inputs().front()) != graph::kNone;
  });
}

// Asks the runtime for the graph that it makes of a quantized model.
void describe_products(const exec::Runtime& runtime, const onnx::Model& model, const graph::Index& index,
                       Inspection& report) {
  static const std::set<std::string_view> kFloat{"MatMul", "Gemm",   "Conv",        "ConvTranspose", "LSTM",
                                                 "GRU",    "Gather", "FusedMatMul", "FusedConv",     "FusedGemm"};
  std::vector<std::size_t> nodes;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (is_on_integers(node) || reads_dequantized(model, index, node)) nodes.push_back(n);
  }
  if (nodes.empty()) return;
  constexpr std::uint64_t kCopies = 3;  // as read, as fused, as packed for the runtime's kernels
  if (report.parameter_bytes * kCopies > planning::available_memory()) {
    report.notes.push_back(fmt::format("integer kernels are not listed: loading the model would take about {}",
                                       format_size(report.parameter_bytes * kCopies)));
    return;
  }
  try {
    const auto types = exec::deployed_op_types(runtime, model);
    for (const auto n : nodes) {
      const auto& node = model.graph.nodes[n];
      report.products.push_back({node.id(), node.op_type(), types[n], kFloat.contains(types[n])});
    }
    report.runtime = runtime.version();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    report.notes.push_back(fmt::format("integer kernels are not listed: {}", e.what()));
  }
}

// Memory that tuning each layer would take, with AdaRound.
void add_finetune_bytes(const onnx::Model& model, const graph::ValueTypes& types, Inspection& report) {
  FinetuneConfig adaround;
  adaround.solver = WeightSolver::adaround;
  constexpr std::uint64_t kSamples = 32;  // the memory hardly depends on it
  for (const auto& cost : solve::layer_costs(model, types, adaround, kSamples, thread_count(0)))
    report.layers[cost.node].finetune_bytes = cost.bytes;
}

// Shapes that the model computes from the shapes of its inputs are known as well where those are: this takes constant
// folding, for which the inputs have to be said.
graph::ValueTypes types_of(const exec::Runtime& runtime, const onnx::Model& model, const graph::Index& index,
                           const InspectOptions& options) {
  auto types = exec::infer_value_types(runtime, model, options.config.input_shapes);
  const auto is_static = [&](const std::string& value) { return graph::static_shape(types, value).has_value(); };
  const bool all = std::all_of(model.graph.nodes.begin(), model.graph.nodes.end(), [&](const auto& node) {
    return std::all_of(node.outputs().begin(), node.outputs().end(),
                       [&](const auto& output) { return output.empty() || is_static(output); });
  });
  if (all || !options.config.input_shapes.empty()) return types;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) != graph::kNone) continue;
    if (!is_static(input.name)) return types;
    shapes[input.name] = *graph::static_shape(types, input.name);
  }
  return exec::infer_value_types(runtime, model, shapes);
}

Inspection inspect_within_time(const InspectOptions& options) {
  onnx::Model model = onnx::read_model(run::model_file(options.model));
  check_shapes(model, options);
  Inspection report;
  report.ir_version = model.ir_version;
  for (const auto& opset : model.opsets) report.opsets[opset.domain] = opset.version;
  for (const auto& name : model.functions) report.notes.push_back(fmt::format("model-local function {}", name));
  graph::unfold(model, {options.resources.memory_budget, options.stop});
  for (const auto& node : model.graph.nodes) {
    if (node.op_type() != onnx::kBodyInputs) ++report.op_types[node.op_type()];
  }
  graph::lift_constants(model);
  graph::sort_topologically(model);

  const exec::Runtime runtime(options.runtime);
  const graph::Index index(model);
  auto types = types_of(runtime, model, index, options);
  forget_unknown_ranks(model, index, types);
  report.inputs = describe(model.graph.inputs, index, types);
  report.outputs = describe(model.graph.outputs, index, types);
  for (const auto& tensor : model.graph.initializers) {
    report.parameters += static_cast<std::uint64_t>(tensor.count());
    report.parameter_bytes += tensor.data.size();
  }
  describe_layers(model, index, types, report);
  add_finetune_bytes(model, types, report);
  describe_products(runtime, model, index, report);
  report.transformer = graph::find_transformer(model, types);
  if (const auto alive = graph::liveness(model, index, types)) {
    report.peak_activation_bytes = alive->peak_bytes;
    report.peak_at = alive->at_node;
  }
  if (!report.activation_bytes) {
    const bool open = std::any_of(model.graph.inputs.begin(), model.graph.inputs.end(),
                                  [&](const auto& input) { return !graph::static_shape(types, input.name); });
    report.notes.emplace_back(
        open ? "some activation sizes depend on dynamic axes; give --shape NAME:1x3x224x224 to know them"
             : "some activation sizes depend on values of the inputs");
  }
  return report;
}

}  // namespace

Inspection inspect(const InspectOptions& options) { return run::within_time(options, inspect_within_time); }

}  // namespace detent
