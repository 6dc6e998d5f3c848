#include "solve/layers/streamed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/rounding_variables.h"
#include "solve/solvers.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

FinetuneConfig config_of(WeightSolver rounding, std::size_t iterations) {
  FinetuneConfig config;
  config.solver = rounding;
  config.num_iterations = iterations;
  return config;
}

Solution streamed(const Layer& layer, const FinetuneConfig& config, std::size_t threads = 1) {
  InMemory samples(layer);
  SolveControl control;
  control.threads = threads;
  return solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, kernels(), control);
}

double error_of(const Layer& layer, const Solution& solution) {
  InMemory samples(layer);
  return reconstruction_error(layer.weights, layer.geometry, solution, samples, kernels(), {});
}

// Positions one by one are those of the whole input.
TEST(Patches, GatherSinglePositions) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Patches patches(c.geometry, c.input);
    const auto input = normal(elements(c.input), 1);
    const auto output = normal(patches.positions() * patches.outputs(), 2);
    Tile whole(patches.rows(), patches.positions(), false), targets(patches.outputs(), patches.positions(), false);
    for (std::size_t c0 = 0; c0 < patches.positions(); ++c0) {  // Tile is by rows for products here, too
      Tile one(patches.rows(), 1, c.geometry.kind == LayerKind::product);
      Tile wanted(patches.outputs(), 1, one.column_major);
      patches.gather(input.data(), {0, patches.rows()}, {c0, c0 + 1}, one, 0);
      patches.gather_outputs(output.data(), {0, patches.outputs()}, {c0, c0 + 1}, wanted, 0);
      for (std::size_t r = 0; r < patches.rows(); ++r) *whole.at(r, c0) = one.values[r];
      for (std::size_t r = 0; r < patches.outputs(); ++r) *targets.at(r, c0) = wanted.values[r];
    }
    const auto positions = draw_positions(patches.positions(), patches.positions() / 2 + 1, 1, 1);
    std::vector<float> found(patches.rows() * positions.size()), found_targets(patches.outputs() * positions.size());
    std::vector<Patches::Place> places, target_places;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      places.push_back({found.data() + i, positions.size()});
      target_places.push_back({found_targets.data() + i * patches.outputs(), 1});
    }
    const std::size_t half = patches.rows() / 2;
    patches.gather(input.data(), {0, half}, positions, places);
    patches.gather(input.data(), {half, patches.rows()}, positions, places);
    patches.gather_outputs(output.data(), positions, target_places);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      for (std::size_t r = 0; r < patches.rows(); ++r) {
        EXPECT_EQ(found[r * positions.size() + i], whole.row(r)[positions[i]]) << r << ' ' << positions[i];
      }
      for (std::size_t m = 0; m < patches.outputs(); ++m) {
        EXPECT_EQ(found_targets[i * patches.outputs() + m], targets.row(m)[positions[i]]);
      }
    }
  }
}

TEST(DrawPositions, TakesOneOfEachPart) {
  const auto drawn = draw_positions(1000, 30, 5, 7);
  ASSERT_EQ(drawn.size(), 30U);
  std::vector<std::size_t> sorted = drawn;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(drawn, sorted);
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_GE(sorted[i], i * 1000 / 30);
    EXPECT_LT(sorted[i], (i + 1) * 1000 / 30);
  }
  EXPECT_EQ(draw_positions(1000, 30, 5, 7), drawn);
  EXPECT_NE(draw_positions(1000, 30, 5, 8), drawn);
  EXPECT_NE(draw_positions(1000, 30, 6, 7), drawn);
  EXPECT_EQ(draw_positions(3, 30, 5, 7).size(), 3U);
  EXPECT_TRUE(draw_positions(0, 30, 5, 7).empty());
}

/// Loss of rows on a mini-batch and its slopes by their weights and bias, in double and by the definition.
double naive_slopes(const Layer& layer, RowRange rows, const RoundingVariables& variables, const MiniBatch& batch,
                    std::vector<float>& by_weights, std::vector<float>& by_bias) {
  const std::size_t k = layer.weights.fan_in, n = batch.positions;
  const std::size_t group_rows = layer.weights.rows / static_cast<std::size_t>(layer.geometry.groups);
  std::vector<float> values(rows.count() * k);
  variables.weights_over_scale(rows, {0, k}, values.data());
  by_weights.assign(values.size(), 0.0F);
  by_bias.assign(rows.count(), 0.0F);
  double sum = 0;
  for (std::size_t r = 0; r < rows.count(); ++r) {
    const std::size_t row = rows.first + r, first = row / group_rows * k;
    const auto x = [&](std::size_t j, std::size_t c) {
      return batch.by_position ? batch.inputs[c * k + j] : batch.inputs[(first + j) * n + c];
    };
    for (std::size_t c = 0; c < n; ++c) {
      double y = variables.bias()[row];
      for (std::size_t j = 0; j < k; ++j) y += static_cast<double>(variables.scale(row)) * values[r * k + j] * x(j, c);
      const float d = static_cast<float>(y) - batch.targets[row * n + c];
      const float slope = 2 * d / static_cast<float>(n);
      sum += static_cast<double>(d) * d;
      for (std::size_t j = 0; j < k; ++j) by_weights[r * k + j] += slope * x(j, c);
      by_bias[r] += slope;
    }
  }
  return sum;
}

// The same steps by the definition, for every kind of layer and in every piece of it.
TEST(Streamed, StepsFollowTheSlopesOfTheLoss) {
  std::vector<Case> cases = all_kinds();
  LayerGeometry several = convolution(20, 70, 1, {3, 5});  // 300 weights for each output: two parts of a row
  several.pads_begin = {1, 2};
  several.pads_end = {1, 1};
  cases.push_back({"several parts", several, {2, 20, 6, 5}});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
      FinetuneConfig config = config_of(rounding, 6);
      config.batch_size = 2;
      config.update_bias = true;
      config.learning_rate = 1e-3;
      InMemory samples(layer);
      MiniBatches mini_batches(samples, c.geometry, config, 1);
      RoundingVariables ours(layer.weights, layer.bias, config, 1.0), expected = ours;
      const auto group_rows = layer.weights.rows / static_cast<std::size_t>(c.geometry.groups);
      for (std::size_t at = 0; at < 6;) {
        const auto batches = mini_batches.load(at, 6);
        for (std::size_t first = 0; first < layer.weights.rows; first += std::min<std::size_t>(group_rows, 64)) {
          const RowRange rows{first, std::min({first + 64, (first / group_rows + 1) * group_rows})};
          std::vector<double> losses(batches.size());
          MiniBatchSteps(rows, c.geometry, kernels()).run(ours, batches, at, losses, [] {});
          std::vector<float> by_weights, by_bias;
          for (std::size_t i = 0; i < batches.size(); ++i) {
            const double loss = naive_slopes(layer, rows, expected, batches[i], by_weights, by_bias);
            EXPECT_NEAR(losses[i], loss, 1e-4 * loss);
            expected.step(rows, {0, layer.weights.fan_in}, by_weights.data(), at + i, nullptr);
            if (expected.trains_bias()) expected.step_bias(rows, by_bias.data(), at + i);
          }
        }
        at += batches.size();
      }
      const Solution one = ours.solution(), other = expected.solution();
      for (std::size_t m = 0; m < layer.weights.rows; ++m) EXPECT_NEAR(one.bias[m], other.bias[m], 1e-4);
      EXPECT_EQ(one.integers, other.integers);
    }
  }
}

// Each mini-batch holds a little of every sample of its set, and comes the same wherever the loading begins.
TEST(Streamed, DealsPositionsOfAllSamplesOut) {
  LayerGeometry g = convolution(2, 3, 1, {1, 1});
  Layer layer = make_layer(g, {1, 2, 20, 20}, 5, 4, 7);
  for (std::size_t s = 0; s < 5; ++s) layer.targets[s].assign(layer.targets[s].size(), static_cast<float>(s));
  InMemory samples(layer);
  FinetuneConfig config = config_of(WeightSolver::adaround, 23);
  MiniBatches whole(samples, g, config, 2), parts(samples, g, config, 1);
  std::vector<std::vector<float>> seen;
  for (std::size_t at = 0; at < 23;) {
    const auto batches = whole.load(at, 23);
    for (const MiniBatch& batch : batches) {
      EXPECT_EQ(batch.positions, kPositionsOfSample);
      std::vector<std::size_t> of_sample(5);
      for (std::size_t c = 0; c < batch.positions; ++c) ++of_sample[static_cast<std::size_t>(batch.targets[c])];
      for (const std::size_t count : of_sample) EXPECT_NEAR(static_cast<double>(count), kPositionsOfSample / 5.0, 1);
      seen.push_back(batch.inputs);
    }
    at += batches.size();
  }
  ASSERT_EQ(seen.size(), 23U);
  EXPECT_NE(seen[0], seen[5]);  // other positions of the same samples
  for (const std::size_t first : {22, 7, 8, 0}) EXPECT_EQ(parts.load(first, first + 1)[0].inputs, seen[first]);
}

// On the positions that it sees it makes no row worse, nor worse than nearest rounding; from anywhere.
TEST(InputDescent, MakesEachRowBetter) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    InMemory samples(layer);
    Solution start = nearest(layer.weights, layer.bias);
    for (std::size_t i = 0; i < start.integers.size(); i += 5) {
      start.integers[i] = std::min(start.integers[i] + 1, layer.weights.highest);
    }
    FinetuneConfig config = config_of(WeightSolver::adaround, 10);
    config.coordinate_sweeps = 20;
    SolveControl control;
    control.threads = 2;
    const Solution found{descend_on_samples(layer.weights, c.geometry, start, samples, config, kernels(), control),
                         layer.bias};
    const double plain = error_of(layer, nearest(layer.weights, layer.bias));
    EXPECT_LE(error_of(layer, found), std::min(plain, error_of(layer, start)));
    // No change of one integer makes it better any more.
    for (std::size_t i = 0; i < found.integers.size(); i += 3) {
      for (const int step : {-1, 1}) {
        Solution other = found;
        other.integers[i] += step;
        if (other.integers[i] < layer.weights.lowest || other.integers[i] > layer.weights.highest) continue;
        EXPECT_GE(error_of(layer, other), 0.9999 * error_of(layer, found)) << i;
      }
    }
  }
}

/// Samples that are asked for one at a time, and counted.
class Counted final : public LayerSamples {
 public:
  explicit Counted(LayerSamples& samples) : samples_(samples) {}
  std::size_t count() const override { return samples_.count(); }
  SampleRef get(std::size_t i) override {
    ++asked;
    return samples_.get(i);
  }
  std::size_t asked = 0;

 private:
  LayerSamples& samples_;
};

// Few positions leave most directions open: what they ask for must not be paid for there.
TEST(InputDescent, HelpsOnSamplesThatItHasNotSeen) {
  const LayerGeometry g = product(300, 40);
  const Layer layer = make_layer(g, {20, 300}, 10, 4, 5);
  const Layer held_back = make_layer(g, {20, 300}, 8, 4, 5, 90000);
  ASSERT_EQ(layer.weights.values, held_back.weights.values);
  InMemory samples(layer);
  const Solution start = nearest(layer.weights, layer.bias);
  const Solution found{
      descend_on_samples(layer.weights, g, start, samples, config_of(WeightSolver::adaround, 1), kernels(), {}),
      layer.bias};
  EXPECT_LT(error_of(layer, found), 0.9 * error_of(layer, start));
  EXPECT_LT(error_of(held_back, found), error_of(held_back, start));
}

// Samples come again and again from what is kept of them, and are read anew where they are too large for that.
TEST(Streamed, KeepsFewSamplesAtHand) {
  const Layer layer = make_layer(product(16, 8), {32, 16}, 4, 4, 7);
  InMemory samples(layer);
  Counted counted(samples);
  const FinetuneConfig config = config_of(WeightSolver::adaround, 100);
  MiniBatches batches(counted, layer.geometry, config, 1);
  EXPECT_EQ(batches.load(0, 40).size(), 4U);  // a set: as many as samples
  EXPECT_EQ(batches.load(41, 43).size(), 2U);
  EXPECT_LE(counted.asked, 5U);  // one for its shape
  const LayerGeometry wide = product(1 << 20, 1);
  Layer large;
  large.geometry = wide;
  large.shape = {3, 1 << 20};
  large.inputs = large.float_inputs = {5, std::vector<float>(3 << 20)};
  large.targets = {5, std::vector<float>(3)};
  InMemory large_samples(large);
  MiniBatches few(large_samples, wide, config, 1);
  EXPECT_EQ(few.load(0, 10).size(), 1U);  // 12 MiB each
  EXPECT_EQ(few.load(2, 10).size(), 1U);
}

TEST(Streamed, ErrorIsThatOfTheGramForm) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    const Solution rounded = nearest(layer.weights, layer.bias);
    const double expected = naive_mean(layer, rounded);
    EXPECT_NEAR(error_of(layer, rounded), expected, 1e-5 * expected);
    EXPECT_NEAR(mean_squared_output_error(layer.weights, layer.gram(), rounded), expected, 1e-4 * expected);
  }
}

TEST(Streamed, BeatsNearestRoundingOnHeldBackData) {
  const LayerGeometry g = product(64, 48);
  const Layer layer = make_layer(g, {64, 64}, 8, 4, 5);
  const Layer held_back = make_layer(g, {64, 64}, 4, 4, 5, 90000);
  const double plain = error_of(held_back, nearest(layer.weights, layer.bias));
  const double ada = error_of(held_back, streamed(layer, config_of(WeightSolver::adaround, 1000))) / plain;
  FinetuneConfig quant = config_of(WeightSolver::adaquant, 1000);
  quant.learning_rate = 1e-3;
  const double ada_quant = error_of(held_back, streamed(layer, quant)) / plain;
  std::printf("of nearest: AdaRound %.2f, AdaQuant %.2f\n", ada, ada_quant);
  EXPECT_LT(ada, 0.45);
  EXPECT_LT(ada_quant, 0.9);
}

// All 2^10 ways to round one output of ten weights, for twenty layers.
TEST(Streamed, ComesCloseToTheBestRounding) {
  double stepped = 0, swept = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Layer layer = make_layer(product(10, 1), {40, 10}, 2, 4, 1000 + 10 * seed);
    Solution down = nearest(layer.weights, layer.bias);
    for (std::size_t k = 0; k < 10; ++k) {
      down.integers[k] =
          std::clamp(static_cast<std::int32_t>(std::floor(layer.weights.values[k] / layer.weights.scale[0])),
                     layer.weights.lowest, layer.weights.highest - 1);
    }
    double best = std::numeric_limits<double>::infinity();
    for (unsigned choice = 0; choice < 1024; ++choice) {
      Solution some = down;
      for (unsigned k = 0; k < 10; ++k) some.integers[k] += static_cast<std::int32_t>(choice >> k & 1U);
      best = std::min(best, error_of(layer, some));
    }
    FinetuneConfig config = config_of(WeightSolver::adaround, 1000);
    swept += (error_of(layer, streamed(layer, config)) / best - 1) / 20;
    config.coordinate_sweeps = 0;
    stepped += (error_of(layer, streamed(layer, config)) / best - 1) / 20;
  }
  std::printf("above the best rounding: AdaRound in mini-batches %.1f %%, and sweeps %.1f %%\n", 100 * stepped,
              100 * swept);
  EXPECT_LT(stepped, 0.8);
  EXPECT_LT(swept, 0.3);
}

TEST(Streamed, TunesConvolutions) {
  LayerGeometry g = convolution(8, 12, 2, {3, 3});
  g.pads_begin = g.pads_end = {1, 1};
  const Layer layer = make_layer(g, {1, 8, 10, 10}, 6, 3, 7);
  FinetuneConfig config = config_of(WeightSolver::adaround, 300);
  config.batch_size = 3;
  const Solution tuned = streamed(layer, config);
  EXPECT_LT(error_of(layer, tuned), 0.8 * error_of(layer, nearest(layer.weights, layer.bias)));
  EXPECT_EQ(tuned.bias, layer.bias);
}

TEST(Streamed, GivesTheSameForAnyThreads) {
  const Layer layer = make_layer(convolution(8, 140, 1, {3, 3}), {1, 8, 9, 9}, 5, 4, 7);
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
    FinetuneConfig config = config_of(rounding, 30);
    config.batch_size = 2;
    config.update_bias = true;
    config.learning_rate = rounding == WeightSolver::adaround ? 0.1 : 1e-3;
    for (const double drop_ratio : {0.5, 1.0}) {
      config.drop_ratio = drop_ratio;
      const Solution one = streamed(layer, config, 1);
      for (const std::size_t threads : {2, 5}) {
        const Solution other = streamed(layer, config, threads);
        EXPECT_EQ(one.integers, other.integers);
        EXPECT_EQ(one.bias, other.bias);
      }
      config.seed += 1;
      EXPECT_NE(streamed(layer, config).integers, one.integers);
    }
  }
}

TEST(Streamed, MixesInputsOfBothBranches) {
  Layer layer = make_layer(product(16, 8), {32, 16}, 4, 4, 7);
  Layer swapped = layer;
  FinetuneConfig config = config_of(WeightSolver::adaround, 50);
  config.coordinate_sweeps = 0;
  config.drop_ratio = 0;
  std::swap(swapped.inputs, swapped.float_inputs);
  const Solution exact = streamed(layer, config);
  config.drop_ratio = 1;
  EXPECT_EQ(streamed(swapped, config).integers, exact.integers);  // all of them from one branch
  for (auto& input : layer.float_inputs) input.clear();
  EXPECT_NO_THROW(streamed(layer, config));
  config.drop_ratio = 0.5;
  EXPECT_THROW(streamed(layer, config), Error);
}

TEST(Streamed, BiasIsTheBestOne) {
  const Layer layer = make_layer(convolution(4, 6, 1, {3}), {2, 4, 20}, 3, 4, 7);
  const Solution rounded = nearest(layer.weights, layer.bias);
  InMemory samples(layer);
  const auto bias = streamed_bias(layer.weights, layer.geometry, rounded, samples, kernels(), {});
  const auto expected = best_bias(layer.weights, layer.gram(), rounded.integers);
  for (std::size_t m = 0; m < bias.size(); ++m) EXPECT_NEAR(bias[m], expected[m], 1e-5);
}

TEST(Streamed, StopsWhenAskedAndRefusesGptq) {
  const Layer layer = make_layer(product(16, 8), {32, 16}, 2, 4, 7);
  InMemory samples(layer);
  std::stop_source source;
  source.request_stop();
  SolveControl control;
  control.stop = source.get_token();
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::gptq}) {
    EXPECT_THROW(
        solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config_of(rounding, 10), kernels(), control),
        Error);
  }
}

/// A state in memory. After `stop_after` times it asks the solver to stop.
class KeptState final : public SolverState {
 public:
  Stored load() override { return {nullptr, bytes}; }
  bool is_due() const override { return true; }
  void save(std::span<const std::span<const std::byte>> parts) override {
    bytes.clear();
    for (const auto part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
    if (++saved == stop_after) stop.request_stop();
  }

  std::vector<std::byte> bytes;
  std::size_t saved = 0;
  std::size_t stop_after = 0;
  std::stop_source stop;
};

// Stopped after each of its intervals, a solver that goes on from its state finds what it finds otherwise.
TEST(SolverState, GoesOnToTheSameEnd) {
  const Layer layer = make_layer(product(40, 12), {20, 40}, 4, 4, 7);
  InMemory samples(layer);
  const GramForm form = layer.gram();
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
    for (const bool in_batches : {false, true}) {
      FinetuneConfig config = config_of(rounding, 50);
      config.update_bias = true;
      config.learning_rate = rounding == WeightSolver::adaround ? 0.1 : 1e-3;
      const auto solve_with = [&](SolverState* state, std::stop_token stop, std::size_t& intervals) {
        SolveControl control;
        control.state = state;
        control.stop = std::move(stop);
        control.progress = [&](std::size_t, double) { ++intervals; };
        return in_batches
                   ? solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, kernels(), control)
                   : solve(layer.weights, form, layer.bias, config, kernels(), control);
      };
      std::size_t all = 0;
      const Solution whole = solve_with(nullptr, {}, all);
      EXPECT_EQ(all, 10U);
      KeptState state;
      for (std::size_t part = 1; part < 10; part += 4) {
        KeptState next;
        next.bytes = state.bytes;
        next.stop_after = 1;
        std::size_t done = 0;
        EXPECT_THROW((void)solve_with(&next, next.stop.get_token(), done), Error);
        EXPECT_EQ(done, 1U);
        state.bytes = next.bytes;
      }
      std::size_t rest = 0;
      const Solution resumed = solve_with(&state, {}, rest);
      EXPECT_EQ(rest, 7U);
      EXPECT_EQ(resumed.integers, whole.integers);
      EXPECT_EQ(resumed.bias, whole.bias);
    }
  }
}

TEST(KeepIfBetter, NeverKeepsWhatIsWorseThanNearest) {
  const Layer layer = make_layer(product(16, 8), {32, 16}, 4, 4, 7);
  InMemory samples(layer);
  const auto keep = [&](Solution candidate) {
    return keep_if_better(layer.weights, layer.bias, std::move(candidate), [&](const Solution& s) {
      return reconstruction_error(layer.weights, layer.geometry, s, samples, kernels(), {});
    });
  };
  Solution bad = nearest(layer.weights, layer.bias);
  bad.integers[3] -= 2;
  const KeptSolution refused = keep(bad);
  EXPECT_FALSE(refused.tuned);
  EXPECT_EQ(refused.solution.integers, nearest(layer.weights, {}).integers);
  EXPECT_EQ(refused.error, refused.nearest_error);
  const Solution good = streamed(layer, config_of(WeightSolver::adaround, 200));
  const KeptSolution kept = keep(good);
  EXPECT_TRUE(kept.tuned);
  EXPECT_EQ(kept.solution.integers, good.integers);
  EXPECT_LT(kept.error, kept.nearest_error);
}

TEST(FormCost, ChoosesAsArithmeticSays) {
  FinetuneConfig config = config_of(WeightSolver::adaround, 1000);
  LayerGeometry depthwise = convolution(256, 256, 256, {3, 3});
  EXPECT_LT(gram_cost(depthwise, {1, 256, 28, 28}, 64, config, 2).flops,
            streamed_cost(depthwise, {1, 256, 28, 28}, 64, config, 2).flops);
  const LayerGeometry deep = convolution(2048, 512, 1, {3, 3});  // K = 18432: 1.4 GB
  const FormCost gram = gram_cost(deep, {1, 2048, 7, 7}, 64, config, 2);
  const FormCost in_batches = streamed_cost(deep, {1, 2048, 7, 7}, 64, config, 2);
  EXPECT_GT(gram.bytes, std::uint64_t{18432} * 18432 * 4);
  EXPECT_GT(gram.flops, in_batches.flops);
  EXPECT_GT(gram.bytes, in_batches.bytes);
  config.solver = WeightSolver::gptq;
  EXPECT_LT(gram_cost(deep, {1, 2048, 7, 7}, 64, config, 2).flops, gram.flops);
  EXPECT_TRUE(has_gram_form(config));
  config.drop_ratio = 0.5;
  EXPECT_FALSE(has_gram_form(config));
}

}  // namespace
}  // namespace detent::solve
