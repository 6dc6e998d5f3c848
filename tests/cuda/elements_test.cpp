// The arithmetic of kernels against that of the CPU's vector code, and against double and finite differences.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cuda/row_kernels.h"
#include "cuda/simt.h"
#include "cuda/step_kernels.h"
#include "solve/layers/rounding_variables.h"
#include "solve/support.h"

namespace detent::cuda {
namespace {

using solve::normal;

// 10 steps, since what one rounds off the next one sees.
TEST(AdaRoundElement, IsTheStepOfTheCpu) {
  const std::size_t n = 4000;
  FinetuneConfig config;
  config.num_iterations = 100;
  for (const std::size_t first : {0U, 19U, 60U, 90U}) {
    auto v = normal(n, 1, 2), mean = normal(n, 2, 0.01F), square = normal(n, 3, 0.01F), h = v;
    for (float& s : square) s = s * s;
    for (std::size_t i = 0; i < n; ++i) h[i] = soft_h(v[i]);
    const auto slope = normal(n, 4), offset = normal(n, 5);
    std::vector<AdaRoundVariable> ours;
    for (std::size_t i = 0; i < n; ++i) ours.push_back({v[i], mean[i], square[i], h[i]});
    for (std::size_t t = first; t < first + 10; ++t) {
      solve::AdaRoundStep step = solve::AdaRoundStep::at(config, t);
      const AdaRoundNumbers numbers{step.adam.rate, step.adam.scale, step.regularizer, step.beta};
      step.regularizer *= 3;
      solve::adaround_step({v.data(), mean.data(), square.data(), h.data()}, slope.data(), offset.data(), 0.5F, n,
                           step);
      for (std::size_t i = 0; i < n; ++i) ours[i] = adaround_step(ours[i], 0.5F * slope[i] + offset[i], 3, numbers);
    }
    for (std::size_t i = 0; i < n; ++i) {
      // The CPU's exponential, logarithm and root are good to 1e-4, 3e-5 and 5e-6.
      ASSERT_NEAR(ours[i].v, v[i], 2e-3) << "from " << first << " at " << i;
      ASSERT_NEAR(ours[i].h, h[i], 1e-3) << "from " << first << " at " << i;
      ASSERT_NEAR(ours[i].mean, mean[i], 1e-3F * std::abs(mean[i]) + 2e-4) << i;
      ASSERT_NEAR(ours[i].square, square[i], 1e-2F * square[i] + 1e-5F) << i;
    }
  }
}

TEST(AdaRoundElement, StaysWhereItIsDecided) {
  const AdaRoundNumbers step{0.1F, 1.0F, 0.01F, 4.0F};
  for (const float v : {-100.0F, -5.0F, 5.0F, 50.0F}) {
    const float h = soft_h(v);
    ASSERT_TRUE(h == 0 || h == 1) << v;
    const AdaRoundVariable x = adaround_step({v, 0, 0, h}, 3, 1, step);
    EXPECT_EQ(x.h, h);
    EXPECT_TRUE(std::isfinite(x.v) && std::isfinite(x.mean));
  }
}

TEST(AdaRoundElement, SlopesAreThoseOfTheFunctions) {
  const auto exact_h = [](double v) { return std::min(std::max(1.2 / (1 + std::exp(-v)) - 0.1, 0.0), 1.0); };
  for (double v = -2; v <= 2; v += 0.0625) {
    EXPECT_NEAR(soft_h(static_cast<float>(v)), exact_h(v), 1e-6);
    // The first step's mean is a tenth of the gradient by v.
    const AdaRoundVariable x =
        adaround_step({static_cast<float>(v), 0, 0, soft_h(static_cast<float>(v))}, 1, 1, {0, 1, 0, 2});
    EXPECT_NEAR(x.mean, 0.1 * (exact_h(v + 1e-6) - exact_h(v - 1e-6)) / 2e-6, 1e-6) << v;
  }
  for (const float beta : {1.5F, 2.0F, 7.0F, 20.0F}) {
    for (double h = 0.01; h < 1; h += 0.07) {
      const auto value = [&](double at) { return std::pow(std::abs(2 * at - 1), static_cast<double>(beta)); };
      const double slope = (value(h + 1e-6) - value(h - 1e-6)) / 2e-6;
      EXPECT_NEAR(certainty_slope(static_cast<float>(h), beta), slope, 1e-4 * (1 + std::abs(slope)))
          << h << ' ' << beta;
    }
  }
  EXPECT_TRUE(std::isfinite(certainty_slope(0.5F, 20.0F)) && std::isfinite(certainty_slope(0.5F, 1.0F)));
}

TEST(AdaQuantElement, IsTheStepOfTheCpu) {
  const std::size_t n = 4000;
  FinetuneConfig config;
  config.num_iterations = 100;
  config.learning_rate = 1e-3;
  auto w = normal(n, 1, 5), mean = normal(n, 2, 0.1F), square = mean, q = w;
  for (float& s : square) s = s * s;
  const auto slope = normal(n, 4), offset = normal(n, 5);
  std::vector<AdaQuantVariable> ours;
  for (std::size_t i = 0; i < n; ++i) ours.push_back({w[i], mean[i], square[i], 0});
  for (std::size_t t = 0; t < 10; ++t) {
    const solve::AdamStep step = solve::adaquant_adam(config, t);
    solve::adaquant_step({w.data(), mean.data(), square.data(), q.data()}, slope.data(), offset.data(), 0.5F, -8, 7,
                         100, n, step);
    for (std::size_t i = 0; i < n; ++i) {
      ours[i] = adaquant_step(ours[i], 0.5F * slope[i] + offset[i], -8, 7, 100, {step.rate, step.scale});
    }
  }
  std::size_t other = 0;
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(ours[i].w, w[i], 1e-3) << i;
    ASSERT_GE(ours[i].q, -8);
    ASSERT_LE(ours[i].q, 7);
    other += ours[i].q != q[i] ? 1 : 0;
  }
  EXPECT_LE(other, 4U);  // at a border between two integers
}

TEST(AdaQuantElement, NoGradientPassesAClippedWeight) {
  const AdaQuantVariable x = adaquant_step({9, 0.5F, 1, 7}, 100, -8, 7, 1, {0, 1});
  EXPECT_FLOAT_EQ(x.mean, 0.45F);
  EXPECT_EQ(x.q, 7);
  EXPECT_EQ(adaquant_step({2.5F, 0, 0, 0}, 0, -8, 7, 1, {0, 1}).q, 2);  // half to even
  EXPECT_EQ(adaquant_step({3.5F, 0, 0, 0}, 0, -8, 7, 1, {0, 1}).q, 4);
}

TEST(DescentElement, IsTheChangeOfTheCpu) {
  solve::QuantizedWeights weights;
  weights.scale = {0.03F, 0.0F};
  weights.lowest = -8;
  weights.highest = 7;
  for (const float step : normal(2000, 9, 0.2F)) {
    for (const std::size_t row : {0U, 1U}) {
      for (const std::int32_t now : {-8, -3, 0, 7}) {
        EXPECT_EQ(best_change(step, weights.scale[row], now, -8, 7), weights.best_change(row, 0, now, step));
      }
    }
  }
}

TEST(Bfloat16, RoundsHalfToEven) {
  EXPECT_EQ(to_bfloat16(1.0F).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808001U)).bits, 0x3f81);
  EXPECT_EQ(to_bfloat16(-2.0F).bits, 0xc000);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_GT(to_bfloat16(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  for (int i = -255; i <= 255; ++i) {  // what AdaQuant's integers move by is exact
    EXPECT_EQ(std::bit_cast<float>(std::uint32_t{to_bfloat16(static_cast<float>(i)).bits} << 16),
              static_cast<float>(i));
  }
}

}  // namespace
}  // namespace detent::cuda
