#include "solve/algebra/gram.h"

#include <gtest/gtest.h>

#include <numeric>

#include "solve/support.h"

namespace detent::solve {
namespace {

struct Shifted {
  LayerGeometry geometry;
  std::vector<Shape> inputs;
};

/// Kernels of one to three axes; dilation, uneven pads and none, images smaller than the kernel, batches, and images of
/// several sizes in turn.
std::vector<Shifted> layers() {
  std::vector<Shifted> all;
  const auto add = [&](Shape kernel, Shape begin, Shape end, std::vector<Shape> inputs) -> LayerGeometry& {
    LayerGeometry g = convolution(inputs[0][1], 3, 1, std::move(kernel));
    g.pads_begin = std::move(begin);
    g.pads_end = std::move(end);
    all.push_back({std::move(g), std::move(inputs)});
    return all.back().geometry;
  };
  add({3, 3}, {1, 1}, {1, 1}, {{1, 37, 9, 7}, {3, 37, 9, 7}, {1, 37, 5, 12}, {1, 37, 9, 7}});
  add({3, 3}, {0, 0}, {0, 0}, {{2, 32, 6, 5}});
  add({5, 3}, {0, 2}, {3, 1}, {{1, 33, 8, 6}});
  add({3, 3}, {2, 2}, {2, 2}, {{1, 32, 7, 9}}).dilations = {2, 2};
  add({5, 5}, {2, 2}, {2, 2}, {{4, 32, 2, 3}});
  add({7}, {3}, {3}, {{1, 40, 31}, {2, 40, 4}});
  add({3, 2, 2}, {0, 1, 0}, {1, 0, 0}, {{1, 32, 3, 4, 5}});
  return all;
}

GramForm sums_of(const Shifted& layer, bool shifted, std::size_t threads = 1) {
  GramAccumulator sums(layer.geometry, kernels(), threads);
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
    const Shape& shape = layer.inputs[i];
    const auto input = normal(elements(shape), static_cast<unsigned>(i));
    std::vector<std::size_t> positions(Patches(layer.geometry, shape).positions());
    std::iota(positions.begin(), positions.end(), std::size_t{0});
    shifted ? sums.add(shape, input, {}) : sums.add(shape, input, {}, positions);
  }
  return sums.take();
}

// Listed positions are gathered and multiplied as they are.
TEST(ShiftedSums, AreThoseOfAllPositions) {
  for (const Shifted& layer : layers()) {
    SCOPED_TRACE(testing::PrintToString(layer.geometry.kernel) + testing::PrintToString(layer.inputs[0]));
    ASSERT_TRUE(ShiftedSums::saves_work(layer.geometry));
    const GramForm expected = sums_of(layer, false), form = sums_of(layer, true);
    EXPECT_EQ(form.positions, expected.positions);
    const double most = *std::max_element(expected.gram.begin(), expected.gram.end());
    ASSERT_GT(most, 1);
    for (std::size_t i = 0; i < form.gram.size(); ++i) ASSERT_NEAR(form.gram[i], expected.gram[i], 1e-5 * most) << i;
    for (std::size_t i = 0; i < form.input_sum.size(); ++i) {
      ASSERT_NEAR(form.input_sum[i], expected.input_sum[i], 1e-4 * std::sqrt(most)) << i;
    }
  }
}

TEST(ShiftedSums, AreTheSameForAnyThreads) {
  for (const Shifted& layer : layers()) EXPECT_EQ(sums_of(layer, true, 1).gram, sums_of(layer, true, 3).gram);
}

TEST(ShiftedSums, AreForDenseKernelsOfStrideOne) {
  LayerGeometry g = convolution(64, 8, 1, {3, 3});
  EXPECT_TRUE(ShiftedSums::saves_work(g));
  g.strides = {1, 2};
  EXPECT_FALSE(ShiftedSums::saves_work(g));
  EXPECT_FALSE(ShiftedSums::saves_work(convolution(64, 64, 2, {3, 3})));
  EXPECT_FALSE(ShiftedSums::saves_work(convolution(64, 8, 1, {1, 1})));
  EXPECT_FALSE(ShiftedSums::saves_work(convolution(16, 8, 1, {3, 3})));
  EXPECT_FALSE(ShiftedSums::saves_work(product(64, 8)));
  g = convolution(64, 8, 1, {3, 3});
  g.kind = LayerKind::transposed;
  EXPECT_FALSE(ShiftedSums::saves_work(g));
}

}  // namespace
}  // namespace detent::solve
