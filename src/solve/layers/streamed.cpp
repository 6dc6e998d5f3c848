#include "solve/layers/streamed.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/input_descent.h"
#include "solve/solvers.h"

namespace detent::solve {
namespace {

constexpr std::size_t kPowerSamples = 8;  // that the inputs' mean square is taken from

}  // namespace

double input_power(LayerSamples& samples) {
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < std::min(samples.count(), kPowerSamples); ++i) {
    const SampleRef sample = samples.get(i);
    sum += dot_double(sample.input.data(), sample.input.data(), sample.input.size());
    count += static_cast<double>(sample.input.size());
  }
  return count > 0 ? sum / count : 0;
}

namespace {

/// Rows that go their way by themselves: pieces of row_ranges(), each within one group.
std::vector<RowRange> pieces_of(const QuantizedWeights& weights, std::size_t groups) {
  std::vector<RowRange> pieces;
  const std::size_t group_rows = weights.rows / groups;
  for (const RowRange rows : row_ranges(weights.rows, groups, weights.fan_in)) {
    for (std::size_t first = rows.first; first < rows.last;) {
      const std::size_t last = std::min(rows.last, (first / group_rows + 1) * group_rows);
      pieces.push_back({first, last});
      first = last;
    }
  }
  return pieces;
}

class Problem final : public StreamedIterations {
 public:
  Problem(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
          LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control)
      : control_(control),
        variables_(weights, bias, config, input_power(samples)),
        batches_(samples, geometry, config, control.threads),
        pieces_(pieces_of(weights, static_cast<std::size_t>(geometry.groups))) {
    for (const RowRange rows : pieces_) steps_.emplace_back(rows, geometry, kernels);
  }

  Solution found(const QuantizedWeights& weights, const FinetuneConfig& config) {
    Solution solution = run(*this, config, control_);
    const auto team = control_.team();
    gather_integers(solution.integers, weights, pieces_, team);
    if (!solution.bias.empty()) gather_rows(solution.bias, pieces_, 1, team);
    return solution;
  }

  double iterate(std::size_t first, std::size_t end) override {
    double sum = 0;
    for (std::size_t at = first; at < end;) {
      check_stop(control_);
      const std::span<const MiniBatch> batches = batches_.load(at, end);
      sum += run_batches(batches, at);
      at += batches.size();
    }
    return sum / static_cast<double>(end - first);
  }

  RoundingVariables& variables() override { return variables_; }
  std::uint64_t& choice() override { return choice_; }
  void changed() override {}

 private:
  double run_batches(std::span<const MiniBatch> batches, std::size_t first) {
    std::vector<std::vector<double>> losses(steps_.size(), std::vector<double>(batches.size()));
    share_for(steps_.size(), control_.threads, control_.team(), [&](std::size_t i) {
      steps_[i].run(variables_, batches, first, losses[i], [&] { check_stop(control_); });
    });
    double sum = 0;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      double loss = 0;
      for (const auto& piece : losses) loss += piece[b];
      sum += batches[b].positions > 0 ? loss / static_cast<double>(batches[b].positions) : 0;
    }
    return sum;
  }

  const SolveControl& control_;
  RoundingVariables variables_;
  std::uint64_t choice_ = 0;  // by arithmetic alone
  MiniBatches batches_;
  std::vector<RowRange> pieces_;
  std::vector<MiniBatchSteps> steps_;
};

}  // namespace

Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                        LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels,
                        const SolveControl& control) {
  const Solver* solver = find_solver(config.solver);
  if (solver == nullptr || samples.count() == 0) return nearest(weights, bias);
  check_has_streamed_form(*solver);
  Problem problem(weights, geometry, bias, samples, config, kernels, control);
  Solution solution = problem.found(weights, config);
  if (uses_sample_descent(config)) {
    solution.integers = descend_on_samples(weights, geometry, solution, samples, config, kernels, control);
  }
  if (config.solver == WeightSolver::adaround && config.update_bias && !bias.empty()) {
    solution.bias = streamed_bias(weights, geometry, solution, samples, kernels, control);
  }
  return solution;
}

namespace {

/// Sum of |y − target|². Replaces y by factor · 2 (y − target), its slope by y.
double loss_and_slope(float* y, const float* target, std::size_t count, float factor) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float d = y[i] - target[i];
    sum += static_cast<double>(d) * d;
    y[i] = factor * 2 * d;
  }
  return sum;
}

}  // namespace

void MiniBatchSteps::run(RoundingVariables& variables, std::span<const MiniBatch> batches, std::size_t first,
                         std::span<double> losses, const std::function<void()>& check) {
  if (variables.settled(rows_)) {
    for (std::size_t i = 0; i < batches.size(); ++i)
      losses[i] += last_loss_ * static_cast<double>(batches[i].positions);
    return;
  }
  const std::size_t together = variables.part_size();
  values_.resize(rows_.count() * std::min(together, fan_in_));
  slope_.resize(values_.size());
  const auto outputs_for = [&](const MiniBatch& batch) { return Outputs(rows_.count() * batch.positions); };
  const auto for_each_part = [&](const auto& fn) {
    for (std::size_t at = 0; at < fan_in_; at += together) fn(Patches::Range{at, std::min(at + together, fan_in_)});
  };
  Outputs now = outputs_for(batches[0]);
  for_each_part([&](Patches::Range part) {
    variables.weights_over_scale(rows_, part, values_.data());
    add_outputs(batches[0], part, now);
  });
  std::vector<float> by_bias;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    check();
    const double loss = loss_and_slopes(variables, batches[i], now, by_bias);
    losses[i] += loss;
    if (batches[i].positions > 0) last_loss_ = loss / static_cast<double>(batches[i].positions);
    const bool goes_on = i + 1 < batches.size();
    Outputs next = goes_on ? outputs_for(batches[i + 1]) : Outputs();
    for_each_part([&](Patches::Range part) {
      if (!variables.settled(rows_, part)) slopes_by_weights(batches[i], now, part);
      variables.step(rows_, part, slope_.data(), first + i, goes_on ? values_.data() : nullptr);
      if (goes_on) add_outputs(batches[i + 1], part, next);
    });
    if (variables.trains_bias()) variables.step_bias(rows_, by_bias.data(), first + i);
    now = std::move(next);
  }
}

/// The inputs of weight `first` and those after it, as matrix B of `gemm`; its leading dimension.
std::pair<const float*, std::size_t> MiniBatchSteps::inputs_of(const MiniBatch& batch, std::size_t first) const {
  if (batch.by_position) return {batch.inputs.data() + first, fan_in_};
  return {batch.inputs.data() + (first_input_ + first) * batch.positions, batch.positions};
}

void MiniBatchSteps::add_outputs(const MiniBatch& batch, Patches::Range weights, Outputs& outputs) const {
  if (batch.positions == 0) return;
  const std::size_t count = weights.last - weights.first;
  const auto [inputs, leading] = inputs_of(batch, weights.first);
  const float beta = weights.first > 0 ? 1 : 0;
  kernels_.gemm(gemm_of(rows_.count(), batch.positions, count, batch.by_position, beta), values_.data(), count, inputs,
                leading, outputs.data(), batch.positions);
}

// Replaces outputs by the loss's slopes by them.
double MiniBatchSteps::loss_and_slopes(const RoundingVariables& variables, const MiniBatch& batch, Outputs& outputs,
                                       std::vector<float>& by_bias) const {
  const std::size_t n = batch.positions;
  const float factor = n > 0 ? 1 / static_cast<float>(n) : 0.0F;
  by_bias.assign(rows_.count(), 0.0F);
  double sum = 0;
  for (std::size_t r = 0; r < rows_.count(); ++r) {
    const std::size_t row = rows_.first + r;
    float* y = outputs.data() + r * n;
    const float scale = variables.scale(row);
    const float bias = variables.bias() == nullptr ? 0.0F : variables.bias()[row];
    for (std::size_t c = 0; c < n; ++c) y[c] = scale * y[c] + bias;
    sum += loss_and_slope(y, batch.targets.data() + row * n, n, factor);
    if (variables.trains_bias()) by_bias[r] += static_cast<float>(sum_double(y, n));
  }
  return sum;
}

void MiniBatchSteps::slopes_by_weights(const MiniBatch& batch, const Outputs& slopes, Patches::Range weights) {
  if (batch.positions == 0) {
    std::fill(slope_.begin(), slope_.end(), 0.0F);
    return;
  }
  const std::size_t count = weights.last - weights.first;
  const auto [inputs, leading] = inputs_of(batch, weights.first);
  kernels_.gemm(gemm_of(rows_.count(), count, batch.positions, !batch.by_position), slopes.data(), batch.positions,
                inputs, leading, slope_.data(), count);
}

namespace {

/// Calls iterate(first, last) for each interval of the iterations, behind those that an earlier process has done, until
/// it says that no more are needed. `more` visits what is part of the state beside the variables.
template <class Iterations, class More, class Iterate>
void run_intervals(Iterations& problem, const FinetuneConfig& config, const SolveControl& control, const More& more,
                   const Iterate& iterate) {
  std::size_t begin = 0;
  const auto state = [&](auto& archive) {
    archive(begin);
    more(archive);
    problem.variables().visit_state(archive);
  };
  restore_state(control.state, [&](auto& archive) {
    state(archive);
    problem.changed();
  });
  for (const std::size_t end : interval_ends(config.num_iterations)) {
    if (end <= begin) continue;
    if (!iterate(begin, end)) return;
    begin = end;
    save_state(control.state, state);
  }
}

}  // namespace

Integers run(AdaRoundIterations& problem, const FinetuneConfig& config, const SolveControl& control) {
  const bool report = static_cast<bool>(control.progress);
  const auto iterate = [&](std::size_t begin, std::size_t end) {
    const double loss = problem.iterate(begin, end, report);
    if (report) control.progress(end, loss);
    return !config.early_stop || !problem.variables().decided();
  };
  run_intervals(
      problem, config, control, [](auto&) {}, iterate);
  return problem.variables().integers();
}

Integers run(AdaQuantIterations& problem, const FinetuneConfig& config, const SolveControl& control) {
  Integers best = problem.variables().integers();
  std::vector<double> best_errors = problem.errors();
  const std::size_t fan_in = best.size() / std::max<std::size_t>(best_errors.size(), 1);
  const auto more = [&](auto& archive) {
    archive(best);
    archive(best_errors);
  };
  run_intervals(problem, config, control, more, [&](std::size_t begin, std::size_t end) {
    problem.iterate(begin, end);
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
    return better || !config.early_stop;
  });
  return best;
}

Solution run(StreamedIterations& problem, const FinetuneConfig& config, const SolveControl& control) {
  double last_loss = 0;
  const auto more = [&](auto& archive) {
    archive(last_loss);
    archive(problem.choice());
  };
  run_intervals(problem, config, control, more, [&](std::size_t begin, std::size_t end) {
    const double loss = problem.iterate(begin, end);
    if (control.progress) control.progress(end, loss);
    const bool no_better = begin > 0 && config.solver == WeightSolver::adaquant && !(loss < last_loss);
    last_loss = loss;
    return !config.early_stop || !(no_better || problem.variables().decided());
  });
  return problem.variables().solution();
}

namespace {

constexpr std::size_t kPositionsToJudge = 256;  // of a sample; more of them say the same

/// Computes the outputs of a solution and hands them out row by row, a tile of positions at a time. The rows of one
/// item are handed out by one thread at a time, in the order of positions.
class Outputs {
 public:
  using Use = std::function<void(std::size_t item, std::size_t row, const float* values, const Tile& targets,
                                 std::size_t positions)>;

  Outputs(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
          const Kernels& kernels)
      : geometry_(geometry),
        fan_in_(weights.fan_in),
        group_rows_(weights.rows / static_cast<std::size_t>(geometry.groups)),
        bias_(solution.bias),
        kernels_(kernels),
        ranges_(row_ranges(weights.rows, static_cast<std::size_t>(geometry.groups), fan_in_)),
        values_(dequantized(weights, {0, weights.rows}, solution.integers.data())) {}

  std::size_t items() const noexcept { return ranges_.size(); }

  /// Of up to `most` positions, spread over the sample; returns how many they are.
  std::size_t run(const SampleRef& sample, std::size_t most, std::size_t threads, const Use& use) {
    const Patches patches(geometry_, sample.input_shape);
    if (sample.target.size() != patches.positions() * patches.outputs()) {
      throw internal_error("a sample does not fit the layer's geometry");
    }
    const std::size_t total = std::min(patches.positions(), most);
    const std::size_t capacity = std::min(total, tile_positions(patches.rows() + patches.outputs()));
    if (tiles_.empty() || tiles_[0].capacity != capacity) make_tiles(patches, capacity);
    std::vector<std::size_t> drawn;
    if (total < patches.positions()) drawn = draw_positions(patches.positions(), total, 0, 0);
    std::sort(drawn.begin(), drawn.end());
    for (std::size_t at = 0; at < total; at += capacity) {
      const std::size_t count = std::min(capacity, total - at);
      if (drawn.empty()) {
        patches.gather(sample.input.data(), {0, patches.rows()}, {at, at + count}, tiles_[0], 0);
        patches.gather_outputs(sample.target.data(), {0, patches.outputs()}, {at, at + count}, tiles_[1], 0);
      } else {
        const auto positions = std::span<const std::size_t>(drawn).subspan(at, count);
        patches.gather(sample.input.data(), {0, patches.rows()}, positions, Patches::places(tiles_[0], 0, count));
        patches.gather_outputs(sample.target.data(), positions, Patches::places(tiles_[1], 0, count));
      }
      parallel_for(ranges_.size(), threads,
                   [&](std::size_t item) { multiply(item, tiles_[0], tiles_[1], count, use); });
    }
    return total;
  }

 private:
  void make_tiles(const Patches& patches, std::size_t capacity) {
    const bool by_position = geometry_.kind == LayerKind::product;
    tiles_ = {{patches.rows(), capacity, by_position}, {patches.outputs(), capacity, by_position}};
  }

  void multiply(std::size_t item, const Tile& inputs, const Tile& targets, std::size_t positions,
                const Use& use) const {
    const RowRange all = ranges_[item];
    std::vector<float> out;
    for (std::size_t first = all.first; first < all.last;) {
      const std::size_t group = first / group_rows_;
      const std::size_t last = std::min(all.last, (group + 1) * group_rows_);
      out.resize((last - first) * positions);
      kernels_.gemm(gemm_of(last - first, positions, fan_in_, inputs.column_major), values_.data() + first * fan_in_,
                    fan_in_, inputs.row(group * fan_in_), inputs.leading(), out.data(), positions);
      for (std::size_t row = first; row < last; ++row) {
        float* y = out.data() + (row - first) * positions;
        for (std::size_t c = 0; c < positions && !bias_.empty(); ++c) y[c] += bias_[row];
        use(item, row, y, targets, positions);
      }
      first = last;
    }
  }

  const LayerGeometry& geometry_;
  std::size_t fan_in_;
  std::size_t group_rows_;
  std::vector<float> bias_;
  const Kernels& kernels_;
  std::vector<RowRange> ranges_;
  std::vector<float> values_;
  std::vector<Tile> tiles_;  // of inputs and targets
};

}  // namespace

double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                            LayerSamples& samples, const Kernels& kernels, const SolveControl& control) {
  return mean_of(sample_errors(weights, geometry, solution, samples, kernels, control));
}

std::vector<SampleError> sample_errors(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                       const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                       const SolveControl& control) {
  Outputs outputs(weights, geometry, solution, kernels);
  std::vector<SampleError> errors;
  for (std::size_t i = 0; i < samples.count(); ++i) {
    check_stop(control);
    const SampleRef sample = samples.get(i);
    std::vector<double> sums(outputs.items());
    const auto add = [&](std::size_t item, std::size_t row, const float* values, const Tile& targets,
                         std::size_t positions) {
      const float* from = targets.row(row);
      const std::size_t step = targets.column_major ? targets.rows : 1;
      double sum = 0;
      for (std::size_t c = 0; c < positions; ++c) {
        const float d = values[c] - from[c * step];
        sum += static_cast<double>(d) * d;
      }
      sums[item] += sum;
    };
    const std::uint64_t count = weights.rows * outputs.run(sample, kPositionsToJudge, control.threads, add);
    errors.push_back({std::accumulate(sums.begin(), sums.end(), 0.0), count});
  }
  return errors;
}

double mean_of(std::span<const SampleError> errors) {
  SampleError all;
  for (const auto& [squares, outputs] : errors) {
    all.squares += squares;
    all.outputs += outputs;
  }
  return all.outputs == 0 ? 0 : all.squares / static_cast<double>(all.outputs);
}

std::vector<float> streamed_bias(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                 const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                 const SolveControl& control) {
  Outputs outputs(weights, geometry, {solution.integers, {}}, kernels);
  std::vector<double> y_sums(weights.rows),
      t_sums(weights.rows);  // of outputs without the bias, and of targets less it
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < samples.count(); ++i) {
    check_stop(control);
    const SampleRef sample = samples.get(i);
    const auto add = [&](std::size_t, std::size_t row, const float* y, const Tile& targets, std::size_t positions) {
      const float* from = targets.row(row);
      const std::size_t step = targets.column_major ? targets.rows : 1;
      const float bias = solution.bias.empty() ? 0.0F : solution.bias[row];
      std::vector<float> t(positions);
      for (std::size_t c = 0; c < positions; ++c) t[c] = from[c * step] - bias;
      y_sums[row] += sum_double(y, positions);
      t_sums[row] += sum_double(t.data(), positions);
    };
    count += outputs.run(sample, std::numeric_limits<std::size_t>::max(), control.threads, add);
  }
  std::vector<float> bias = solution.bias;
  bias.resize(weights.rows);
  for (std::size_t m = 0; m < weights.rows && count > 0; ++m)
    bias[m] = static_cast<float>(bias[m] + (t_sums[m] - y_sums[m]) / static_cast<double>(count));
  return bias;
}

KeptSolution keep_if_better(const QuantizedWeights& weights, std::span<const float> bias, Solution candidate,
                            const std::function<double(const Solution&)>& error_of) {
  KeptSolution kept;
  kept.solution = nearest(weights, bias);
  kept.nearest_error = kept.error = error_of(kept.solution);
  const double error = error_of(candidate);
  if (error < kept.nearest_error) {
    kept.solution = std::move(candidate);
    kept.error = error;
    kept.tuned = true;
  }
  return kept;
}

}  // namespace detent::solve
