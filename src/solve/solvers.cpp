#include "solve/solvers.h"

#include <fmt/format.h>

#include "base/error.h"

namespace detent::solve {

const Solver* find_solver(WeightSolver rounding) {
  for (const Solver* solver : all_solvers()) {
    if (solver->rounding == rounding) return solver;
  }
  return nullptr;
}

void check_has_streamed_form(const Solver& solver) {
  if (solver.has_streamed_form) return;
  throw usage_error(fmt::format("{} has no streamed form", solver.name), "leave out --set finetune-form=streamed");
}

std::size_t coordinate_sweeps(const FinetuneConfig& config) {
  const Solver* solver = find_solver(config.rounding);
  return config.coordinate_sweeps.value_or(solver == nullptr ? Solver{}.coordinate_sweeps : solver->coordinate_sweeps);
}

SolverCost iteration_cost(const SolverSizes& sizes, const FinetuneConfig& config) {
  constexpr double kStateArrays = 5;  // variable, two moments, rounded value, base or offset
  constexpr double kRows = 64;        // that one thread works on
  return {static_cast<double>(config.num_iterations) * (sizes.product() + kStepFlops * sizes.weights),
          kStateArrays * sizes.weights + static_cast<double>(sizes.threads) * kRows * 2 * sizes.fan_in};
}

}  // namespace detent::solve
