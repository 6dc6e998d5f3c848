#include "solve/layers/iterations.h"

#include <algorithm>
#include <numeric>

namespace detent::solve {

Integers run(AdaRoundIterations& problem, const FinetuneConfig& config, const SolveControl& control) {
  const bool report = static_cast<bool>(control.progress);
  std::size_t begin = 0;
  const auto state = [&](auto& archive) {
    archive(begin);
    problem.variables().visit_state(archive);
  };
  restore_state(control.state, [&](auto& archive) {
    state(archive);
    problem.changed();
  });
  for (const std::size_t end : interval_ends(config.num_iterations)) {
    if (end <= begin) continue;
    const double loss = problem.iterate(begin, end, report);
    begin = end;
    if (report) control.progress(end, loss);
    if (config.early_stop && problem.variables().decided()) break;
    save_state(control.state, state);
  }
  return problem.variables().integers();
}

Integers run(AdaQuantIterations& problem, const FinetuneConfig& config, const SolveControl& control) {
  Integers best = problem.variables().integers();
  std::vector<double> best_errors = problem.errors();
  const std::size_t fan_in = best.size() / std::max<std::size_t>(best_errors.size(), 1);
  std::size_t begin = 0;
  const auto state = [&](auto& archive) {
    archive(begin);
    archive(best);
    archive(best_errors);
    problem.variables().visit_state(archive);
  };
  restore_state(control.state, [&](auto& archive) {
    state(archive);
    problem.changed();
  });
  for (const std::size_t end : interval_ends(config.num_iterations)) {
    if (end <= begin) continue;
    problem.iterate(begin, end);
    begin = end;
    const Integers now = problem.variables().integers();
    const std::vector<double> errors = problem.errors();
    bool better = false;
    for (std::size_t m = 0; m < errors.size(); ++m) {
      if (!(errors[m] < best_errors[m])) continue;
      better = true;
      best_errors[m] = errors[m];
      const auto at = static_cast<std::ptrdiff_t>(m * fan_in);
      std::copy_n(now.begin() + at, fan_in, best.begin() + at);
    }
    if (control.progress) {
      const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
      control.progress(end, (problem.constant() + sum) / problem.divisor());
    }
    if (config.early_stop && !better) break;
    save_state(control.state, state);
  }
  return best;
}

Solution run(StreamedIterations& problem, const FinetuneConfig& config, const SolveControl& control) {
  double last_loss = 0;
  std::size_t begin = 0;
  const auto state = [&](auto& archive) {
    archive(begin);
    archive(last_loss);
    archive(problem.choice());
    problem.variables().visit_state(archive);
  };
  restore_state(control.state, [&](auto& archive) {
    state(archive);
    problem.changed();
  });
  for (const std::size_t end : interval_ends(config.num_iterations)) {
    if (end <= begin) continue;
    const double loss = problem.iterate(begin, end);
    if (control.progress) control.progress(end, loss);
    const bool no_better = begin > 0 && config.rounding == WeightSolver::adaquant && !(loss < last_loss);
    if (config.early_stop && (no_better || problem.variables().decided())) break;
    last_loss = loss;
    begin = end;
    save_state(control.state, state);
  }
  return problem.variables().solution();
}

}  // namespace detent::solve
