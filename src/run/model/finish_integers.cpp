#include "run/model/finish_integers.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "config/derived.h"
#include "config/targets.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "quantization/assignment.h"
#include "quantization/dynamic.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/qoperators.h"
#include "quantization/emit/stored_weights.h"
#include "quantization/formats.h"
#include "quantization/placement/left_in_float.h"

namespace detent::run {

namespace {

// Where recurrent layers have no integers at all.
std::vector<std::string> notes_of_recurrent(const onnx::Model& model) {
  quantization::LeftInFloat left;
  for (const auto& node : model.graph.nodes) {
    if (graph::is_recurrent(node))
      left.add(node, "detent writes recurrent layers on integers for ONNX Runtime's CPU alone");
  }
  return left.notes();
}

std::string count_in_float_text(std::size_t count, const char* type) {
  return fmt::format("{} {} layer{} in float", count, type, count == 1 ? " stays" : "s stay");
}

// What could be smaller, or on integers, where the user named no operators.
std::vector<std::string> notes_of_unnamed(const Prepared& prepared, QuantConfig config) {
  if (!config::target(config).is_ort_cpu) return notes_of_recurrent(prepared.model);
  if (!config.op_types.empty() || !config.nodes.empty() || config::writes_16_bits(config)) return {};
  std::vector<std::string> notes;
  const auto& nodes = prepared.model.graph.nodes;
  const auto stored = stored_layers(prepared);
  const auto grus = static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [&](const auto& node) { return node.is("GRU") && !stored.contains(node.id()); }));
  if (grus > 0) notes.push_back(count_in_float_text(grus, "GRU") + ": ONNX Runtime has none on integers");
  if (std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("LSTM"); })) return notes;
  if (!prepared.tried.empty()) return notes;
  config.op_types = {"LSTM"};
  config.exclude_nodes.clear();
  config.exclude_op_types.clear();
  if (const auto count = quantization::recurrent_layers(prepared.model, config).size(); count > 0)
    notes.push_back(fmt::format("{}: --op-types Conv,ConvTranspose,Gemm,MatMul,LSTM gives {} weights of 8 bits",
                                count_in_float_text(count, "LSTM"), count == 1 ? "it" : "them"));
  return notes;
}

std::vector<std::string> quantize_recurrent(const Prepared& prepared, const QuantizeOptions& options,
                                            onnx::Model& quantized) {
  QuantConfig own = options.config;
  own.nodes.clear();
  for (const auto n : recurrent_layers(prepared, options.config))
    own.nodes.push_back(prepared.model.graph.nodes[n].id());
  if (own.nodes.empty()) return notes_of_unnamed(prepared, options.config);
  own.op_types = {"LSTM"};
  own.exclude_op_types.clear();
  own.exclude_nodes.clear();
  if (quantization::is_4_bit(own.weight_type)) own.weight_type = QuantType::int8;
  auto made = quantization::make_dynamic(std::move(quantized), own, options.allow_nonfinite);
  quantized = std::move(made.model);
  made.notes.push_back(fmt::format("weights of 8 bits, with scales of activations found while the model runs: {}",
                                   count_with_noun(made.nodes, "LSTM layer")));
  return std::move(made.notes);
}

}  // namespace

std::vector<std::size_t> recurrent_layers(const Prepared& prepared, const QuantConfig& config) {
  auto layers = quantization::recurrent_layers(prepared.model, config);
  const bool named = quantization::names_recurrent(config);
  std::erase_if(layers, [&](std::size_t n) {
    const auto& id = prepared.model.graph.nodes[n].id();
    return prepared.keeps_in_float(id) || !(named || prepared.tried.contains(id));
  });
  return layers;
}

std::set<std::string> stored_layers(const Prepared& prepared) {
  auto layers = prepared.stored;
  std::erase_if(layers, [&](const auto& id) { return prepared.keeps_in_float(id); });
  return layers;
}

std::vector<std::string> store_weights(const std::set<std::string>& nodes, onnx::Model& quantized) {
  const auto count = quantization::store_weights(quantized, nodes);
  if (count == 0) return {};
  return {
      fmt::format("weights of 8 bits that become floats when the model is loaded: {}", count_with_noun(count, "node"))};
}

bool changes_recurrent(const Prepared& prepared, const QuantConfig& config) {
  return !stored_layers(prepared).empty() || !recurrent_layers(prepared, config).empty();
}

std::vector<std::string> finish_integers(const Prepared& prepared, const QuantizeOptions& options,
                                         onnx::Model& quantized) {
  auto notes = quantize_recurrent(prepared, options, quantized);
  auto stored = stored_layers(prepared);
  stored.insert(prepared.stored_products.begin(), prepared.stored_products.end());
  for (auto& note : store_weights(stored, quantized)) notes.push_back(std::move(note));
  if (options.config.quant_format == QuantFormat::qoperator) {
    const auto made = quantization::to_qoperators(quantized);
    notes.push_back(
        fmt::format("operators on integers: {}; between QuantizeLinear and DequantizeLinear, since there is no such "
                    "operator: {}",
                    made.nodes, made.left));
  }
  const bool is_ort_cpu = config::target(options.config).is_ort_cpu;
  graph::deduplicate_constants(quantized, prepared.shapes_stored_once, is_ort_cpu);
  if (is_ort_cpu) graph::recompute_constants_at_load(quantized, prepared.folded);
  return notes;
}

}  // namespace detent::run
