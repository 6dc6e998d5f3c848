#include "solve/algebra/kernels.h"

#include <gtest/gtest.h>

#include "solve/support.h"

namespace detent::solve {
namespace {

TEST(Kernels, MultiplyAnyPartsOfMatrices) {
  const auto a = normal(40, 1), b = normal(60, 2);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      std::vector<float> c = normal(24, 3);
      std::vector<float> expected = c;
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 4; ++j) {
          double sum = 0;
          for (int k = 0; k < 5; ++k) sum += a[ta ? k * 7 + i : i * 7 + k] * b[tb ? j * 8 + k : k * 8 + j];
          expected[i * 6 + j] = static_cast<float>(2 * sum + 0.5 * expected[i * 6 + j]);
        }
      kernels().gemm({ta, tb, 3, 4, 5, 2.0F, 0.5F}, a.data(), 7, b.data(), 8, c.data(), 6);
      for (int i = 0; i < 24; ++i) EXPECT_NEAR(c[i], expected[i], 1e-5) << ta << tb << i;
    }
  }
}

}  // namespace
}  // namespace detent::solve
