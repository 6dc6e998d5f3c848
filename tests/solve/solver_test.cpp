#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/vector_math.h"
#include "solve/layers/input_form.h"
#include "solve/layers/problem.h"
#include "solve/layers/rounding_variables.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "solve/solvers.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

FinetuneConfig config_of(WeightSolver rounding, std::size_t sweeps = 0) {
  FinetuneConfig config;
  config.solver = rounding;
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
    for (const bool by_activation : {false, true}) {
      auto config = config_of(WeightSolver::gptq);
      config.activation_order = by_activation;
      GramForm once = aimed;
      EXPECT_EQ(gptq(layer.weights, once, layer.bias, config, kernels(), {.stop = {}, .spent = &once.gram}),
                gptq(layer.weights, aimed, layer.bias, config, kernels(), {}));
      EXPECT_TRUE(once.gram.empty());
    }
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

TEST(Solvers, SweepsStopWhenAsked) {
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

// What every rounding method has to keep to, by iteration over their table.

FinetuneConfig config_of(const Solver& solver) {
  FinetuneConfig config;
  config.solver = solver.id;
  config.num_iterations = 200;
  if (solver.id == WeightSolver::adaquant) config.learning_rate = 1e-3;
  return config;
}

TEST(Solvers, HaveEachAWordOfTheirOwn) {
  std::set<WeightSolver> words;
  for (const Solver* solver : all_solvers()) {
    EXPECT_TRUE(tunes(solver->id)) << solver->name;
    EXPECT_TRUE(words.insert(solver->id).second) << solver->name;
    EXPECT_EQ(find_solver(solver->id), solver);
  }
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant, WeightSolver::gptq}) {
    EXPECT_TRUE(words.contains(rounding));
  }
  EXPECT_EQ(find_solver(WeightSolver::nearest), nullptr);
  EXPECT_EQ(find_solver(WeightSolver::automatic), nullptr);
}

TEST(Solvers, GainOnDataThatTheyHaveNotSeen) {
  for (const std::size_t block : {0U, 16U}) {
    Layer layer = make_layer(product(64, 24), {64, 64}, 8, 4, 5);
    Layer held_back = make_layer(product(64, 24), {64, 64}, 4, 4, 5, 90000);
    if (block > 0) layer.weights = held_back.weights = in_blocks(layer.weights, block);
    const double plain = naive_mean(held_back, nearest(layer.weights, layer.bias));
    for (const Solver* solver : all_solvers()) {
      SCOPED_TRACE(solver->name);
      const auto solved = [&](std::size_t threads) {
        SolveControl control;
        control.threads = threads;
        return solve(layer.weights, layer.gram(), layer.bias, config_of(*solver), kernels(), control);
      };
      const Solution found = solved(1);
      EXPECT_LT(naive_mean(held_back, found), 0.75 * plain);
      EXPECT_EQ(solved(3).integers, found.integers);
      for (const std::int32_t q : found.integers) {
        ASSERT_GE(q, layer.weights.lowest);
        ASSERT_LE(q, layer.weights.highest);
      }
    }
  }
}

TEST(Solvers, StopWhenAsked) {
  const Layer layer = make_layer(product(32, 8), {40, 32}, 2, 4, 7);
  std::stop_source stop;
  stop.request_stop();
  SolveControl control;
  control.stop = stop.get_token();
  for (const Solver* solver : all_solvers()) {
    EXPECT_THROW((void)solve(layer.weights, layer.gram(), layer.bias, config_of(*solver), kernels(), control), Error)
        << solver->name;
  }
}

TEST(Solvers, WithoutAStreamedFormSaySo) {
  const Layer layer = make_layer(product(32, 8), {40, 32}, 2, 4, 7);
  InMemory samples(layer);
  for (const Solver* solver : all_solvers()) {
    const auto streamed = [&] {
      (void)solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config_of(*solver), kernels(), {});
    };
    if (solver->has_streamed_form) {
      EXPECT_NO_THROW(streamed()) << solver->name;
    } else {
      EXPECT_THROW(streamed(), Error) << solver->name;
    }
  }
}

TEST(Solvers, CostMoreForLargerLayers) {
  for (const Solver* solver : all_solvers()) {
    SCOPED_TRACE(solver->name);
    const auto cost = [&](std::int64_t fan_in) {
      return gram_cost(product(fan_in, 64), {1 << 16, fan_in}, 16, config_of(*solver), 2);
    };
    EXPECT_GT(cost(1024).flops, 2 * cost(512).flops);
    EXPECT_GT(cost(4096).bytes, 2 * cost(1024).bytes);
    EXPECT_GT(cost(4096).bytes, std::uint64_t{4096} * 4096 * sizeof(float));
  }
}

// Two rows of five weights, the fourth of which is alone.
QuantizedWeights paired() {
  QuantizedWeights weights;
  weights.rows = 2;
  weights.fan_in = 5;
  weights.values = {63.4F, 100, 66.2F, 100, 100, -70, -3, -58.6F, 127, -127};
  weights.scale = {1, 1};
  weights.zero = {0, 0};
  weights.pairs = {{0, 2}, {4, 1}};
  return weights;
}

TEST(KeepPairs, MovesThoseThatWereRoundedUpMost) {
  std::vector<std::int32_t> integers{64, 30, 66, 127, 100, -70, -4, -59, 127, -127};
  limit_pair_sums(paired(), integers);
  EXPECT_EQ(integers, (std::vector<std::int32_t>{63, 30, 65, 127, 98, -70, -2, -58, 127, -126}));
}

TEST(KeepPairs, LeavesOthersAsTheyAre) {
  const std::vector<std::int32_t> fine{64, -128, 64, 127, 127, -128, -1, 0, 127, -127};
  auto integers = fine;
  limit_pair_sums(paired(), integers);
  EXPECT_EQ(integers, fine);
  auto without_pairs = paired();
  without_pairs.pairs.clear();
  integers.assign(10, 127);
  limit_pair_sums(without_pairs, integers);
  EXPECT_EQ(integers, std::vector<std::int32_t>(10, 127));
}

TEST(VectorMath, IsCloseToTheLibrary) {
  for (float x = -80; x < 80; x += 0.0371F) EXPECT_NEAR(exp_fast(x) / std::exp(static_cast<double>(x)), 1.0, 5e-6) << x;
  for (float x = 1e-30F; x < 1e30F; x *= 1.0173F) {
    EXPECT_NEAR(log2_fast(x), std::log2(static_cast<double>(x)), 2e-6 * (1 + std::abs(std::log2(x)))) << x;
  }
  EXPECT_EQ(exp2_fast(-1e30F), exp2_fast(-120.0F));
  EXPECT_LT(log2_fast(0.0F), -100.0F);
  for (float x = 1e-35F; x < 1e35F; x *= 1.0173F) {
    EXPECT_NEAR(inverse_root_fast(x) * std::sqrt(static_cast<double>(x)), 1.0, 1e-5) << x;
    EXPECT_NEAR(log2_coarse(x), std::log2(static_cast<double>(x)), 5e-5 + 1e-6 * std::abs(std::log2(x))) << x;
  }
  for (float x = -80; x < 80; x += 0.0371F) {
    EXPECT_NEAR(exp2_coarse(x) / std::exp2(static_cast<double>(x)), 1.0, 1e-4) << x;
  }
  EXPECT_LT(log2_coarse(0.0F), -100.0F);
}

TEST(Quadratic, ResidualIsHalfTheGradientOfTheError) {
  for (const bool best_bias : {false, true}) {
    const Layer layer = make_layer(convolution(4, 4, 2, {3}), {2, 4, 15}, 3, 4, 7);
    const GramForm form = layer.gram();
    const Quadratic quadratic(layer.weights, form, layer.bias, best_bias);
    std::vector<float> w = layer.weights.values;
    std::vector<float> residual(w.size());
    quadratic.residual(kernels(), {0, 4}, w.data(), residual.data());
    // errors() takes integers: with a scale of 2^-10 they are as good as any weights.
    QuantizedWeights fine = layer.weights;
    std::fill(fine.scale.begin(), fine.scale.end(), 0x1p-10F);
    fine.lowest = -100000;
    fine.highest = 100000;
    Solution at = nearest(fine, {});
    const auto exact = dequantized(fine, at.integers);
    quadratic.residual(kernels(), {0, 4}, exact.data(), residual.data());
    constexpr int kStep = 64;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::size_t m = i / fine.fan_in;
      const auto error = [&](int change) {
        at.integers[i] += change;
        const double e = quadratic.errors(fine, at.integers, {m, m + 1})[0];
        at.integers[i] -= change;
        return e;
      };
      const double slope = (error(kStep) - error(-kStep)) / (2 * kStep * 0x1p-10);
      EXPECT_NEAR(2 * residual[i], slope, 1e-3 * (1 + std::abs(slope))) << best_bias << i;
    }
  }
}

// One weight's step, in double and from the paper's equations.
struct Reference {
  double v, mean = 0, square = 0;
  double h() const { return std::clamp(1.2 / (1 + std::exp(-v)) - 0.1, 0.0, 1.0); }
  void step(double by_h, double lambda, double beta, double rate, int t) {
    const double sigmoid = 1 / (1 + std::exp(-v));
    const double d = 2 * h() - 1;
    const double by_v = h() > 0 && h() < 1 ? 1.2 * sigmoid * (1 - sigmoid) : 0;
    const double regular = -lambda * beta * std::pow(std::abs(d), beta - 1) * (d < 0 ? -2 : 2);
    const double gradient = (by_h + regular) * by_v;
    mean = 0.9 * mean + 0.1 * gradient;
    square = 0.999 * square + 0.001 * gradient * gradient;
    v -= rate * mean / (1 - std::pow(0.9, t)) / (std::sqrt(square / (1 - std::pow(0.999, t))) + 1e-8);
  }
};

TEST(AdaRoundVariables, StepsAsThePaperSays) {
  const std::size_t n = 37;
  const QuantizedWeights w = quantizable(product(static_cast<std::int64_t>(n), 1), normal(n, 1), 4);
  AdaRoundVariables soft(w);
  std::vector<Reference> reference;
  for (std::size_t i = 0; i < n; ++i) {
    const double steps = static_cast<double>(w.values[i] / w.scale[0]);
    const double fraction = steps - std::floor(steps);
    EXPECT_NEAR(soft.h(0)[i], std::floor(steps) >= w.highest ? 0 : fraction, 1e-6);
    reference.push_back({-std::log(1.2 / (fraction + 0.1) - 1)});
  }
  for (int t = 1; t <= 50; ++t) {
    AdaRoundStep step{AdamStep(0.1, static_cast<std::size_t>(t))};
    if (t > 10) step.regularizer = 0.03F;
    step.beta = 9.5F;
    const auto slope = normal(n, 100 + static_cast<unsigned>(t));
    soft.step(0, {0, n}, slope.data(), nullptr, std::array{AdaRoundFactors{0.25F, 2.0F}}, step);
    for (std::size_t i = 0; i < n; ++i) {
      reference[i].step(0.25 * slope[i], t > 10 ? 0.06 : 0, 9.5, 0.1, t);
      if (w.values[i] / w.scale[0] >= static_cast<float>(w.highest)) {
        EXPECT_EQ(soft.h(0)[i], 0.0F);  // the largest weight cannot go up
      } else {
        ASSERT_NEAR(soft.h(0)[i], reference[i].h(), 2e-3) << t << " " << i;
      }
    }
  }
}

TEST(AdaRoundVariables, KeepsWeightsInTheRangeOfIntegers) {
  QuantizedWeights w = quantizable(product(4, 1), {-11.5F, 7.2F, 20.0F, 0.5F}, 4);
  w.scale = {1.0F};
  w.zero = {2};
  AdaRoundVariables soft(w);
  EXPECT_EQ(soft.base(), (std::vector<std::int32_t>{-8, 7, 7, 2}));
  const std::vector<float> up(4, -1.0F);
  for (std::size_t t = 0; t < 100; ++t)
    soft.step(0, {0, 4}, up.data(), nullptr, std::array{AdaRoundFactors{}}, {AdamStep(0.1, t + 1)});
  EXPECT_EQ(soft.integers(), (std::vector<std::int32_t>{-8, 7, 7, 3}));
  EXPECT_TRUE(soft.decided({0, 1}));
}

TEST(AdaRoundStep, AnnealsBetaAfterTheWarmStart) {
  FinetuneConfig config;
  config.num_iterations = 100;
  EXPECT_EQ(AdaRoundStep::at(config, 19).regularizer, 0.0F);
  EXPECT_EQ(AdaRoundStep::at(config, 20).regularizer, 0.01F);
  EXPECT_FLOAT_EQ(AdaRoundStep::at(config, 20).beta, 20.0F);
  EXPECT_FLOAT_EQ(AdaRoundStep::at(config, 60).beta, 11.0F);
  EXPECT_NEAR(AdaRoundStep::at(config, 99).beta, 2.0F, 0.01);
}

TEST(AdaQuantVariables, FollowsTheGradientOfAdamAndStopsAtTheRange) {
  QuantizedWeights w = quantizable(product(3, 1), {0.2F, 6.9F, -0.3F}, 4);
  w.scale = {0.5F};
  AdaQuantVariables through(w);
  EXPECT_EQ(through.integers(), (std::vector<std::int32_t>{0, 7, -1}));
  const std::vector<float> slope{-1, -1, 1};
  // Adam's first steps are as long as the rate: 0.1 each, 0.2 of a step of the scale.
  for (std::size_t t = 1; t <= 4; ++t) through.step(0, {0, 3}, slope.data(), nullptr, 1.0F, AdamStep(0.1, t));
  EXPECT_EQ(through.integers(), (std::vector<std::int32_t>{1, 7, -1}));
}

TEST(Kernels, MultiplyAnyPartsOfMatrices) {
  const auto a = normal(40, 1), b = normal(60, 2);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      std::vector<float> c = normal(24, 3);
      std::vector<float> expected = c;
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 4; ++j) {
          double sum = 0;
          for (int k = 0; k < 5; ++k) sum += a[ta ? k * 7 + i : i * 7 + k] * b[tb ? j * 8 + k : k * 8 + j];
          expected[i * 6 + j] = static_cast<float>(2 * sum + 0.5 * expected[i * 6 + j]);
        }
      kernels().gemm({ta, tb, 3, 4, 5, 2.0F, 0.5F}, a.data(), 7, b.data(), 8, c.data(), 6);
      for (int i = 0; i < 24; ++i) EXPECT_NEAR(c[i], expected[i], 1e-5) << ta << tb << i;
    }
  }
}

FinetuneConfig adaround(std::size_t iterations) {
  FinetuneConfig config;
  config.solver = WeightSolver::adaround;
  config.num_iterations = iterations;
  return config;
}

// Steps that are left out would have changed nothing, whatever the slopes.
TEST(AdaRoundVariables, StaysAsItIsOnceSettled) {
  constexpr std::size_t kCount = 200;
  std::vector<float> v = normal(kCount, 1), mean(kCount), square(kCount), h(kCount);
  for (std::size_t i = 0; i < kCount; ++i) h[i] = std::clamp(1.2F / (1 + std::exp(-v[i])) - 0.1F, 0.0F, 1.0F);
  const FinetuneConfig config = adaround(1000);
  const auto step = [&](std::size_t iteration, unsigned seed) {
    adaround_step({v.data(), mean.data(), square.data(), h.data()}, normal(kCount, seed).data(), nullptr, 1.0F, kCount,
                  AdaRoundStep::at(config, iteration));
  };
  const auto settled = [&] { return std::all_of(h.begin(), h.end(), [](float x) { return x == 0 || x == 1; }); };
  std::size_t iteration = 0;
  while (!settled() && iteration < 500) step(iteration++, 1);
  ASSERT_GT(iteration, 5U);
  ASSERT_LT(iteration, 500U);
  const std::vector<float> once = h;
  for (; iteration < 1000; ++iteration) step(iteration, static_cast<unsigned>(iteration));
  EXPECT_EQ(h, once);
}

// Of a row, weights that are settled among others that are not, in pieces that end with the row and do not.
TEST(AdaRoundVariables, StepsWhatIsNotSettled) {
  constexpr std::size_t kFanIn = 2 * AdaRoundVariables::kPiece + 60;
  const Layer layer = make_layer(product(kFanIn, 1), {20, kFanIn}, 1, 4, 7);
  const FinetuneConfig config = adaround(100);
  AdaRoundVariables soft(layer.weights);
  std::vector<float> slope(kFanIn);
  for (std::size_t k = 0; k < AdaRoundVariables::kPiece + 40; ++k)
    slope[k] = k < AdaRoundVariables::kPiece || k % 3 == 0;  // down
  for (std::size_t i = 0; i < 60; ++i)
    soft.step(0, {0, kFanIn}, slope.data(), nullptr, std::array{AdaRoundFactors{1.0F, 0.0F}},
              AdaRoundStep::at(config, i));
  EXPECT_TRUE(soft.settled({0, 1}, {0, AdaRoundVariables::kPiece}));
  EXPECT_FALSE(soft.settled({0, 1}, {0, kFanIn}));
  const std::vector<float> before(soft.h(0), soft.h(0) + kFanIn);
  const std::vector<float> offset(kFanIn, -1.0F);
  slope.assign(kFanIn, 0.0F);
  soft.step(0, {0, kFanIn}, slope.data(), offset.data(), std::array{AdaRoundFactors{1.0F, 0.0F}},
            AdaRoundStep::at(config, 60));
  std::size_t moved = 0;
  for (std::size_t k = 0; k < kFanIn; ++k) {
    const bool moves = before[k] > 0 && before[k] < 1;  // but for weights that were clipped from the start
    EXPECT_EQ(soft.h(0)[k] > before[k], moves) << k;
    moved += moves ? 1 : 0;
  }
  EXPECT_GT(moved, 220U);
  EXPECT_LE(moved, kFanIn - AdaRoundVariables::kPiece - 13);
}

// Leaving out what is settled, and saving the state in between, changes nothing.
TEST(AdaRoundVariables, IsTheSameAsSteppingEveryWeight) {
  constexpr std::size_t kFanIn = AdaRoundVariables::kPiece + 100, kIterations = 200;
  const Layer layer = make_layer(product(kFanIn, 2), {20, kFanIn}, 1, 8, 9);
  const FinetuneConfig config = adaround(kIterations);
  AdaRoundVariables soft(layer.weights), saved(layer.weights);
  std::vector<std::vector<float>> all;  // v, mean, square, h
  const auto copy = [&](std::vector<float>& values) { all.push_back(values); };
  soft.visit_state(copy);
  const auto nothing = [](std::vector<float>&) {};
  for (std::size_t i = 0; i < kIterations; ++i) {
    const auto slope = normal(kFanIn, static_cast<unsigned>(i)), offset = std::vector<float>(kFanIn, 0.003F);
    const auto step = AdaRoundStep::at(config, i);
    for (std::size_t m = 0; m < 2; ++m) {
      const float* more = m == 0 ? nullptr : offset.data();
      soft.step(m, {0, kFanIn}, slope.data(), more, std::array{AdaRoundFactors{0.01F, 3.0F}}, step);
      saved.step(m, {0, kFanIn}, slope.data(), more, std::array{AdaRoundFactors{0.01F, 3.0F}}, step);
      AdaRoundStep heavier = step;
      heavier.regularizer *= 3;
      const std::size_t at = m * kFanIn;
      adaround_step({&all[0][at], &all[1][at], &all[2][at], &all[3][at]}, slope.data(), more, 0.01F, kFanIn, heavier);
    }
    ASSERT_EQ(std::vector<float>(soft.h(0), soft.h(0) + 2 * kFanIn), all[3]) << i;
    ASSERT_EQ(std::vector<float>(saved.h(0), saved.h(0) + 2 * kFanIn), all[3]) << i;
    if (i % 20 == 19) saved.visit_state(nothing);
  }
  EXPECT_LT(count_moving(soft.h(0), 2 * kFanIn), kFanIn / 2);
}

}  // namespace
}  // namespace detent::solve
