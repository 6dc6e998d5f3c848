#include "finetune/kernels.h"

#include <gtest/gtest.h>

#include "finetune/support.h"

namespace detent::finetune {
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

TEST(Kernels, ConvolveForwardAndBackward) {
  for (const Case& c : all_kinds()) {
    if (c.geometry.kind == LayerKind::product) continue;
    SCOPED_TRACE(c.name);
    const auto input = normal(elements(c.input), 1);
    const auto weights = normal(static_cast<std::size_t>(c.geometry.outputs * c.geometry.fan_in()), 2);
    const auto made = kernels().convolution(c.geometry, c.input);
    const auto expected = naive_forward(c.geometry, c.input, input, weights);
    std::vector<float> output(expected.size(), 99.0F);
    made->forward(input.data(), weights.data(), output.data());
    for (std::size_t i = 0; i < output.size(); ++i) ASSERT_NEAR(output[i], expected[i], 1e-4) << i;

    // The gradient of sum(output · d) by one weight is what the layer gives for that weight alone, times d.
    const auto d = normal(output.size(), 3);
    std::vector<float> gradient(weights.size(), 99.0F);
    made->backward_weights(input.data(), d.data(), gradient.data());
    for (std::size_t w = 0; w < weights.size(); ++w) {
      std::vector<float> pick(weights.size(), 0.0F);
      pick[w] = 1;
      const auto y = naive_forward(c.geometry, c.input, input, pick);
      ASSERT_NEAR(gradient[w], std::inner_product(y.begin(), y.end(), d.begin(), 0.0), 1e-4) << w;
    }
  }
}

}  // namespace
}  // namespace detent::finetune
