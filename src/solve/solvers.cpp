#include "solve/solvers.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/input_form.h"
#include "solve/layers/mini_batches.h"

namespace detent::solve {

const Solver* find_solver(WeightSolver id) {
  for (const Solver* solver : all_solvers()) {
    if (solver->id == id) return solver;
  }
  return nullptr;
}

void check_has_streamed_form(const Solver& solver) {
  if (solver.has_streamed_form) return;
  throw usage_error(fmt::format("{} has no streamed form", solver.name), "leave out --set finetune-form=streamed");
}

std::size_t coordinate_sweeps(const FinetuneConfig& config) {
  const Solver* solver = find_solver(config.solver);
  return config.coordinate_sweeps.value_or(solver == nullptr ? Solver{}.coordinate_sweeps : solver->coordinate_sweeps);
}

SolverCost iteration_cost(const SolverSizes& sizes, const FinetuneConfig& config) {
  constexpr double kStateArrays = 5;  // variable, two moments, rounded value, base or offset
  constexpr double kRows = 64;        // that one thread works on
  return {static_cast<double>(config.num_iterations) * (sizes.product() + kStepFlops * sizes.weights),
          kStateArrays * sizes.weights + static_cast<double>(sizes.threads) * kRows * 2 * sizes.fan_in};
}

namespace {

constexpr double kGatherFlops = 60;      // copying one element of a patch
constexpr double kErrorFlops = 8;        // a product in double, on a path that reads the whole matrix
constexpr std::size_t kRows = 64;        // that one thread works on
constexpr std::size_t kStateArrays = 5;  // of an optimizer: variable, two moments, rounded value, base or offset

struct Sizes {
  double weights, fan_in, groups, positions, inputs, outputs;

  Sizes(const LayerGeometry& g, const Shape& input)
      : weights(static_cast<double>(g.outputs * g.fan_in())),
        fan_in(static_cast<double>(g.fan_in())),
        groups(static_cast<double>(g.groups)),
        positions(static_cast<double>(Patches(g, input).positions())),
        inputs(std::accumulate(input.begin(), input.end(), 1.0, std::multiplies<>())),
        outputs(positions * static_cast<double>(g.outputs)) {}
};

}  // namespace

FormCost gram_cost(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                   const FinetuneConfig& config, std::size_t threads) {
  const Sizes s(geometry, input_shape);
  const double matrix = s.groups * s.fan_in * s.fan_in;
  const double product = 2 * s.weights * s.fan_in;                                  // weights · G
  const double rows = s.groups * s.fan_in + static_cast<double>(geometry.outputs);  // of a tile
  const double positions =
      std::min(s.positions * static_cast<double>(samples), static_cast<double>(gram_positions(geometry)));

  FormCost cost;
  cost.flops = positions * (matrix + 2 * s.weights + kGatherFlops * rows);
  double state = 2 * s.weights;  // integers: the solution and the one it is compared with
  const auto most = static_cast<double>(most_positions(geometry, config));
  if (most > 0 && positions <= most) {     // N × N matrices, see input_gptq.cpp
    const double reduced = positions / 2;  // mostly; how many it will be, the values tell
    cost.flops = 2 * positions * positions * s.fan_in + 6 * reduced * reduced * s.fan_in +
                 (12 + 2 * static_cast<double>(coordinate_sweeps(config))) * 2 * s.weights * reduced;
    // The positions, and three matrices of products, or at worst all of them reduced; and what rounding makes of these.
    cost.bytes = static_cast<std::uint64_t>(sizeof(float) *
                                            (std::max(s.fan_in + 3 * positions, 2 * s.fan_in + positions) * positions +
                                             2 * s.fan_in * Cholesky::kBlock + 3 * s.weights));
    return cost;
  }
  bool in_place = false;  // the matrix becomes its factor
  if (const Solver* solver = find_solver(config.solver)) {
    in_place = solver->takes_symmetric_form && s.groups == 1 && !config.update_bias && coordinate_sweeps(config) == 0 &&
               asymmetric_share(positions_per_weight(geometry, input_shape, samples)) == 0;
    const SolverCost own = solver->cost({s.weights, s.fan_in, s.groups, threads}, config);
    cost.flops += own.flops;
    state += own.floats;
  }
  cost.flops += static_cast<double>(coordinate_sweeps(config)) * 3 * product + 2 * kErrorFlops * product;
  double summing = matrix + rows * static_cast<double>(tile_positions(static_cast<std::size_t>(rows)));
  if (ShiftedSums::saves_work(geometry))
    summing = std::max(summing, static_cast<double>(ShiftedSums::bytes(geometry, threads) / sizeof(float)));
  const double solving = state + (in_place ? 0 : matrix);
  cost.bytes = static_cast<std::uint64_t>(sizeof(float) * (s.weights + std::max(summing, solving)));
  return cost;
}

FormCost streamed_cost(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                       const FinetuneConfig& config, std::size_t threads) {
  const Sizes s(geometry, input_shape);
  const auto iterations = static_cast<double>(config.num_iterations);
  const auto batch = static_cast<double>(std::max<std::size_t>(config.batch_size, 1));
  const double positions = batch * std::min(s.positions, static_cast<double>(kPositionsOfSample));  // of a step
  const double rows = s.groups * s.fan_in + static_cast<double>(geometry.outputs);                  // of a position
  FormCost cost;
  // Forward and backward by weights; copying positions, and each output's loss and slope.
  cost.flops = iterations * (positions * (4 * s.weights + kGatherFlops * rows) + kStepFlops * s.weights);
  // Two products to compare with nearest rounding, and two for each sweep.
  const auto sweeps = static_cast<double>(config.drop_ratio < 1 ? 0 : coordinate_sweeps(config));
  const double kept = sweeps > 0 ? std::min(s.positions * static_cast<double>(samples),
                                            static_cast<double>(descent_positions(geometry)))
                                 : 0;
  cost.flops += kept * (2 * s.weights * (2 + 2 * sweeps) + kGatherFlops * rows);
  const double mixed = config.drop_ratio < 1 ? 2 * s.inputs : 0;
  // Samples at hand and one more, mini-batches; for each thread outputs now and next, values and slopes.
  const double steps = static_cast<double>(kStateArrays + 1) * s.weights + s.inputs + s.outputs + mixed +
                       2 * static_cast<double>(kBatchBytes / sizeof(float)) + positions * rows +
                       static_cast<double>(threads * kRows) * (2 * positions + 512);
  // Positions and targets twice; integers; for each thread the rest, values and slopes.
  const double descent = kept * (s.groups * s.fan_in + 2 * static_cast<double>(geometry.outputs)) + 3 * s.weights +
                         s.inputs + s.outputs + static_cast<double>(threads * kRows) * (2 * kept + 3 * s.fan_in);
  cost.bytes = static_cast<std::uint64_t>(sizeof(float) * std::max(steps, descent));
  return cost;
}

bool has_gram_form(const FinetuneConfig& config) { return config.drop_ratio >= 1; }

}  // namespace detent::solve
