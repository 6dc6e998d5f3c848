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

std::string stay(std::size_t count, const char* type) {
  return fmt::format("{} {} layer{} in float", count, type, count == 1 ? " stays" : "s stay");
}

// What could be smaller, or on integers, where the user named no operators.
std::vector<std::string> notes_of_unnamed(const Prepared& prepared, QuantConfig config) {
  if (!config.op_types.empty() || !config.nodes.empty() || config::writes_16_bits(config)) return {};
  std::vector<std::string> notes;
  const auto& nodes = prepared.model.graph.nodes;
  const auto grus = static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("GRU"); }));
  if (grus > 0)
    notes.push_back(
        fmt::format("{}, which ONNX Runtime has not on integers: --weights-only --op-types GRU stores weights "
                    "in 8 or 4 bits",
                    stay(grus, "GRU")));
  if (std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("LSTM"); })) return notes;
  config.op_types = {"LSTM"};
  config.exclude_nodes.clear();
  config.exclude_op_types.clear();
  if (const auto count = quantization::recurrent_layers(prepared.model, config).size(); count > 0)
    notes.push_back(fmt::format("{}: --op-types Conv,ConvTranspose,Gemm,MatMul,LSTM gives {} weights of 8 bits",
                                stay(count, "LSTM"), count == 1 ? "it" : "them"));
  return notes;
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
  if (own.nodes.empty()) return notes_of_unnamed(prepared, options.config);
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
