#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "solve/algebra/quadratic.h"
#include "solve/algebra/vector_math.h"
#include "solve/layers/rounding_variables.h"
#include "solve/layers/solver.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

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

}  // namespace
}  // namespace detent::solve
