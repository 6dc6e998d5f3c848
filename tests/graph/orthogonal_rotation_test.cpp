#include "graph/rewrites/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace detent::graph {
namespace {

std::vector<float> matrix_of(std::size_t size, std::uint64_t seed) {
  std::vector<float> rows(size * size, 0.0F);
  for (std::size_t i = 0; i < size; ++i) rows[i * size + i] = 1;
  OrthogonalRotation(size, seed).apply(rows, size);
  return rows;
}

class Mixes : public testing::TestWithParam<std::size_t> {};

TEST_P(Mixes, AreOrthogonalAndKeepTheMean) {
  const std::size_t size = GetParam();
  const auto r = matrix_of(size, 0);
  for (std::size_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < size; ++j) {
      sum += r[i * size + j];
      EXPECT_NEAR(r[i * size + j], r[j * size + i], 1e-6);
      double product = 0;
      for (std::size_t k = 0; k < size; ++k) product += static_cast<double>(r[i * size + k]) * r[j * size + k];
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-5);
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Mixes, testing::Values(1, 2, 3, 12, 35, 64, 96));

TEST(OrthogonalRotation, SpreadsEachChannel) {
  constexpr std::size_t kSize = 768;
  const auto r = matrix_of(kSize, 0);
  const auto largest = std::max_element(r.begin(), r.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  EXPECT_LT(std::abs(*largest), 6 / std::sqrt(static_cast<float>(kSize)));
}

TEST(OrthogonalRotation, FollowsFromItsSeed) {
  EXPECT_EQ(matrix_of(24, 3), matrix_of(24, 3));
  EXPECT_NE(matrix_of(24, 3), matrix_of(24, 4));
}

TEST(OrthogonalRotation, GivesTheSameForColumnsAloneAndTogether) {
  const OrthogonalRotation mix(12, 0);
  std::vector<float> two(24), one(12);
  for (std::size_t i = 0; i < 24; ++i) two[i] = static_cast<float>(i * i % 7);
  for (std::size_t i = 0; i < 12; ++i) one[i] = two[2 * i + 1];
  mix.apply(two, 2);
  mix.apply(one, 1);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(one[i], two[2 * i + 1]);
}

}  // namespace
}  // namespace detent::graph
