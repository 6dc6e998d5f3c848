// What the stages of all other formats would make.
#include <algorithm>
#include <set>
#include <string_view>

#include "config/derived.h"
#include "config/node_formats.h"
#include "graph/kv_cache.h"
#include "graph/transformer.h"
#include "pipeline/planned/predictions.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/floats.h"
#include "quantization/dynamic.h"
#include "quantization/floats/float_placement.h"
#include "quantization/placement/placement.h"
#include "run/model/node_formats.h"
#include "run/records/quantize_result.h"

namespace detent::pipeline {
namespace {

std::uint64_t constant_bytes(const onnx::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) bytes += tensor.data.size();
  return bytes;
}

std::uint64_t bytes_as_it_is(const onnx::Model& model) { return graph_bytes(model) + constant_bytes(model); }

// Integers, scales, and zero points where they are stored.
std::uint64_t stored_bytes(const quantization::BlockTensor& tensor) {
  const auto values = static_cast<std::uint64_t>(tensor.rows * tensor.columns);
  const auto blocks = static_cast<std::uint64_t>(tensor.format.blocks_of(tensor.rows) * tensor.columns);
  const std::uint64_t scale = tensor.format.scales == ScaleType::as_weight ? *onnx::byte_count(tensor.type, 1) : 1;
  const auto bits = static_cast<std::uint64_t>(tensor.format.bits);
  return values * bits / 8 + blocks * scale + (tensor.format.symmetric ? 0 : blocks * bits / 8);
}

// Of 32 bits of a weight. Blocks: a scale of 32 bits for each 32 weights.
std::uint64_t bits_as(config::NodeFormat format) {
  if (format == config::NodeFormat::fp32) return 32;
  const int bits = config::block_bits(format);
  return bits == 0 ? 8 : static_cast<std::uint64_t>(bits) + 1;
}

// Of the nodes that get integers with scales from samples.
std::uint64_t pair_bytes(const Run& run, const run::NodesByFormat& nodes) {
  if (nodes.fixed.empty()) return 0;
  auto config = run.options.config;
  for (const auto* others : {&nodes.in_float, &nodes.blocks, &nodes.dynamic})
    config.exclude_nodes.insert(config.exclude_nodes.end(), others->begin(), others->end());
  return kPairBytes * run::place_qdq_pairs(run.prepared, config).marks.size();
}

}  // namespace

std::uint64_t graph_bytes(const onnx::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& node : model.graph.nodes) bytes += 64 + node.name().size();
  return bytes;
}

std::uint64_t saved_by_8_bits(const onnx::Model& model, const std::set<std::string>& constants) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers)
    bytes += constants.contains(tensor.name) ? tensor.data.size() / 4 * 3 : 0;
  return bytes;
}

void predict_choice_of_bits(Run&, Forecast& forecast) { forecast.plan.nodes_may_change = true; }

void predict_blocks(Run& run, Forecast& forecast) {
  const auto& model = run.blocks->draft().model;
  const auto& placement = run.blocks->draft().placement;
  auto& plan = forecast.plan;
  plan.nodes_quantized = quantization::node_count(placement);
  plan.nodes_in_float = placement.in_float;
  std::uint64_t rest = constant_bytes(model), stored = 0;
  for (const auto& tensor : placement.tensors) {
    const std::uint64_t whole = model.graph.initializers[tensor.initializer].data.size();
    stored += stored_bytes(tensor);
    if (!tensor.stays) rest -= std::min(whole, rest);
  }
  forecast.float_bytes = rest;  // nearly all of it
  plan.output_bytes = graph_bytes(model) + stored + rest;
  if (run.options.kv_cache.type != KvCacheType::keep) predict_cache(run, forecast);
}

void predict_dynamic(Run& run, Forecast& forecast) {
  const auto& model = run.prepared.model;
  auto& plan = forecast.plan;
  const auto placement = quantization::place_dynamic(model, run.options.config, run.prepared.transposed);
  run.note(placement.notes);
  plan.nodes_quantized = placement.nodes.size() + placement.stored.size();
  plan.nodes_in_float = placement.in_float;
  std::set<std::string> quantized;
  for (const auto& mark : placement.weights.marks) quantized.insert(mark.value);
  for (const auto& node : model.graph.nodes) {
    if (placement.stored.contains(node.id())) quantized.insert(node.inputs().begin() + 1, node.inputs().end());
  }
  plan.output_bytes = bytes_as_it_is(model) - saved_by_8_bits(model, quantized);
}

void predict_block_floats(Run& run, Forecast& forecast) {
  const auto placement = run::place_qdq_pairs(run.prepared, run.options.config);
  run.note(placement.notes);
  const auto counts = run::count_nodes(run.prepared.model, placement);
  forecast.plan.nodes_quantized = counts.quantized;
  forecast.plan.nodes_in_float = counts.in_float;
  forecast.plan.output_bytes = bytes_as_it_is(run.prepared.model);
}

void predict_cache(Run& run, Forecast& forecast) {
  const auto& model = run.blocks ? run.blocks->draft().model : run.model;
  (void)graph::cached_attentions(model);  // throws where the cache cannot be quantized
  run.result.notes.emplace_back("what the samples take that give the cache its scales is not counted");
  if (run.blocks) return;
  forecast.plan.transformer = graph::find_transformer(model, graph::ValueTypes());
  forecast.plan.output_bytes = bytes_as_it_is(model);
}

void predict_mixture(Run& run, Forecast& forecast) {
  const auto& prepared = run.prepared;
  auto& plan = forecast.plan;
  const auto possible = run::possible_formats(prepared, run.options.config);
  const auto formats = run::given_formats(prepared, possible, run.options.node_formats);
  std::map<std::string_view, std::uint64_t> bits;  // of constants; those of several formats are stored for each
  plan.nodes_quantized = plan.nodes_in_float = 0;
  for (std::size_t n = 0; n < formats.size(); ++n) {
    if (formats[n] != config::NodeFormat::fp32) ++plan.nodes_quantized;
    if (formats[n] == config::NodeFormat::fp32 && !possible[n].empty()) ++plan.nodes_in_float;
    for (const auto& input : prepared.model.graph.nodes[n].inputs()) {
      auto& most = bits[input];
      most = std::max(most, bits_as(formats[n]));
    }
  }
  plan.output_bytes = graph_bytes(prepared.model) + pair_bytes(run, run::nodes_by_format(prepared, possible, formats));
  for (const auto& tensor : prepared.model.graph.initializers) {
    const bool can_shrink = tensor.type == onnx::DataType::float32 && tensor.dims.size() > 1;
    const auto found = bits.find(tensor.name);
    plan.output_bytes += tensor.data.size() * (can_shrink && found != bits.end() ? found->second : 32) / 32;
  }
}

void predict_floats(Run& run, Forecast& forecast) {
  auto& plan = forecast.plan;
  if (run.recipe.lowers_rest) {
    plan.output_bytes -= forecast.float_bytes / 2;
    return;
  }
  const auto& model = run.prepared.model;
  plan.output_bytes = bytes_as_it_is(model);
  if (run.floats->config.float_type == FloatType::float32) return;
  const auto placed =
      quantization::place_floats(model, types_of_samples(run, run.prepared, forecast), run.floats->facts);
  run.note(placed.notes);
  FloatConversion floats;
  floats.nodes = static_cast<std::size_t>(std::count(placed.low.begin(), placed.low.end(), true));
  floats.nodes_kept = placed.kept;
  plan.nodes_may_change = run.recipe.has_samples;
  std::set<std::string_view> in_float32;  // constants
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (placed.low[n]) continue;
    for (const auto& name : model.graph.nodes[n].inputs()) in_float32.insert(name);
  }
  std::uint64_t before = 0, halved = 0;
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.type != onnx::DataType::float32) continue;
    before += tensor.data.size();
    if (!in_float32.contains(tensor.name)) halved += tensor.data.size();
  }
  plan.output_bytes -= halved / 2;
  floats.constants = before > 0 ? static_cast<double>(halved) / 2 / static_cast<double>(before) : 0;
  plan.floats = floats;
}

}  // namespace detent::pipeline
