#include "run/quantize_recurrent.h"

#include <fmt/format.h>

#include "quantization/assignment.h"
#include "quantization/dynamic.h"
#include "quantization/emit/dynamic.h"
#include "quantization/formats.h"

namespace detent::run {

std::vector<std::string> quantize_recurrent(const Prepared& prepared, const QuantizeOptions& options,
                                            onnx::Model& quantized) {
  QuantConfig own = options.config;
  own.nodes.clear();
  for (const auto n : quantization::recurrent_layers(prepared.model, options.config)) {
    const auto& name = prepared.model.graph.nodes[n].id();
    if (!prepared.unseen.contains(name)) own.nodes.push_back(name);
  }
  if (own.nodes.empty()) return {};
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
