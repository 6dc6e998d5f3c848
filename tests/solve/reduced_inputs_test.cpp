#include "solve/algebra/reduced_inputs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solve/algebra/kernels.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

constexpr std::size_t kPositions = 150, kFanIn = 70, kRows = 5;

/// Positions that are combinations of `rank` ones, each of those weaker than the one before, and some noise.
std::vector<float> inputs_of_rank(std::size_t rank, float noise) {
  const auto parts = normal(rank * kFanIn, 1), shares = normal(kPositions * rank, 2);
  auto positions = normal(kPositions * kFanIn, 3);
  for (float& v : positions) v *= noise;
  for (std::size_t c = 0; c < kPositions; ++c) {
    for (std::size_t r = 0; r < rank; ++r) {
      const float share = shares[c * rank + r] * static_cast<float>(std::pow(0.8, r));
      add_scaled(positions.data() + c * kFanIn, share, parts.data() + r * kFanIn, kFanIn);
    }
  }
  return positions;
}

double power(std::span<const float> values) { return dot_double(values.data(), values.data(), values.size()); }

/// Sum over positions of (w x − y)².
double squares(const std::vector<float>& w, std::span<const float> inputs, const float* targets, std::size_t count) {
  double sum = 0;
  for (std::size_t c = 0; c < count; ++c) {
    const double rest =
        dot_double(w.data(), inputs.data() + c * kFanIn, kFanIn) - (targets == nullptr ? 0 : targets[c]);
    sum += rest * rest;
  }
  return sum;
}

ReducedInputs reduced(const std::vector<float>& positions, const std::vector<float>& targets, double may_lose,
                      std::size_t threads = 1) {
  const InputMatrix given{kPositions, kFanIn, positions};
  return reduce_inputs(given, targets, input_powers(given), may_lose, kernels(), threads);
}

// What is left out is positive: no weights get a larger sum of squares, or one smaller by more than what was lost.
TEST(ReducedInputs, LoseNoMoreThanTheyMay) {
  const auto positions = inputs_of_rank(40, 0.01F);
  const double total = power(positions);
  std::size_t before = kFanIn + 1;
  for (const double share : {1e-4, 1e-3, 1e-2, 0.1}) {
    const ReducedInputs few = reduced(positions, {}, share * total);
    EXPECT_LT(few.count, before);
    before = few.count;
    EXPECT_LE(few.lost, share * total);
    EXPECT_NEAR(power(few.inputs) + few.lost, total, 1e-4 * total);
    for (unsigned seed = 10; seed < 20; ++seed) {
      const auto w = normal(kFanIn, seed);
      const double all = squares(w, positions, nullptr, kPositions), rest = squares(w, few.inputs, nullptr, few.count);
      EXPECT_LE(rest, all * (1 + 1e-4));
      EXPECT_GE(rest, all - few.lost * power(w) - 1e-4 * all);
    }
  }
}

TEST(ReducedInputs, AreAsManyAsSayDifferentThings) {
  EXPECT_EQ(reduced(inputs_of_rank(7, 0), {}, 1e-2).count, 7U);
  EXPECT_EQ(reduced(std::vector<float>(kPositions * kFanIn, 2.0F), {}, 0).count, 1U);
  EXPECT_LE(reduced(inputs_of_rank(40, 1), {}, 0).count, kFanIn);
}

// Differences between weights stay, whatever the targets: the part of these that no weights reach is a constant.
TEST(ReducedInputs, KeepWhatWeightsMakeOfTargets) {
  const auto positions = inputs_of_rank(20, 0);
  const auto targets = normal(kRows * kPositions, 5);
  const ReducedInputs few = reduced(positions, targets, 1e-4);
  ASSERT_EQ(few.targets.size(), kRows * few.count);
  for (std::size_t row = 0; row < kRows; ++row) {
    const float *all_targets = targets.data() + row * kPositions, *few_targets = few.targets.data() + row * few.count;
    const auto a = normal(kFanIn, 30), b = normal(kFanIn, 31);
    const double expected =
        squares(a, positions, all_targets, kPositions) - squares(b, positions, all_targets, kPositions);
    const double found =
        squares(a, few.inputs, few_targets, few.count) - squares(b, few.inputs, few_targets, few.count);
    EXPECT_NEAR(found, expected, 1e-3 * squares(a, positions, all_targets, kPositions));
  }
}

std::vector<float> gram_of(const std::vector<float>& positions) {
  std::vector<float> gram(kFanIn * kFanIn);
  for (std::size_t c = 0; c < kPositions; ++c) {
    const float* x = positions.data() + c * kFanIn;
    for (std::size_t i = 0; i < kFanIn; ++i) add_scaled(gram.data() + i * kFanIn, x[i], x, kFanIn);
  }
  return gram;
}

TEST(InputsOfGram, LoseNoMoreThanTheyMay) {
  const auto positions = inputs_of_rank(40, 0.01F);
  const auto gram = gram_of(positions);
  const double total = power(positions);
  std::size_t before = kFanIn + 1;
  for (const double share : {1e-4, 1e-2, 0.2}) {
    const auto few = inputs_of_gram(gram, kFanIn, share * total, kFanIn);
    ASSERT_TRUE(few);
    EXPECT_LT(few->count, before);
    before = few->count;
    EXPECT_LE(few->lost, share * total);
    EXPECT_NEAR(power(few->inputs) + few->lost, total, 1e-4 * total);
    for (unsigned seed = 10; seed < 20; ++seed) {
      const auto w = normal(kFanIn, seed);
      const double all = squares(w, positions, nullptr, kPositions),
                   rest = squares(w, few->inputs, nullptr, few->count);
      EXPECT_LE(rest, all * (1 + 1e-4));
      EXPECT_GE(rest, all - few->lost * power(w) - 1e-4 * all);
    }
    EXPECT_TRUE(inputs_of_gram(gram, kFanIn, share * total, few->count));
    EXPECT_FALSE(inputs_of_gram(gram, kFanIn, share * total, few->count - 1));
  }
  EXPECT_EQ(inputs_of_gram(std::vector<float>(kFanIn * kFanIn), kFanIn, 0, kFanIn)->inputs, std::vector<float>(kFanIn));
}

TEST(ReducedInputs, OfZerosAreOneOfZeros) {
  const ReducedInputs few = reduced(std::vector<float>(kPositions * kFanIn), normal(kRows * kPositions, 5), 0);
  EXPECT_EQ(few.count, 1U);
  EXPECT_EQ(few.inputs, std::vector<float>(kFanIn));
  EXPECT_EQ(few.targets, std::vector<float>(kRows));
}

TEST(ReducedInputs, AreTheSameForAnyThreads) {
  const auto positions = inputs_of_rank(40, 0.1F);
  const auto targets = normal(kRows * kPositions, 5);
  const ReducedInputs one = reduced(positions, targets, 0.01 * power(positions)),
                      three = reduced(positions, targets, 0.01 * power(positions), 3);
  EXPECT_EQ(one.inputs, three.inputs);
  EXPECT_EQ(one.targets, three.targets);
}

}  // namespace
}  // namespace detent::solve
