#include "solve/layers/rounding_variables.h"

#include <gtest/gtest.h>

#include <array>

#include "solve/support.h"

namespace detent::solve {
namespace {

FinetuneConfig adaround(std::size_t iterations) {
  FinetuneConfig config;
  config.rounding = WeightSolver::adaround;
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
