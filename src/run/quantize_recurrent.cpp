#include "run/quantize_recurrent.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/wanted.h"
#include "quantization/assignment.h"
#include "quantization/dynamic.h"
#include "quantization/emit/dynamic.h"
#include "quantization/formats.h"

namespace detent::run {

namespace {

// That could have integers, where the user named no operators.
std::vector<std::string> note_of_unnamed(const Prepared& prepared, QuantConfig config) {
  if (!config.op_types.empty() || !config.nodes.empty() || config::writes_16_bits(config)) return {};
  const auto& nodes = prepared.model.graph.nodes;
  if (std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("LSTM"); })) return {};
  config.op_types = {"LSTM"};
  config.exclude_nodes.clear();
  config.exclude_op_types.clear();
  const auto count = quantization::recurrent_layers(prepared.model, config).size();
  if (count == 0) return {};
  return {
      fmt::format("{} LSTM layer{} in float: --op-types Conv,ConvTranspose,Gemm,MatMul,LSTM gives {} weights of 8 bits",
                  count, count == 1 ? " stays" : "s stay", count == 1 ? "it" : "them")};
}

}  // namespace

std::vector<std::string> quantize_recurrent(const Prepared& prepared, const QuantizeOptions& options,
                                            onnx::Model& quantized) {
  QuantConfig own = options.config;
  own.nodes.clear();
  for (const auto n : quantization::recurrent_layers(prepared.model, options.config)) {
    const auto& name = prepared.model.graph.nodes[n].id();
    if (!prepared.unseen.contains(name)) own.nodes.push_back(name);
  }
  if (own.nodes.empty()) return note_of_unnamed(prepared, options.config);
  own.op_types = {"LSTM"};
  own.exclude_op_types.clear();
  own.exclude_nodes.clear();
  if (quantization::is_4_bit(own.weight_type)) own.weight_type = QuantType::int8;
  auto placement = quantization::place_dynamic(quantized, own);
  quantization::Proposals proposals;
  proposals.constants = quantization::scan_weights(quantized, placement.weights, options.allow_nonfinite);
  const auto assignment = quantization::assign(quantized, placement.weights, proposals, own);
  quantized = quantization::emit_dynamic(std::move(quantized), placement, assignment.values);
  auto notes = assignment.notes;
  notes.push_back(
      fmt::format("{} LSTM layers have weights of 8 bits and quantize their activations while the model runs",
                  placement.nodes.size()));
  return notes;
}

}  // namespace detent::run
