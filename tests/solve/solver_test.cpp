#include "solve/layers/solver.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/input_form.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

FinetuneConfig config_of(WeightSolver rounding, std::size_t sweeps = 0) {
  FinetuneConfig config;
  config.rounding = rounding;
  config.coordinate_sweeps = sweeps;
  return config;
}

Solution solved(const Layer& layer, const FinetuneConfig& config, std::size_t threads = 1) {
  SolveControl control;
  control.threads = threads;
  return solve(layer.weights, layer.gram(), layer.bias, config, kernels(), control);
}

/// The smallest error of one row over all choices of `values` integers for each weight, from the given lowest on.
double best_error(const Layer& layer, const std::vector<std::int32_t>& lowest, int values) {
  const GramForm form = layer.gram();
  const Quadratic quadratic(layer.weights, form, layer.bias, false);
  std::vector<std::int32_t> integers = lowest;
  double best = std::numeric_limits<double>::infinity();
  for (;;) {
    best = std::min(best, quadratic.errors(layer.weights, integers, {0, 1})[0]);
    std::size_t at = 0;
    while (at < integers.size() && integers[at] == lowest[at] + values - 1) {
      integers[at] = lowest[at];
      ++at;
    }
    if (at == integers.size()) return best;
    ++integers[at];
  }
}

double error_of(const Layer& layer, const Solution& solution) {
  const GramForm form = layer.gram();
  const Quadratic quadratic(layer.weights, form, solution.bias, false);
  double sum = 0;
  for (const double e : quadratic.errors(layer.weights, solution.integers, {0, layer.weights.rows})) sum += e;
  return sum;
}

TEST(Solvers, SweepAsOftenAsTheirMethodGainsFromIt) {
  const Layer layer = make_layer(product(40, 16), {200, 40}, 2, 4, 7);
  for (const auto& [rounding, sweeps] : {std::pair(WeightSolver::gptq, 0), std::pair(WeightSolver::adaround, 2)}) {
    FinetuneConfig unset = config_of(rounding);
    unset.coordinate_sweeps = std::nullopt;
    const auto found = solved(layer, unset).integers;
    const auto given = static_cast<std::size_t>(sweeps);
    EXPECT_EQ(found, solved(layer, config_of(rounding, given)).integers);
    EXPECT_NE(found, solved(layer, config_of(rounding, 2 - given)).integers);
  }
}

// Of few weights greedy rounding is worse than nearest rounding now and then.
TEST(Gptq, KeepsNearestRoundingOfRowsThatItServesBetter) {
  std::size_t kept = 0, changed = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Layer layer = make_layer(product(3, 16), {40, 3}, 2, 4, 2000 + 10 * seed);
    GramForm form = layer.gram();
    GramFormOrRawInputs any = std::move(form);
    set_targets(any, layer.weights, layer.bias, {0, false}, kernels(), 1);
    const auto& aimed = std::get<GramForm>(any);
    ASSERT_TRUE(aimed.symmetric);
    const auto found = gptq(layer.weights, aimed, layer.bias, config_of(WeightSolver::gptq), kernels(), {});
    const auto plain = nearest(layer.weights, {}).integers;
    const Quadratic quadratic(layer.weights, aimed, layer.bias, false);
    const auto errors = quadratic.errors(layer.weights, found, {0, 16});
    const auto before = quadratic.errors(layer.weights, plain, {0, 16});
    for (std::size_t m = 0; m < 16; ++m) {
      EXPECT_LE(errors[m], before[m] * (1 + 1e-3));
      const bool same = std::equal(&found[3 * m], &found[3 * m] + 3, &plain[3 * m]);
      ++(same ? kept : changed);
    }
  }
  EXPECT_GT(kept, 0U);
  EXPECT_GT(changed, 0U);
}

// All 2^10 ways to round one output of ten weights, for twenty layers: how far each method is from the best way.
TEST(Solvers, ComeCloseToTheBestRounding) {
  double nearest_excess = 0, adaround_excess = 0, swept_excess = 0, gptq_excess = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Layer layer = make_layer(product(10, 1), {40, 10}, 2, 4, 1000 + 10 * seed);
    std::vector<std::int32_t> down(10);
    for (std::size_t k = 0; k < 10; ++k) {
      down[k] = std::clamp(static_cast<std::int32_t>(std::floor(layer.weights.values[k] / layer.weights.scale[0])),
                           layer.weights.lowest, layer.weights.highest - 1);
    }
    const double best = best_error(layer, down, 2);
    const auto excess = [&](const FinetuneConfig& config) { return error_of(layer, solved(layer, config)) / best - 1; };
    const double by_adaround = excess(config_of(WeightSolver::adaround));
    EXPECT_GT(by_adaround, -1e-4);  // it only rounds up or down
    nearest_excess += excess(config_of(WeightSolver::nearest)) / 20;
    adaround_excess += by_adaround / 20;
    swept_excess += excess(config_of(WeightSolver::adaround, 2)) / 20;
    gptq_excess += excess(config_of(WeightSolver::gptq, 2)) / 20;
  }
  std::printf(
      "above the best rounding: nearest %.0f %%, AdaRound %.1f %%, and sweeps %.1f %%, GPTQ and sweeps %.1f %%\n",
      100 * nearest_excess, 100 * adaround_excess, 100 * swept_excess, 100 * gptq_excess);
  EXPECT_LT(adaround_excess, 0.5);
  EXPECT_LT(swept_excess, 0.3);
  EXPECT_LT(gptq_excess, 0.35);
  EXPECT_GT(nearest_excess, 2 * adaround_excess);
}

// All 8^6 integers of 3 bits.
TEST(Solvers, ComeCloseToTheBestIntegers) {
  double descent = 0, gptq_excess = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    const Layer layer = make_layer(product(6, 1), {30, 6}, 2, 3, 2000 + 10 * seed);
    const double best = best_error(layer, std::vector<std::int32_t>(6, -4), 8);
    const auto excess = [&](const FinetuneConfig& config) { return error_of(layer, solved(layer, config)) / best - 1; };
    descent += excess(config_of(WeightSolver::nearest, 10)) / 8;
    gptq_excess += excess(config_of(WeightSolver::gptq, 10)) / 8;
  }
  std::printf("above the best integers: sweeps %.1f %%, GPTQ and sweeps %.1f %%\n", 100 * descent, 100 * gptq_excess);
  EXPECT_LT(descent, 0.6);
  EXPECT_LT(gptq_excess, 0.3);
}

// As in the design's measurement: 4 bits, correlated inputs, error on samples that were not seen.
TEST(Solvers, BeatNearestRoundingOnHeldBackData) {
  const LayerGeometry g = product(64, 48);
  const Layer layer = make_layer(g, {64, 64}, 8, 4, 5);
  const Layer held_back = make_layer(g, {64, 64}, 4, 4, 5, 90000);
  const auto held = [&](const FinetuneConfig& config) { return naive_mean(held_back, solved(layer, config)); };
  const double plain = held(config_of(WeightSolver::nearest));
  const double ada = held(config_of(WeightSolver::adaround)) / plain;
  const double gpt = held(config_of(WeightSolver::gptq)) / plain;
  const double gpt_swept = held(config_of(WeightSolver::gptq, 5)) / plain;
  FinetuneConfig quant = config_of(WeightSolver::adaquant);
  quant.learning_rate = 1e-3;
  const double ada_quant = held(quant) / plain;
  std::printf("of nearest: AdaRound %.2f, GPTQ %.2f, with sweeps %.2f, AdaQuant %.2f\n", ada, gpt, gpt_swept,
              ada_quant);
  EXPECT_LT(ada, 0.45);
  EXPECT_LT(gpt, 0.5);
  EXPECT_LT(gpt_swept, 0.5);
  EXPECT_LT(ada_quant, 0.75);
}

TEST(Solvers, TuneEveryKindOfLayerAndNeverBelowNearest) {
  for (const Case& c : all_kinds()) {
    for (const WeightSolver rounding :
         {WeightSolver::nearest, WeightSolver::adaround, WeightSolver::gptq, WeightSolver::adaquant}) {
      SCOPED_TRACE(c.name);
      const Layer layer = make_layer(c.geometry, c.input, 4, 4, 7);
      FinetuneConfig config = config_of(rounding, 2);
      config.num_iterations = 300;
      for (const bool update_bias : {false, true}) {
        config.update_bias = update_bias;
        const Solution solution = solved(layer, config);
        EXPECT_LE(naive_mean(layer, solution), 1.0001 * naive_mean(layer, nearest(layer.weights, layer.bias)));
        EXPECT_EQ(solution.bias == layer.bias, !update_bias);
        for (const std::int32_t q : solution.integers) {
          EXPECT_TRUE(q >= layer.weights.lowest && q <= layer.weights.highest);
        }
      }
    }
  }
}

TEST(Solvers, GiveTheSameForAnyThreads) {
  for (const LayerGeometry& g : {convolution(16, 150, 1, {3, 3}), convolution(24, 24, 24, {3, 3})}) {
    const Layer layer = make_layer(g, {1, g.inputs, 9, 9}, 3, 4, 7);
    for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::gptq, WeightSolver::adaquant}) {
      FinetuneConfig config = config_of(rounding, 2);
      config.num_iterations = 60;
      config.update_bias = true;
      const Solution one = solved(layer, config, 1);
      for (const std::size_t threads : {2, 5}) {
        const Solution other = solved(layer, config, threads);
        EXPECT_EQ(one.integers, other.integers);
        EXPECT_EQ(one.bias, other.bias);
      }
    }
  }
}

TEST(Solvers, TreatGroupsAsLayersOfTheirOwn) {
  const Layer both = make_layer(convolution(8, 10, 2, {3}), {2, 8, 30}, 3, 4, 7);
  const GramForm form = both.gram();
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::gptq, WeightSolver::adaquant}) {
    FinetuneConfig config = config_of(rounding, 2);
    config.num_iterations = 100;
    const Solution all = solve(both.weights, form, both.bias, config, kernels(), {});
    QuantizedWeights half = both.weights;
    half.rows = 5;
    half.values.erase(half.values.begin(), half.values.begin() + 5 * 12);
    half.scale.erase(half.scale.begin(), half.scale.begin() + 5);
    half.zero.erase(half.zero.begin(), half.zero.begin() + 5);
    GramForm part = form;
    part.groups = 1;
    part.gram.erase(part.gram.begin(), part.gram.begin() + 12 * 12);
    part.cross.erase(part.cross.begin(), part.cross.begin() + 5 * 12);
    part.input_sum.erase(part.input_sum.begin(), part.input_sum.begin() + 12);
    part.target_sum.erase(part.target_sum.begin(), part.target_sum.begin() + 5);
    part.target_norm.erase(part.target_norm.begin(), part.target_norm.begin() + 5);
    const std::vector<float> bias(both.bias.begin() + 5, both.bias.end());
    const Solution second = solve(half, part, bias, config, kernels(), {});
    EXPECT_TRUE(std::equal(second.integers.begin(), second.integers.end(), all.integers.begin() + 5 * 12));
  }
}

TEST(Solvers, BearRowsWithoutScaleAndInputsOfZeros) {
  Layer layer = make_layer(product(20, 6), {16, 20}, 2, 4, 7);
  layer.weights.scale[2] = 0;
  for (auto& input : layer.inputs) {
    for (std::size_t i = 0; i < input.size(); i += 2) input[i] = 0;  // every other row of G is zero
  }
  Layer silent = layer;
  for (auto& input : silent.inputs) std::fill(input.begin(), input.end(), 0.0F);
  Layer few = layer;  // fewer positions than weights: G is singular
  few.shape = {3, 20};
  for (auto& input : few.inputs) input.resize(60);
  for (auto& target : few.targets) target.resize(18);
  for (const Layer* each : {&layer, &silent, &few}) {
    for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::gptq, WeightSolver::adaquant}) {
      FinetuneConfig config = config_of(rounding, 3);
      config.num_iterations = 50;
      for (const double damping : {0.0, 0.01}) {
        config.damping = damping;
        const Solution solution = solved(*each, config);
        const double error = naive_mean(*each, solution);
        EXPECT_TRUE(std::isfinite(error));
        EXPECT_LE(error, 1.0001 * naive_mean(*each, nearest(each->weights, each->bias)) + 1e-9);
      }
    }
  }
  const GramForm empty = GramAccumulator(layer.geometry, kernels(), 1).take();
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::gptq, WeightSolver::adaquant}) {
    const Solution solution = solve(layer.weights, empty, layer.bias, config_of(rounding, 2), kernels(), {});
    EXPECT_EQ(solution.integers, nearest(layer.weights, {}).integers);
  }
}

TEST(Solvers, StopWhenAsked) {
  const Layer layer = make_layer(product(20, 6), {16, 20}, 2, 4, 7);
  for (const WeightSolver rounding :
       {WeightSolver::adaround, WeightSolver::gptq, WeightSolver::adaquant, WeightSolver::nearest}) {
    std::stop_source source;
    SolveControl control;
    control.stop = source.get_token();
    source.request_stop();
    try {
      solve(layer.weights, layer.gram(), layer.bias, config_of(rounding, 1), kernels(), control);
      ADD_FAILURE() << "it went on";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::interrupted);
    }
  }
}

TEST(Solvers, ReportALossThatIsTheError) {
  const Layer layer = make_layer(product(20, 6), {64, 20}, 2, 4, 7);
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
    std::vector<std::pair<std::size_t, double>> reports;
    SolveControl control;
    control.progress = [&](std::size_t i, double loss) { reports.emplace_back(i, loss); };
    FinetuneConfig config = config_of(rounding);
    config.learning_rate = rounding == WeightSolver::adaround ? 0.1 : 1e-3;
    const Integers found = rounding == WeightSolver::adaround
                               ? adaround(layer.weights, layer.gram(), layer.bias, config, kernels(), control)
                               : adaquant(layer.weights, layer.gram(), layer.bias, config, kernels(), control);
    ASSERT_EQ(reports.size(), 10U);
    EXPECT_EQ(reports.back().first, config.num_iterations);
    const double error = 6 * naive_mean(layer, {found, layer.bias});
    if (rounding == WeightSolver::adaround) {  // next to all is decided: the soft loss is nearly that of the integers
      EXPECT_NEAR(reports.back().second, error, 0.2 * error);
    } else {
      double least = reports[0].second;
      for (const auto& report : reports) least = std::min(least, report.second);
      EXPECT_GE(least, 0.9999 * error);  // of each row the best of all reports
    }
  }
}

TEST(CoordinateDescent, NeverMakesARowWorseAndEnds) {
  const Layer layer = make_layer(convolution(6, 20, 1, {3, 3}), {1, 6, 12, 12}, 3, 4, 7);
  const GramForm form = layer.gram();
  const Quadratic quadratic(layer.weights, form, layer.bias, false);
  Integers integers = nearest(layer.weights, {}).integers;
  auto before = quadratic.errors(layer.weights, integers, {0, 20});
  FinetuneConfig config = config_of(WeightSolver::nearest, 1);
  for (int sweep = 0; sweep < 30; ++sweep) {
    const Integers next = coordinate_descent(layer.weights, form, layer.bias, integers, config, kernels(), {});
    const auto after = quadratic.errors(layer.weights, next, {0, 20});
    for (std::size_t m = 0; m < 20; ++m) EXPECT_LE(after[m], before[m]);
    if (next == integers) return;
    integers = next;
    before = after;
  }
  ADD_FAILURE() << "it still changes after 30 sweeps";
}

TEST(BestBias, CannotBeImproved) {
  const Layer layer = make_layer(convolution(3, 4, 1, {3}), {2, 3, 20}, 2, 4, 7);
  const GramForm form = layer.gram();
  Solution solution = nearest(layer.weights, layer.bias);
  solution.bias = best_bias(layer.weights, form, solution.integers);
  const double best = naive_mean(layer, solution);
  for (std::size_t m = 0; m < 4; ++m) {
    for (const float change : {-0.01F, 0.01F}) {
      Solution other = solution;
      other.bias[m] += change;
      EXPECT_GT(naive_mean(layer, other), best);
    }
  }
}

}  // namespace
}  // namespace detent::solve
