#include "solve/sweep/cost.h"

#include <algorithm>

#include "base/error.h"
#include "solve/layers/input_form.h"
#include "solve/solvers.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::solve {

bool is_streamed(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                 const FinetuneConfig& config, std::size_t threads) {
  if (config.form == FinetuneForm::streamed) return true;
  const bool possible = has_gram_form(config);
  const Solver* solver = find_solver(config.rounding);
  const bool has_choice = solver == nullptr || solver->has_streamed_form;
  if (!possible || config.form == FinetuneForm::gram || !has_choice) return !possible;
  constexpr std::uint64_t kLargestForm = std::uint64_t{512} << 20;
  constexpr double kGramIsBetter = 2;  // by several percent of the error: worth as many times the work
  const auto gram = gram_cost(geometry, input_shape, samples, config, threads);
  const auto streamed = streamed_cost(geometry, input_shape, samples, config, threads);
  return gram.bytes > kLargestForm || kGramIsBetter * streamed.flops < gram.flops;
}

std::vector<LayerCost> layer_costs(const onnx::Model& model, const graph::ValueTypes& types,
                                   const FinetuneConfig& config, std::uint64_t samples, std::size_t threads) {
  std::vector<LayerCost> costs;
  for (const auto& layer : linear_layers(model)) {
    const auto node = static_cast<std::size_t>(layer.float_node);
    if (!is_selected(model.graph.nodes[node], config) || !graph::static_bytes(types, layer.float_input)) continue;
    Shape shape;
    for (const auto& dim : *types.at(layer.float_input).shape) shape.push_back(dim.value);
    // Where the runtime does not know the rank either, it tells of no axes.
    if (shape.empty()) continue;
    const auto geometry = geometry_of(model, layer, shape);
    const bool streamed = is_streamed(geometry, shape, samples, config, threads);
    const auto cost = streamed ? streamed_cost(geometry, shape, samples, config, threads)
                               : gram_cost(geometry, shape, samples, config, threads);
    costs.push_back({node, layer.name, streamed, cost.bytes, cost.flops, geometry, shape});
  }
  return costs;
}

double exchanged_bytes(const LayerCost& cost, const FinetuneConfig& config, std::uint64_t samples) {
  const auto& geometry = cost.geometry;
  const auto positions = static_cast<double>(Patches(geometry, cost.input_shape).positions());
  const auto input = static_cast<double>(product_of(cost.input_shape));
  const auto groups = static_cast<double>(geometry.groups), fan_in = static_cast<double>(geometry.fan_in());
  const auto outputs = static_cast<double>(geometry.outputs), all = static_cast<double>(samples);
  const double integers = outputs * fan_in * sizeof(std::int32_t);
  if (cost.streamed) return sizeof(float) * all * (input + positions * outputs) + integers;
  const double drawn = static_cast<double>(gram_positions(geometry)) / all + 1;
  const bool whole = positions <= drawn || (ShiftedSums::saves_work(geometry) && positions <= kTimesByShifts * drawn);
  const double of_sample = whole ? input : drawn * groups * fan_in;
  const bool has_sums = all * std::min(positions, drawn) > static_cast<double>(most_positions(geometry, config));
  const double fitted = 1 - 1.0 / kHeldBackEvery;
  return sizeof(float) * (fitted * all * of_sample + (has_sums ? groups * fan_in * fan_in / 2 : 0)) + integers;
}

const LayerCost& heaviest(const std::vector<LayerCost>& costs) {
  if (costs.empty())
    throw usage_error("no layer of known shape can be fine-tuned",
                      "change --set finetune-nodes or --set finetune-op-types");
  return *std::max_element(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

}  // namespace detent::solve
