#include "solve/blocks/block_solver.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solve/block_support.h"

namespace detent::solve {
namespace {

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
