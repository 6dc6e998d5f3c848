#include "finetune/streamed.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "finetune/batch_gradient.h"
#include "finetune/column_steps.h"
#include "finetune/form_cost.h"
#include "finetune/mini_batches.h"
#include "finetune/rounding_variables.h"
#include "finetune/support.h"

namespace detent::finetune {
namespace {

class InMemory final : public LayerSamples {
 public:
  explicit InMemory(const Layer& layer) : layer_(layer) {}
  std::size_t count() const override { return layer_.inputs.size(); }
  SampleRef get(std::size_t i) override {
    return {layer_.shape, layer_.inputs[i], layer_.float_inputs[i], layer_.targets[i], nullptr};
  }

 private:
  const Layer& layer_;
};

FinetuneConfig config_of(Rounding rounding, std::size_t iterations) {
  FinetuneConfig config;
  config.rounding = rounding;
  config.num_iterations = iterations;
  return config;
}

Solution streamed(const Layer& layer, const FinetuneConfig& config, const Activation& activation = {},
                  std::size_t threads = 1) {
  InMemory samples(layer);
  SolveControl control;
  control.threads = threads;
  return solve_streamed(layer.weights, layer.geometry, layer.bias, samples, activation, config, kernels(), control);
}

double error_of(const Layer& layer, const Solution& solution, const Activation& activation = {}) {
  InMemory samples(layer);
  return reconstruction_error(layer.weights, layer.geometry, solution, samples, activation, kernels(), {});
}

const std::vector<Activation> kActivations{
    {},
    {ActivationKind::relu},
    {ActivationKind::clip, -0.5F, 1.5F},
    {ActivationKind::leaky_relu, 0, 0, 0.2F},
    {ActivationKind::sigmoid},
    {ActivationKind::tanh},
    {ActivationKind::gelu},
    {ActivationKind::gelu_tanh},
    {ActivationKind::hard_swish},
};

TEST(Activation, GradientIsThatOfTheLoss) {
  for (const Activation& activation : kActivations) {
    const auto y = normal(200, 1, 2);
    const auto target = normal(200, 2);
    std::vector<float> gradient = y;
    const double loss = loss_and_gradient(activation, gradient.data(), target.data(), y.size(), 0.5F);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto at = [&](float x) { return loss_and_gradient(activation, &x, &target[i], 1, 1); };
      const double slope = (at(y[i] + 2e-3F) - at(y[i] - 2e-3F)) / 4e-3;
      sum += at(y[i]);
      EXPECT_NEAR(gradient[i], 0.5 * slope, 0.02 * (1 + std::abs(slope))) << static_cast<int>(activation.kind) << y[i];
    }
    EXPECT_NEAR(sum, loss, 1e-9 * loss);
  }
}

// Central differences of the loss of a few weights and biases, for every kind of layer and in every piece of it.
TEST(Streamed, GradientIsThatOfTheLoss) {
  for (const Case& c : all_kinds()) {
    if (c.geometry.kind == LayerKind::product) continue;  // not by convolutions
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 1, 4, 7);
    const Activation activation{ActivationKind::tanh};
    const auto fan_in = static_cast<std::size_t>(c.geometry.fan_in());
    for (const RowRange rows :
         {RowRange{0, layer.weights.rows}, RowRange{layer.weights.rows / 2, layer.weights.rows}}) {
      const auto group_rows = static_cast<std::size_t>(c.geometry.outputs / c.geometry.groups);
      if (rows.first % group_rows != 0 && c.geometry.groups > 1) continue;  // not a piece that is ever made
      BatchGradient batch(c.geometry, rows, activation, kernels());
      std::vector<float> w(layer.weights.values.begin() + static_cast<std::ptrdiff_t>(rows.first * fan_in),
                           layer.weights.values.end());
      for (float& v : w) v *= 0.1F;
      std::vector<float> b(rows.count(), 0.1F);
      const auto loss = [&](std::vector<float>& gradient, std::vector<float>& by_bias) {
        gradient.assign(w.size(), 0.0F);
        by_bias.assign(b.size(), 0.0F);
        return batch.add(c.input, layer.inputs[0].data(), layer.targets[0].data(), w.data(), b.data(), 1.0F,
                         gradient.data(), by_bias.data());
      };
      std::vector<float> gradient, by_bias, unused, unused_bias;
      loss(gradient, by_bias);
      const auto check = [&](float& value, float slope) {
        const float kept = value;
        value = kept + 0.01F;
        const double above = loss(unused, unused_bias);
        value = kept - 0.01F;
        const double below = loss(unused, unused_bias);
        value = kept;
        EXPECT_NEAR(slope, (above - below) / 0.02, 0.02 * (1 + std::abs(slope)));
      };
      for (std::size_t i = 0; i < w.size(); i += 3) check(w[i], gradient[i]);
      for (std::size_t i = 0; i < b.size(); ++i) check(b[i], by_bias[i]);
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

// The same steps by products with columns and by convolutions: which one is taken is a matter of time alone.
TEST(Streamed, StepsOnColumnsAreThoseOfConvolutions) {
  LayerGeometry g = convolution(20, 70, 1, {3, 4});  // 240 weights for each output, and several pieces of rows
  g.pads_begin = {1, 2};
  g.pads_end = {1, 1};
  const Layer layer = make_layer(g, {2, 20, 6, 5}, 3, 4, 7);
  const Activation activation{ActivationKind::relu};
  for (const Rounding rounding : {Rounding::adaround, Rounding::adaquant}) {
    FinetuneConfig config = config_of(rounding, 6);
    config.batch_size = 2;
    config.update_bias = true;
    config.learning_rate = 1e-3;
    InMemory samples(layer);
    MiniBatches gathered(samples, g, config, 1, true), plain(samples, g, config, 1, false);
    RoundingVariables by_columns(layer.weights, layer.bias, config, 1.0), by_convolutions = by_columns;
    const auto batches = gathered.load(0, 6);
    ASSERT_EQ(batches.size(), 6U);
    for (const RowRange rows : {RowRange{0, 64}, RowRange{64, 70}}) {
      std::vector<double> losses(6);
      ColumnSteps(rows, g, activation, kernels()).run(by_columns, batches, 0, losses, [] {});
      BatchGradient gradient(g, rows, activation, kernels());
      for (std::size_t i = 0; i < 6; ++i) {
        const MiniBatch batch = plain.load(i, 6)[0];
        std::vector<float> w(rows.count() * 240), by_weights(w.size()), by_bias(rows.count());
        by_convolutions.values(rows, {0, 240}, w.data());
        for (std::size_t k = 0; k < w.size(); ++k) w[k] *= layer.weights.scale[rows.first + k / 240];
        double loss = 0;
        const float factor = 1.0F / static_cast<float>(batch[0]->columns + batch[1]->columns);
        for (const auto& drawn : batch) {
          loss += gradient.add(drawn->sample.input_shape, drawn->input(), drawn->sample.target.data(), w.data(),
                               by_convolutions.bias() + rows.first, factor, by_weights.data(), by_bias.data());
        }
        EXPECT_NEAR(losses[i], loss, 1e-4 * loss);
        by_convolutions.step(rows, {0, 240}, by_weights.data(), i, nullptr);
        if (by_convolutions.trains_bias()) by_convolutions.step_bias(rows, by_bias.data(), i);
      }
    }
    const Solution one = by_columns.solution(), other = by_convolutions.solution();
    for (std::size_t m = 0; m < 70; ++m) EXPECT_NEAR(one.bias[m], other.bias[m], 1e-4);
    EXPECT_EQ(one.integers, other.integers);
  }
}

// Samples come again and again from what is kept of them, and are read anew where they are too large for that.
TEST(Streamed, KeepsFewSamplesAtHand) {
  const Layer layer = make_layer(product(16, 8), {32, 16}, 4, 4, 7);
  InMemory samples(layer);
  Counted counted(samples);
  const FinetuneConfig config = config_of(Rounding::adaround, 100);
  MiniBatches batches(counted, layer.geometry, config, 1, true);
  EXPECT_EQ(batches.load(0, 40).size(), 40U);
  EXPECT_EQ(batches.load(40, 100).size(), 60U);
  EXPECT_EQ(counted.asked, 4U);
  MiniBatches single(counted, layer.geometry, config, 1, false);
  EXPECT_EQ(single.load(0, 40).size(), 1U);
  const LayerGeometry wide = product(1 << 20, 1);
  Layer large;
  large.geometry = wide;
  large.shape = {3, 1 << 20};
  large.inputs = large.float_inputs = {3, std::vector<float>(3 << 20)};
  large.targets = {3, std::vector<float>(3)};
  InMemory large_samples(large);
  MiniBatches few(large_samples, wide, config, 1, true);
  EXPECT_EQ(few.load(0, 10).size(), 2U);  // 12 MiB each
  EXPECT_EQ(few.load(2, 10).size(), 2U);
}

TEST(Streamed, ErrorIsThatOfTheGramForm) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    const Solution rounded = nearest(layer.weights, layer.bias);
    const double expected = naive_mean(layer, rounded);
    EXPECT_NEAR(error_of(layer, rounded), expected, 1e-5 * expected);
    EXPECT_NEAR(mean_squared_error(layer.weights, layer.gram(), rounded), expected, 1e-4 * expected);
  }
}

TEST(Streamed, BeatsNearestRoundingOnHeldBackData) {
  const LayerGeometry g = product(64, 48);
  const Layer layer = make_layer(g, {64, 64}, 8, 4, 5);
  const Layer held_back = make_layer(g, {64, 64}, 4, 4, 5, 90000);
  const double plain = error_of(held_back, nearest(layer.weights, layer.bias));
  const double ada = error_of(held_back, streamed(layer, config_of(Rounding::adaround, 1000))) / plain;
  FinetuneConfig quant = config_of(Rounding::adaquant, 1000);
  quant.learning_rate = 1e-3;
  const double ada_quant = error_of(held_back, streamed(layer, quant)) / plain;
  std::printf("of nearest: AdaRound %.2f, AdaQuant %.2f\n", ada, ada_quant);
  EXPECT_LT(ada, 0.45);
  EXPECT_LT(ada_quant, 0.9);
}

TEST(Streamed, TunesConvolutionsUnderEachActivation) {
  LayerGeometry g = convolution(8, 12, 2, {3, 3});
  g.pads_begin = g.pads_end = {1, 1};
  for (const Activation& activation : kActivations) {
    Layer layer = make_layer(g, {1, 8, 10, 10}, 6, 3, 7);
    for (auto& target : layer.targets) {  // a(y): with target 0 the loss of each element is a(y)²
      for (float& t : target) {
        const float zero = 0;
        float y = t;
        const float size = static_cast<float>(std::sqrt(loss_and_gradient(activation, &y, &zero, 1, 0)));
        const bool negative = activation.kind != ActivationKind::sigmoid && t < 0;
        t = negative ? -size : size;
      }
    }
    const Solution rounded = nearest(layer.weights, layer.bias);
    const Solution tuned = streamed(layer, config_of(Rounding::adaround, 300), activation);
    const double before = error_of(layer, rounded, activation);
    EXPECT_LT(error_of(layer, tuned, activation), 0.8 * before) << static_cast<int>(activation.kind);
    EXPECT_EQ(tuned.bias, layer.bias);
  }
}

TEST(Streamed, GivesTheSameForAnyThreads) {
  const Layer layer = make_layer(convolution(8, 140, 1, {3, 3}), {1, 8, 9, 9}, 5, 4, 7);
  for (const Rounding rounding : {Rounding::adaround, Rounding::adaquant}) {
    FinetuneConfig config = config_of(rounding, 30);
    config.batch_size = 2;
    config.drop_ratio = 0.5;
    config.update_bias = true;
    config.learning_rate = rounding == Rounding::adaround ? 0.1 : 1e-3;
    const Solution one = streamed(layer, config, {ActivationKind::relu}, 1);
    for (const std::size_t threads : {2, 5}) {
      const Solution other = streamed(layer, config, {ActivationKind::relu}, threads);
      EXPECT_EQ(one.integers, other.integers);
      EXPECT_EQ(one.bias, other.bias);
    }
    config.seed += 1;
    EXPECT_NE(streamed(layer, config, {ActivationKind::relu}).integers, one.integers);
  }
}

TEST(Streamed, MixesInputsOfBothBranches) {
  Layer layer = make_layer(product(16, 8), {32, 16}, 4, 4, 7);
  Layer swapped = layer;
  FinetuneConfig config = config_of(Rounding::adaround, 50);
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
  for (const Rounding rounding : {Rounding::adaround, Rounding::gptq}) {
    EXPECT_THROW(solve_streamed(layer.weights, layer.geometry, layer.bias, samples, {}, config_of(rounding, 10),
                                kernels(), control),
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
  for (const Rounding rounding : {Rounding::adaround, Rounding::adaquant}) {
    for (const bool in_batches : {false, true}) {
      FinetuneConfig config = config_of(rounding, 50);
      config.update_bias = true;
      config.learning_rate = rounding == Rounding::adaround ? 0.1 : 1e-3;
      const auto solve_with = [&](SolverState* state, std::stop_token stop, std::size_t& intervals) {
        SolveControl control;
        control.state = state;
        control.stop = std::move(stop);
        control.progress = [&](std::size_t, double) { ++intervals; };
        return in_batches
                   ? solve_streamed(layer.weights, layer.geometry, layer.bias, samples, {}, config, kernels(), control)
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
      return reconstruction_error(layer.weights, layer.geometry, s, samples, {}, kernels(), {});
    });
  };
  Solution bad = nearest(layer.weights, layer.bias);
  bad.integers[3] -= 2;
  const Kept refused = keep(bad);
  EXPECT_FALSE(refused.tuned);
  EXPECT_EQ(refused.solution.integers, nearest(layer.weights, {}).integers);
  EXPECT_EQ(refused.error, refused.nearest_error);
  const Solution good = streamed(layer, config_of(Rounding::adaround, 200));
  const Kept kept = keep(good);
  EXPECT_TRUE(kept.tuned);
  EXPECT_EQ(kept.solution.integers, good.integers);
  EXPECT_LT(kept.error, kept.nearest_error);
}

TEST(FormCost, ChoosesAsArithmeticSays) {
  FinetuneConfig config = config_of(Rounding::adaround, 1000);
  LayerGeometry depthwise = convolution(256, 256, 256, {3, 3});
  EXPECT_LT(gram_cost(depthwise, {1, 256, 28, 28}, 64, config, 2).flops,
            streamed_cost(depthwise, {1, 256, 28, 28}, config, 2).flops);
  const LayerGeometry deep = convolution(2048, 512, 1, {3, 3});  // K = 18432: 1.4 GB
  const FormCost gram = gram_cost(deep, {1, 2048, 7, 7}, 64, config, 2);
  const FormCost in_batches = streamed_cost(deep, {1, 2048, 7, 7}, config, 2);
  EXPECT_GT(gram.bytes, std::uint64_t{18432} * 18432 * 4);
  EXPECT_GT(gram.flops, in_batches.flops);
  EXPECT_GT(gram.bytes, in_batches.bytes);
  config.rounding = Rounding::gptq;
  EXPECT_LT(gram_cost(deep, {1, 2048, 7, 7}, 64, config, 2).flops, gram.flops);
  EXPECT_TRUE(has_gram_form(false, config));
  EXPECT_FALSE(has_gram_form(true, config));
  config.drop_ratio = 0.5;
  EXPECT_FALSE(has_gram_form(false, config));
}

}  // namespace
}  // namespace detent::finetune
