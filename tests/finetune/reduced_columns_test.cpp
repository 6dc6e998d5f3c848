#include "finetune/reduced_columns.h"

#include <gtest/gtest.h>

#include <cmath>

#include "finetune/lanes.h"
#include "finetune/support.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kColumns = 150, kFanIn = 70, kRows = 5;

/// Columns that are combinations of `rank` ones, each of those weaker than the one before, and some noise.
std::vector<float> columns_of_rank(std::size_t rank, float noise) {
  const auto parts = normal(rank * kFanIn, 1), shares = normal(kColumns * rank, 2);
  auto columns = normal(kColumns * kFanIn, 3);
  for (float& v : columns) v *= noise;
  for (std::size_t c = 0; c < kColumns; ++c) {
    for (std::size_t r = 0; r < rank; ++r) {
      const float share = shares[c * rank + r] * static_cast<float>(std::pow(0.8, r));
      add_scaled(columns.data() + c * kFanIn, share, parts.data() + r * kFanIn, kFanIn);
    }
  }
  return columns;
}

double power(std::span<const float> values) { return dot_double(values.data(), values.data(), values.size()); }

/// Sum over columns of (w x − y)².
double squares(const std::vector<float>& w, std::span<const float> inputs, const float* targets, std::size_t count) {
  double sum = 0;
  for (std::size_t c = 0; c < count; ++c) {
    const double rest =
        dot_double(w.data(), inputs.data() + c * kFanIn, kFanIn) - (targets == nullptr ? 0 : targets[c]);
    sum += rest * rest;
  }
  return sum;
}

ReducedColumns reduced(const std::vector<float>& columns, const std::vector<float>& targets, double may_lose,
                       std::size_t threads = 1) {
  const ColumnsOf given{kColumns, kFanIn, columns};
  return reduce_columns(given, targets, powers(given), may_lose, kernels(), threads);
}

// What is left out is positive: no weights get a larger sum of squares, or one smaller by more than what was lost.
TEST(ReducedColumns, LoseNoMoreThanTheyMay) {
  const auto columns = columns_of_rank(40, 0.01F);
  const double total = power(columns);
  std::size_t before = kFanIn + 1;
  for (const double share : {1e-4, 1e-3, 1e-2, 0.1}) {
    const ReducedColumns few = reduced(columns, {}, share * total);
    EXPECT_LT(few.count, before);
    before = few.count;
    EXPECT_LE(few.lost, share * total);
    EXPECT_NEAR(power(few.inputs) + few.lost, total, 1e-4 * total);
    for (unsigned seed = 10; seed < 20; ++seed) {
      const auto w = normal(kFanIn, seed);
      const double all = squares(w, columns, nullptr, kColumns), rest = squares(w, few.inputs, nullptr, few.count);
      EXPECT_LE(rest, all * (1 + 1e-4));
      EXPECT_GE(rest, all - few.lost * power(w) - 1e-4 * all);
    }
  }
}

TEST(ReducedColumns, AreAsManyAsSayDifferentThings) {
  EXPECT_EQ(reduced(columns_of_rank(7, 0), {}, 1e-2).count, 7U);
  EXPECT_EQ(reduced(std::vector<float>(kColumns * kFanIn, 2.0F), {}, 0).count, 1U);
  EXPECT_LE(reduced(columns_of_rank(40, 1), {}, 0).count, kFanIn);
}

// Differences between weights stay, whatever the targets: the part of these that no weights reach is a constant.
TEST(ReducedColumns, KeepWhatWeightsMakeOfTargets) {
  const auto columns = columns_of_rank(20, 0);
  const auto targets = normal(kRows * kColumns, 5);
  const ReducedColumns few = reduced(columns, targets, 1e-4);
  ASSERT_EQ(few.targets.size(), kRows * few.count);
  for (std::size_t row = 0; row < kRows; ++row) {
    const float *all_targets = targets.data() + row * kColumns, *few_targets = few.targets.data() + row * few.count;
    const auto a = normal(kFanIn, 30), b = normal(kFanIn, 31);
    const double expected = squares(a, columns, all_targets, kColumns) - squares(b, columns, all_targets, kColumns);
    const double found =
        squares(a, few.inputs, few_targets, few.count) - squares(b, few.inputs, few_targets, few.count);
    EXPECT_NEAR(found, expected, 1e-3 * squares(a, columns, all_targets, kColumns));
  }
}

std::vector<float> gram_of(const std::vector<float>& columns) {
  std::vector<float> gram(kFanIn * kFanIn);
  for (std::size_t c = 0; c < kColumns; ++c) {
    const float* x = columns.data() + c * kFanIn;
    for (std::size_t i = 0; i < kFanIn; ++i) add_scaled(gram.data() + i * kFanIn, x[i], x, kFanIn);
  }
  return gram;
}

TEST(ColumnsOfGram, LoseNoMoreThanTheyMay) {
  const auto columns = columns_of_rank(40, 0.01F);
  const auto gram = gram_of(columns);
  const double total = power(columns);
  std::size_t before = kFanIn + 1;
  for (const double share : {1e-4, 1e-2, 0.2}) {
    const auto few = columns_of_gram(gram, kFanIn, share * total, kFanIn);
    ASSERT_TRUE(few);
    EXPECT_LT(few->count, before);
    before = few->count;
    EXPECT_LE(few->lost, share * total);
    EXPECT_NEAR(power(few->inputs) + few->lost, total, 1e-4 * total);
    for (unsigned seed = 10; seed < 20; ++seed) {
      const auto w = normal(kFanIn, seed);
      const double all = squares(w, columns, nullptr, kColumns), rest = squares(w, few->inputs, nullptr, few->count);
      EXPECT_LE(rest, all * (1 + 1e-4));
      EXPECT_GE(rest, all - few->lost * power(w) - 1e-4 * all);
    }
    EXPECT_TRUE(columns_of_gram(gram, kFanIn, share * total, few->count));
    EXPECT_FALSE(columns_of_gram(gram, kFanIn, share * total, few->count - 1));
  }
  EXPECT_EQ(columns_of_gram(std::vector<float>(kFanIn * kFanIn), kFanIn, 0, kFanIn)->inputs,
            std::vector<float>(kFanIn));
}

TEST(ReducedColumns, OfZerosAreOneOfZeros) {
  const ReducedColumns few = reduced(std::vector<float>(kColumns * kFanIn), normal(kRows * kColumns, 5), 0);
  EXPECT_EQ(few.count, 1U);
  EXPECT_EQ(few.inputs, std::vector<float>(kFanIn));
  EXPECT_EQ(few.targets, std::vector<float>(kRows));
}

TEST(ReducedColumns, AreTheSameForAnyThreads) {
  const auto columns = columns_of_rank(40, 0.1F);
  const auto targets = normal(kRows * kColumns, 5);
  const ReducedColumns one = reduced(columns, targets, 0.01 * power(columns)),
                       three = reduced(columns, targets, 0.01 * power(columns), 3);
  EXPECT_EQ(one.inputs, three.inputs);
  EXPECT_EQ(one.targets, three.targets);
}

}  // namespace
}  // namespace detent::finetune
