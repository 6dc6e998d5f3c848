#include "pipeline/stages/dynamic.h"

#include <algorithm>
#include <utility>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "quantization/assignment.h"
#include "quantization/dynamic.h"
#include "quantization/emit/dynamic.h"
#include "run/model/finish_integers.h"

namespace detent::pipeline {
namespace {

// Of weights that several nodes read.
void mark_shared_weight_shapes(run::Prepared& prepared, const quantization::Placement& weights) {
  const graph::Index index(prepared.model);
  for (const auto& mark : weights.marks) {
    if (index.consumers(mark.value).size() < 2) continue;
    auto dims = prepared.model.graph.initializers[static_cast<std::size_t>(index.initializer(mark.value))].dims;
    std::sort(dims.begin(), dims.end());
    prepared.shapes_stored_once.insert(std::move(dims));
  }
}

}  // namespace

void emit_dynamic(Run& run) {
  const auto& config = run.options.config;
  auto& model = run.prepared.model;
  auto placement = quantization::place_dynamic(model, config, run.prepared.transposed);
  run.note(placement.notes);
  quantization::Proposals proposals;
  proposals.constants = quantization::scan_weights(model, placement.weights, run.options.allow_nonfinite);
  run.note(placement.weights.notes);
  const auto assignment = quantization::assign(model, placement.weights, proposals, config);
  run.note(assignment.notes);
  mark_shared_weight_shapes(run.prepared, placement.weights);
  run.model = quantization::emit_dynamic(std::move(model), placement, assignment.values);
  run.note(run::store_weights(placement.stored, run.model));
  run.result.nodes_quantized = placement.nodes.size() + placement.stored.size();
  run.result.nodes_in_float = placement.in_float;
  graph::deduplicate_constants(run.model, run.prepared.shapes_stored_once, true);
  graph::recompute_constants_at_load(run.model, run.prepared.folded);
  run.result.notes.emplace_back(
      "an activation has one scale for its whole batch, so what shares a batch with large values loses precision; "
      "--weights-only with 8 bits does not depend on the batch");
}

}  // namespace detent::pipeline
