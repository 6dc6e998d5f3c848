#include "pipeline/stages/block_floats.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "config/block_float_names.h"
#include "config/enum_names.h"
#include "quantization/assignment.h"
#include "quantization/emit/block_floats.h"
#include "quantization/placement/placement.h"
#include "run/records/quantize_result.h"

namespace detent::pipeline {

void emit_block_floats(Run& run) {
  const auto& config = run.options.config;
  auto& prepared = run.prepared;
  auto placement = run::place_qdq_pairs(prepared, config);
  // What keeps weights from being numbers at all is told before any work.
  quantization::scan_weights(prepared.model, placement, run.options.allow_nonfinite);
  run.note(placement.notes);
  const auto counts = run::count_nodes(prepared.model, placement);
  run.result.nodes_quantized = counts.quantized;
  run.result.nodes_in_float = counts.in_float;
  run.note(counts.notes);
  auto made = quantization::emit_block_floats(std::move(prepared.model), prepared.types, placement, config.block_float);
  run.model = std::move(made.model);
  run.result.notes.push_back(
      fmt::format("{} that round{} to {}; the file's weights stay in float32, and ONNX Runtime runs it with AMD "
                  "Quark's operator library alone",
                  count_with_noun(made.operators, "operator"), made.operators == 1 ? "s" : "",
                  config::word_of(config::enum_names<BlockFloat>(), static_cast<int>(config.block_float))));
}

}  // namespace detent::pipeline
