#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "solve/algebra/gram.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/reduced_inputs.h"
#include "solve/block_support.h"
#include "solve/blocks/block_solver.h"
#include "solve/layers/input_form.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/streamed.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

FinetuneConfig gptq_config(std::size_t sweeps = 2) {
  FinetuneConfig config;
  config.solver = WeightSolver::gptq;
  config.coordinate_sweeps = sweeps;
  return config;
}

/// Layers with fewer positions than a quarter of what one output sums over; the last of each kind is no multiple of
/// any block.
std::vector<Layer> layers_of_few_positions(int bits) {
  std::vector<Layer> layers;
  layers.push_back(make_layer(product(300, 70), {3, 6, 300}, 4, bits, 1));
  layers.push_back(make_layer(convolution(37, 20, 1, {3, 3}), {1, 37, 5, 4}, 3, bits, 2));
  LayerGeometry transposed = convolution(64, 9, 1, {2, 2});
  transposed.kind = LayerKind::transposed;
  transposed.output_padding = {0, 0};
  layers.push_back(make_layer(transposed, {1, 64, 3, 3}, 2, bits, 3));
  return layers;
}

GramFormOrRawInputs form_of(const Layer& layer, const FinetuneConfig& config, std::size_t repeats = 1) {
  FormAccumulator sums(layer.geometry, kernels(), 1, config, layer.inputs.size());
  for (std::size_t r = 0; r < repeats; ++r) {
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) sums.add(layer.shape, layer.inputs[i], layer.targets[i]);
  }
  return sums.take();
}

/// As fine-tuning does before it solves a layer of few positions.
GramFormOrRawInputs aimed(const Layer& layer, GramFormOrRawInputs form, bool best_bias = false) {
  set_targets(form, layer.weights, layer.bias, {0, best_bias}, kernels(), 1);
  return form;
}

Solution solved(const Layer& layer, const GramFormOrRawInputs& form, const FinetuneConfig& config,
                std::size_t threads = 1) {
  SolveControl control;
  control.threads = threads;
  return solve(layer.weights, form, layer.bias, config, kernels(), control);
}

// The two forms are the same method, and differ only where floats round differently. Sweeps are not: those on positions
// hold integers near the float weights.
TEST(RawInputs, FindsWhatTheGramFormFinds) {
  for (const bool best_bias : {false, true}) {
    for (const bool ordered : {false, true}) {
      for (const Layer& layer : layers_of_few_positions(4)) {
        SCOPED_TRACE(testing::Message() << best_bias << ordered << layer.weights.fan_in);
        FinetuneConfig config = gptq_config(0);
        config.update_bias = best_bias;
        config.activation_order = ordered;
        const GramFormOrRawInputs plain = form_of(layer, config);
        ASSERT_TRUE(std::holds_alternative<RawInputs>(plain));
        const GramFormOrRawInputs form = aimed(layer, plain, best_bias);
        const Solution by_columns = solved(layer, form, config);
        const Solution by_sums = solved(layer, aimed(layer, layer.gram(), best_bias), config);
        const auto error_of = [&](const Solution& s) {
          return mean_squared_output_error(layer.weights, form, s, kernels());
        };
        const double nearest_error = error_of(nearest(layer.weights, layer.bias));
        EXPECT_NEAR(error_of(by_columns), error_of(by_sums), 0.03 * nearest_error);
        EXPECT_LT(error_of(by_columns), 0.3 * nearest_error);
        const double error = naive_mean(layer, by_columns);
        EXPECT_NEAR(mean_squared_output_error(layer.weights, plain, by_columns, kernels()), error, 1e-3 * error);
      }
    }
  }
}

// Targets of the float weights' own need no outputs of the float model.
TEST(RawInputs, IsTheSameWithoutTargetsThatNothingReads) {
  for (const Layer& layer : layers_of_few_positions(4)) {
    for (const std::size_t sweeps : {0, 2}) {
      const FinetuneConfig config = gptq_config(sweeps);
      FormAccumulator sums(layer.geometry, kernels(), 1, config, layer.inputs.size());
      for (const auto& input : layer.inputs) sums.add(layer.shape, input, {});
      const GramFormOrRawInputs form = aimed(layer, sums.take()), with = aimed(layer, form_of(layer, config));
      EXPECT_TRUE(std::get<RawInputs>(form).targets.empty());
      const Solution solution = solved(layer, form, config);
      EXPECT_EQ(solution.integers, solved(layer, with, config).integers);
      const double error = mean_squared_output_error(layer.weights, aimed(layer, layer.gram()), solution, kernels());
      EXPECT_NEAR(mean_squared_output_error(layer.weights, form, solution, kernels()), error, 1e-2 * error);
      EXPECT_LT(error, mean_squared_output_error(layer.weights, form, nearest(layer.weights, layer.bias), kernels()));
    }
  }
}

// Without sweeps. A tie that is rounded the other way changes all that follows in its row, so errors are compared; what
// damping hides is left out of the positions, and shows in errors of as few positions as here.
TEST(RawInputs, RoundsAsTheGramFormDoes) {
  for (const Layer& layer : layers_of_few_positions(8)) {
    const FinetuneConfig config = gptq_config(0);
    const GramFormOrRawInputs form = aimed(layer, form_of(layer, config));
    const Solution by_columns = solved(layer, form, config);
    const Solution by_sums = solved(layer, aimed(layer, layer.gram()), config);
    const auto error_of = [&](const Solution& s) {
      return mean_squared_output_error(layer.weights, form, s, kernels());
    };
    const double nearest_error = error_of(nearest(layer.weights, layer.bias));
    EXPECT_LT(error_of(by_columns), error_of(by_sums) + 0.01 * nearest_error);
    std::size_t same = 0;
    for (std::size_t i = 0; i < by_sums.integers.size(); ++i) {
      same += by_columns.integers[i] == by_sums.integers[i] ? 1 : 0;
    }
    EXPECT_GT(same, by_sums.integers.size() * 4 / 5);
  }
}

/// A layer of many positions that say little more than `rank` do.
Layer layer_of_rank(std::size_t rank) {
  Layer layer = make_layer(product(300, 70), {200, 300}, 4, 4, 1);
  const auto parts = normal(rank * 300, 41);
  unsigned seed = 50;
  for (auto& input : layer.inputs) {
    const auto shares = normal(200 * rank, seed++);
    for (float& x : input) x *= 0.01F;
    for (std::size_t at = 0; at < shares.size(); ++at) {
      add_scaled(input.data() + at / rank * 300, shares[at], parts.data() + at % rank * 300, 300);
    }
  }
  return layer;
}

// What damping does not hide of a matrix is solved with, be the matrix of few positions or of many.
TEST(RawInputs, StandsForGramMatricesOfLowRank) {
  for (const bool ordered : {false, true}) {
    FinetuneConfig config = gptq_config(0);
    config.activation_order = ordered;
    const Layer low = layer_of_rank(20), high = layer_of_rank(200);
    const auto form_of_own = [](const Layer& layer) {
      GramFormOrRawInputs any = layer.gram();
      set_targets(any, layer.weights, layer.bias, {0, false}, kernels(), 1);
      return std::get<GramForm>(std::move(any));
    };
    const GramForm form = form_of_own(low);
    const auto found = gptq_on_inputs(low.weights, form, config, kernels(), {});
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, gptq(low.weights, form, low.bias, config, kernels(), {}));
    EXPECT_FALSE(gptq_on_inputs(high.weights, form_of_own(high), config, kernels(), {}));
    GramForm whole = form;
    whole.symmetric = false;  // then the matrix is factored as it is
    EXPECT_FALSE(gptq_on_inputs(low.weights, whole, config, kernels(), {}));
    const Quadratic quadratic(low.weights, form, low.bias, false);
    const auto error_of = [&](const Integers& integers) {
      const auto errors = quadratic.errors(low.weights, integers, {0, low.weights.rows});
      return std::accumulate(errors.begin(), errors.end(), 0.0);
    };
    const double nearest_error = error_of(nearest(low.weights, {}).integers);
    const double by_factor = error_of(gptq(low.weights, whole, low.bias, config, kernels(), {}));
    EXPECT_LT(error_of(*found), by_factor + 0.01 * nearest_error);
    EXPECT_LT(error_of(*found), 0.3 * nearest_error);
  }
}

TEST(RawInputs, NoRowIsWorseThanNearestRounding) {
  for (const Layer& layer : layers_of_few_positions(4)) {
    const Solution solution = solved(layer, form_of(layer, gptq_config()), gptq_config());
    const GramForm form = layer.gram();
    const Quadratic quadratic(layer.weights, form, layer.bias, false);
    const RowRange all{0, layer.weights.rows};
    const auto errors = quadratic.errors(layer.weights, solution.integers, all);
    const auto plain = quadratic.errors(layer.weights, nearest(layer.weights, {}).integers, all);
    for (std::size_t m = 0; m < errors.size(); ++m) EXPECT_LE(errors[m], plain[m] * (1 + 1e-3));
  }
}

// Products of positions from products of pixels: those of the positions themselves, whatever the kind of convolution.
TEST(RawInputs, ReducesByPixelsAsByPositions) {
  LayerGeometry padded = convolution(64, 9, 1, {3, 3});
  padded.pads_begin = {1, 2};
  padded.pads_end = {1, 0};
  LayerGeometry transposed = convolution(128, 5, 1, {2, 2});
  transposed.kind = LayerKind::transposed;
  transposed.output_padding = {0, 0};
  for (const Layer& layer :
       {make_layer(padded, {2, 64, 5, 6}, 3, 8, 1), make_layer(convolution(64, 5, 1, {9}), {1, 64, 30}, 4, 8, 2),
        make_layer(transposed, {1, 128, 3, 3}, 2, 8, 3)}) {
    GramFormOrRawInputs any = form_of(layer, gptq_config());
    auto& form = std::get<RawInputs>(any);
    ASSERT_GT(form.pixels.count, 0U);
    const std::size_t k = layer.weights.fan_in;
    const std::vector<float> inputs = im2col(form.pixels);
    std::vector<float> expected;
    for (const auto& input : layer.inputs) {
      const Patches patches(layer.geometry, layer.shape);
      for (std::size_t c = 0; c < patches.positions(); ++c) {
        std::vector<float> position(k);
        const std::size_t which[] = {c};
        const Patches::Place place[] = {{position.data(), 1}};
        patches.gather(input.data(), {0, k}, which, place);
        expected.insert(expected.end(), position.begin(), position.end());
      }
    }
    std::sort(expected.begin(), expected.end());  // positions are kept in another order
    std::vector<float> sorted = inputs;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, expected);
    const double power = dot_double(inputs.data(), inputs.data(), inputs.size());
    const auto reduced = [&](const InputMatrix& positions) {
      return reduce_inputs(positions, {}, input_powers(positions), 0.1 * power, kernels(), 1);
    };
    const ReducedInputs by_pixels = reduced({form.positions, k, {}, &form.pixels});
    const ReducedInputs by_columns = reduced({form.positions, k, inputs});
    EXPECT_LT(by_columns.count, form.positions);
    ASSERT_EQ(by_pixels.count, by_columns.count);
    for (std::size_t i = 0; i < by_columns.inputs.size(); ++i) {
      ASSERT_NEAR(by_pixels.inputs[i], by_columns.inputs[i], 1e-2);
    }
  }
}

TEST(RawInputs, GivesTheSameForAnyThreads) {
  for (const Layer& layer : layers_of_few_positions(4)) {
    const GramFormOrRawInputs form = form_of(layer, gptq_config());
    const Solution one = solved(layer, form, gptq_config());
    const Solution three = solved(layer, form, gptq_config(), 3);
    EXPECT_EQ(one.integers, three.integers);
    EXPECT_EQ(one.bias, three.bias);
  }
}

// Positions that turn out to be many become the sums that they would have been from the start.
TEST(RawInputs, TurnsIntoSumsWhenPositionsAreMany) {
  const Layer layer = layers_of_few_positions(4)[0];  // 72 positions a time, 240 are kept
  const GramFormOrRawInputs form = form_of(layer, gptq_config(), 4);
  const auto* sums = std::get_if<GramForm>(&form);
  ASSERT_NE(sums, nullptr);
  GramAccumulator plain(layer.geometry, kernels(), 1);
  for (int r = 0; r < 4; ++r) {
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) plain.add(layer.shape, layer.inputs[i], layer.targets[i]);
  }
  const GramForm expected = plain.take();
  EXPECT_EQ(sums->gram, expected.gram);
  EXPECT_EQ(sums->cross, expected.cross);
  EXPECT_EQ(sums->positions, expected.positions);
}

TEST(RawInputs, IsForGptqOnWideLayersWithoutGroups) {
  FinetuneConfig config = gptq_config();
  EXPECT_EQ(most_positions(product(1000, 3), config), 800U);
  EXPECT_EQ(most_positions(product(200, 3), config), 0U);
  EXPECT_EQ(most_positions(convolution(1024, 4, 2, {3}), config), 0U);
  config.damping = 0;
  EXPECT_EQ(most_positions(product(1000, 3), config), 0U);
  config = gptq_config();
  config.solver = WeightSolver::adaround;
  EXPECT_EQ(most_positions(product(1000, 3), config), 0U);
}

TEST(RawInputs, BearsInputsOfZerosAndRowsWithoutScale) {
  Layer layer = layers_of_few_positions(4)[0];
  for (auto& input : layer.inputs) std::fill(input.begin(), input.end(), 0.0F);
  layer.weights.scale[2] = 0;
  const Solution solution = solved(layer, form_of(layer, gptq_config()), gptq_config());
  for (const auto q : solution.integers) {
    EXPECT_GE(q, layer.weights.lowest);
    EXPECT_LE(q, layer.weights.highest);
  }
}

TEST(RawInputs, StopsWhenAsked) {
  const Layer layer = layers_of_few_positions(4)[0];
  std::stop_source source;
  source.request_stop();
  SolveControl control;
  control.stop = source.get_token();
  EXPECT_THROW((void)solve(layer.weights, form_of(layer, gptq_config()), layer.bias, gptq_config(), kernels(), control),
               Error);
}

// Of more positions than it takes, those of drawn positions: the sums of the same positions handed over as a product's
// rows.
TEST(FormAccumulator, DrawsPositionsWhereThereAreMany) {
  LayerGeometry g = convolution(3, 5, 1, {3, 3});
  g.pads_begin = g.pads_end = {1, 1};
  const Layer layer = make_layer(g, {1, 3, 60, 50}, 4, 8, 7);  // 12000 positions
  const FinetuneConfig config = gptq_config();
  const GramFormOrRawInputs any = form_of(layer, config);
  const auto& form = std::get<GramForm>(any);
  EXPECT_GE(form.positions, gram_positions(g));
  EXPECT_LE(form.positions, gram_positions(g) + 4);
  const Patches patches(g, layer.shape);
  GramAccumulator expected(product(27, 5), kernels(), 1);
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
    auto positions = draw_positions(3000, gram_positions(g) / 4 + 1, config.seed, i);
    std::vector<float> x(positions.size() * 27), y(positions.size() * 5);
    std::vector<Patches::Place> inputs, targets;
    for (std::size_t c = 0; c < positions.size(); ++c) {
      inputs.push_back({x.data() + c * 27, 1});
      targets.push_back({y.data() + c * 5, 1});
    }
    patches.gather(layer.inputs[i].data(), {0, 27}, positions, inputs);
    patches.gather_outputs(layer.targets[i].data(), positions, targets);
    expected.add({static_cast<std::int64_t>(positions.size()), 27}, x, y);
  }
  const GramForm other = expected.take();
  ASSERT_EQ(form.positions, other.positions);
  const auto scale = static_cast<double>(form.positions);
  for (std::size_t i = 0; i < form.gram.size(); ++i) EXPECT_NEAR(form.gram[i], other.gram[i], 1e-4 * scale);
  for (std::size_t i = 0; i < form.cross.size(); ++i) EXPECT_NEAR(form.cross[i], other.cross[i], 1e-4 * scale);
}

// Sums by shifts are made of whole inputs and want no targets; of many positions they are the dearer way.
TEST(FormAccumulator, TakesAllPositionsWhereShiftsMakeThemCheap) {
  LayerGeometry g = convolution(64, 4, 1, {3, 3});
  ASSERT_TRUE(ShiftedSums::saves_work(g));
  const auto taken = [&](std::int64_t side, bool with_targets) {
    const Layer layer = make_layer(g, {1, 64, side, side}, 4, 8, 7);
    FormAccumulator sums(g, kernels(), 1, gptq_config(), 4);
    for (std::size_t i = 0; i < 4; ++i) {
      sums.add(layer.shape, layer.inputs[i],
               with_targets ? std::span<const float>(layer.targets[i]) : std::span<const float>());
    }
    return std::get<GramForm>(sums.take()).positions;
  };
  const std::size_t drawn = 4 * (gram_positions(g) / 4 + 1);
  EXPECT_EQ(taken(42, false), 4U * 40 * 40);
  EXPECT_EQ(taken(42, true), drawn);
  EXPECT_EQ(taken(62, false), drawn);
}

// Kept positions become the same sums when more samples come than were expected.
TEST(FormAccumulator, GoesOverToSumsWithThePositionsThatItDrew) {
  const Layer layer = make_layer(product(512, 3), {100, 512}, 4, 8, 7);
  FinetuneConfig config = gptq_config();
  FormAccumulator few(layer.geometry, kernels(), 1, config, 4096 / 20);  // 20 or 21 of each
  FormAccumulator all(layer.geometry, kernels(), 1, config, 4);
  for (int repeat = 0; repeat < 6; ++repeat) {
    for (std::size_t i = 0; i < 4; ++i) {
      few.add(layer.shape, layer.inputs[i], layer.targets[i]);
      all.add(layer.shape, layer.inputs[i], layer.targets[i]);
    }
  }
  const GramFormOrRawInputs drawn = few.take(), whole = all.take();
  EXPECT_EQ(std::get<GramForm>(drawn).positions, 24U * 21);
  EXPECT_EQ(std::get<GramForm>(whole).positions, 2400U);
}

using quantization::BlockFormat;

TEST(InputScales, HelpWhereInputsDiffer) {
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = false};
  for (const Inputs inputs : {Inputs::outliers, Inputs::both}) {
    const auto product = make_product(inputs, 128, 150, 500);
    for (const bool search : {false, true}) {
      const auto found = best_input_scales(product.gram(), product.weight, format, search, kernels(), 1);
      std::printf("%d, %s: %.3f of the error, exponent %.1f\n", static_cast<int>(inputs), search ? "search" : "nearest",
                  found.error / found.error_before, found.exponent);
      EXPECT_LT(found.error, (search ? 1.0 : 0.4) * found.error_before);
      const auto threaded = best_input_scales(product.gram(), product.weight, format, search, kernels(), 3);
      EXPECT_EQ(threaded.factors, found.factors);
      EXPECT_EQ(threaded.error, found.error);
    }
  }
}

// The error is that of weights times factors, rounded and divided again.
TEST(InputScales, ErrorIsThatOfTheScaledProduct) {
  const auto product = make_product(Inputs::outliers, 64, 10, 200);
  const BlockFormat format{.bits = 4, .block = 16, .symmetric = true};
  const auto found = best_input_scales(product.gram(), product.weight, format, false, kernels(), 1);
  ASSERT_EQ(found.factors.size(), 64U);
  auto scaled = product.weight;
  for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= found.factors[i % 64];
  std::vector<float> stored(scaled.size());
  dequantize(quantization::nearest(scaled, 64, format), stored);
  double sum = 0;
  for (std::size_t n = 0; n < 10; ++n) {
    for (std::size_t i = 0; i < 64; ++i) {
      const auto change = [&](std::size_t k) {
        return stored[n * 64 + k] / found.factors[k] - product.weight[n * 64 + k];
      };
      for (std::size_t j = 0; j < 64; ++j) sum += static_cast<double>(product.gram().at(i, j)) * change(i) * change(j);
    }
  }
  EXPECT_NEAR(found.error, sum, 1e-4 * sum);
  const auto plain =
      column_errors(product.gram(), product.weight, quantization::nearest(product.weight, 64, format), kernels(), 1);
  EXPECT_NEAR(found.error_before, total(plain), 1e-4 * total(plain));
}

TEST(InputScales, AreNoneWhereNothingIsGained) {
  const std::vector<float> sums(16 * 16);  // inputs that are always 0
  const std::vector<float> weight = normal(64, 3);
  EXPECT_TRUE(best_input_scales({sums, 16, 10}, weight, {}, true, kernels(), 1).factors.empty());
  EXPECT_TRUE(best_input_scales({sums, 16, 10}, {}, {}, true, kernels(), 1).factors.empty());
}

}  // namespace
}  // namespace detent::solve
