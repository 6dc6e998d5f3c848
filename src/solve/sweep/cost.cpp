#include "solve/sweep/cost.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/input_form.h"
#include "solve/layers/reconstruction_targets.h"
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

namespace {

// How often a method tells others of its integers, in the form that it is given: what rounds, each time that the better
// of two are chosen, and descent.
double times_integers_travel(const LayerCost& cost, const FinetuneConfig& config, bool has_inputs, bool aims) {
  if (cost.streamed) return uses_sample_descent(config) ? 2 : 1;
  const double descends = coordinate_sweeps(config) > 0 ? 1 : 0;
  if (config.rounding != WeightSolver::gptq) return (config.rounding == WeightSolver::nearest ? 0 : 2) + descends;
  if (has_inputs) return 1;
  return (aims || descends > 0 ? 4 : 1) + descends;
}

}  // namespace

double exchanged_bytes(const LayerCost& cost, const FinetuneConfig& config, std::uint64_t samples) {
  const auto& geometry = cost.geometry;
  const auto positions = static_cast<double>(Patches(geometry, cost.input_shape).positions());
  const auto input = static_cast<double>(product_of(cost.input_shape));
  const auto groups = static_cast<double>(geometry.groups), fan_in = static_cast<double>(geometry.fan_in());
  const auto outputs = static_cast<double>(geometry.outputs), all = static_cast<double>(samples);
  const double fitted = all * (1 - 1.0 / kHeldBackEvery);
  const bool aims =
      config.update_bias || asymmetric_share(positions_per_weight(geometry, cost.input_shape, samples)) > 0;
  const double whole = input + (aims ? positions * outputs : 0);
  if (cost.streamed)
    return sizeof(float) * fitted * whole + outputs * fan_in * times_integers_travel(cost, config, false, aims);
  const double drawn = static_cast<double>(gram_positions(geometry)) / all + 1, taken = std::min(positions, drawn);
  const bool all_are_taken =
      positions <= drawn || (!aims && ShiftedSums::saves_work(geometry) && positions <= kTimesByShifts * drawn);
  const double part = std::min(whole, drawn * (groups * fan_in + (aims ? outputs : 0)));
  // Samples come as a whole until there are so many positions that sums begin.
  const auto most = static_cast<double>(most_positions(geometry, config));
  const double before = all_are_taken ? fitted : std::min(fitted, std::floor(most / taken) + 1);
  const bool has_sums = all * taken > most;
  const double sums = has_sums ? groups * fan_in * fan_in / 2 + (aims ? outputs * fan_in : 0) : 0;
  return sizeof(float) * (before * whole + (fitted - before) * part + sums) +
         outputs * fan_in * times_integers_travel(cost, config, !has_sums, aims);
}

const LayerCost& heaviest(const std::vector<LayerCost>& costs) {
  if (costs.empty())
    throw usage_error("no layer of known shape can be fine-tuned",
                      "change --set finetune-nodes or --set finetune-op-types");
  return *std::max_element(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

}  // namespace detent::solve
