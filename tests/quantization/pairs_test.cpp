#include "quantization/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "onnx/tensor.h"

namespace detent::quantization {
namespace {

using Dims = std::vector<std::int64_t>;

// What no kernel would take: mostly small values, and here and there one that is much larger.
onnx::Tensor weights_with_outliers(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::size_t size = 1;
  for (const auto d : dims) size *= static_cast<std::size_t>(d);
  std::vector<float> values(size);
  for (auto& v : values) v = normal(random) * (random() % 7 == 0 ? 5.0F : 1.0F);
  return onnx::make_tensor<float>("w", onnx::DataType::float32, dims, values);
}

std::vector<std::int8_t> integers_of(const onnx::Tensor& weight, const Granularity& granularity,
                                     const std::vector<float>& scales) {
  std::vector<ScaleZeroPoint> params;
  for (const float scale : scales) params.push_back({scale, 0});
  std::vector<std::int8_t> integers;
  quantized_weight(weight, "q", {{QuantType::int8, true}, granularity}, params).data.write_to([&](auto bytes) {
    for (const auto b : bytes) integers.push_back(static_cast<std::int8_t>(b));
  });
  return integers;
}

struct Case {
  onnx::Node node;
  Dims dims;
  Granularity granularity;
};

onnx::Node node(const char* type, std::vector<onnx::Attribute> attributes = {}) {
  return {type, "n", {"x", "w"}, {"y"}, std::move(attributes)};
}

std::vector<Case> cases() {
  const auto grouped = node("Conv", {onnx::Attribute::of_int("group", 2)});
  const auto transposed = node("Gemm", {onnx::Attribute::of_int("transB", 1)});
  return {{node("Conv"), {6, 3, 3, 3}, Granularity::along(0)}, {node("Conv"), {6, 8, 3, 3}, Granularity::along(0)},
          {node("Conv"), {5, 7, 1, 1}, Granularity::along(0)}, {node("Conv"), {4, 1, 5}, Granularity::along(0)},
          {grouped, {6, 3, 2, 3, 2}, Granularity::along(0)},   {node("MatMul"), {17, 6}, Granularity::along(1)},
          {node("MatMul"), {8, 1}, Granularity::along(1)},     {node("MatMul"), {3, 5, 4}, Granularity::tensor()},
          {node("MatMul"), {9}, Granularity::tensor()},        {node("Gemm"), {12, 7}, Granularity::along(1)},
          {transposed, {7, 13}, Granularity::along(0)},        {node("Conv"), {6, 3, 3, 3}, Granularity::tensor()}};
}

// The order of a kernel, spelled out: where the weight is that a sum takes as its k-th.
std::size_t position_of(const Case& c, std::size_t sum, std::size_t k) {
  const auto dim = [&](std::size_t d) { return static_cast<std::size_t>(c.dims[d]); };
  if (c.node.is("Conv")) {
    std::size_t positions = 1;
    for (std::size_t d = 2; d < c.dims.size(); ++d) positions *= dim(d);
    return sum * dim(1) * positions + k % dim(1) * positions + k / dim(1);
  }
  if (c.node.is("Gemm") && c.node.int_or("transB", 0) != 0) return sum * dim(1) + k;
  if (c.dims.size() == 1) return k;
  const std::size_t rank = c.dims.size(), n = dim(rank - 1);
  return sum / n * dim(rank - 2) * n + k * n + sum % n;
}

// The largest sum of one sign in the pairs of each slice.
std::vector<int> largest_of_pairs(const Case& c, const std::vector<std::int8_t>& integers) {
  const std::size_t fan_in = summation_of(c.node, c.dims)->fan_in();
  std::vector<int> largest(slice_count(c.granularity, c.dims));
  for (std::size_t sum = 0; sum < integers.size() / fan_in; ++sum) {
    for (std::size_t k = 0; k + 1 < fan_in; k += 2) {
      const int a = integers[position_of(c, sum, k)], b = integers[position_of(c, sum, k + 1)];
      int& most = largest[c.granularity.is_tensor() ? 0 : sum % largest.size()];
      most = std::max({most, std::max(a, 0) + std::max(b, 0), -std::min(a, 0) - std::min(b, 0)});
    }
  }
  return largest;
}

TEST(Pairs, ScalesAreTheSmallestThatKeepEachPair) {
  unsigned seed = 1;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.node.op_type() + " of " + std::to_string(c.dims.size()) + " dimensions");
    const auto weight = weights_with_outliers(c.dims, seed++);
    const auto scales = pair_scales(weight, c.granularity, summation_of(c.node, c.dims).value());
    for (const int most : largest_of_pairs(c, integers_of(weight, c.granularity, scales))) EXPECT_LE(most, kMostOfPair);
    auto smaller = scales;
    for (float& scale : smaller) scale = std::nextafter(scale, 0.0F);
    const auto below = largest_of_pairs(c, integers_of(weight, c.granularity, smaller));
    for (std::size_t s = 0; s < scales.size(); ++s) {
      if (scales[s] == 0) continue;  // no two weights of one sign meet
      EXPECT_GT(below[s], kMostOfPair);
    }
  }
}

TEST(Pairs, OnlyWeightsOfOneSignAddUp) {
  const std::vector<float> values{1, -1, 1, -1};
  const auto weight = onnx::make_tensor<float>("w", onnx::DataType::float32, {1, 4, 1, 1}, values);
  const auto scales = pair_scales(weight, Granularity::along(0), *summation_of(node("Conv"), weight.dims));
  EXPECT_EQ(scales, std::vector<float>{0});
}

TEST(Pairs, WithAnOddNumberOfChannelsTheyReachOverPositions) {
  const auto pairs = summation_of(node("Conv"), {1, 3, 1, 2})->pairs();  // memory: c0p0 c0p1 c1p0 c1p1 c2p0 c2p1
  EXPECT_EQ(pairs, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 2}, {4, 1}, {3, 5}}));
}

TEST(Pairs, DepthwiseAndTransposedConvolutionsHaveNone) {
  const auto depthwise = node("Conv", {onnx::Attribute::of_int("group", 8)});
  EXPECT_FALSE(summation_of(depthwise, {8, 1, 3, 3}));
  EXPECT_TRUE(summation_of(depthwise, {16, 1, 3, 3}));  // two outputs of each channel: a matrix product
  EXPECT_FALSE(summation_of(node("ConvTranspose"), {8, 8, 3, 3}));
  EXPECT_FALSE(summation_of(node("LayerNormalization"), {8}));
}

}  // namespace
}  // namespace detent::quantization
