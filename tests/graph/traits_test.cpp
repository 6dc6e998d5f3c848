// The table of operator traits: against ONNX Runtime's list, and against itself.
#include "graph/traits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "graph/support.h"

namespace detent::graph {
namespace {

using namespace test;

using enum Trait;

std::string label(const OperatorTraits& row) { return std::string(row.domain) + ":" + std::string(row.type); }

TEST(Traits, OneRowForEachType) {
  std::set<std::string> seen;
  for (const auto& row : all_traits()) EXPECT_TRUE(seen.insert(label(row)).second) << label(row);
}

TEST(Traits, EachRowIsFoundByItsNode) {
  for (const auto& row : all_traits()) {
    const Node node(std::string(row.type), "", {"x"}, {"y"}, {}, std::string(row.domain));
    EXPECT_EQ(label(traits_of(node)), label(row));
  }
}

TEST(Traits, TypesOfOtherDomainsAreUnknown) {
  const auto& traits = traits_of({"Conv", "", {"x"}, {"y"}, {}, "com.example"});
  EXPECT_EQ(traits.traits, none);
  EXPECT_EQ(traits.counting, Counting::per_output);
  EXPECT_TRUE(traits.type.empty());
}

TEST(Traits, QuantizedByDefaultIsWhatQuantizeStaticTakes) {
  // QDQRegistry of onnxruntime/quantization/registry.py, with what QLinearOpsRegistry and CommonOpsRegistry add to it.
  const std::set<std::string> wanted{"Add",
                                     "ArgMax",
                                     "AveragePool",
                                     "BatchNormalization",
                                     "Clip",
                                     "Concat",
                                     "Conv",
                                     "ConvTranspose",
                                     "CumSum",
                                     "EmbedLayerNormalization",
                                     "Flatten",
                                     "Gather",
                                     "GatherElements",
                                     "Gemm",
                                     "GlobalAveragePool",
                                     "InstanceNormalization",
                                     "LayerNormalization",
                                     "LeakyRelu",
                                     "MatMul",
                                     "MaxPool",
                                     "Mul",
                                     "Pad",
                                     "Relu",
                                     "Reshape",
                                     "Resize",
                                     "Sigmoid",
                                     "Slice",
                                     "Softmax",
                                     "Split",
                                     "Squeeze",
                                     "TopK",
                                     "Transpose",
                                     "Unsqueeze",
                                     "Where"};
  std::set<std::string> found;
  for (const auto& row : all_traits()) {
    if (row.is(by_default)) found.emplace(row.type);
  }
  EXPECT_EQ(found, wanted);
}

struct Implication {
  Trait trait, implied;
};

class Implied : public ::testing::TestWithParam<Implication> {};

TEST_P(Implied, ByTheOther) {
  const auto [trait, implied] = GetParam();
  std::size_t count = 0;
  for (const auto& row : all_traits()) {
    if (!row.is(trait)) continue;
    EXPECT_TRUE(row.is(implied)) << label(row);
    ++count;
  }
  EXPECT_GT(count, 0u);
}

INSTANTIATE_TEST_SUITE_P(Traits, Implied,
                         ::testing::Values(Implication{convolution, product}, Implication{product, by_default},
                                           Implication{clips, element_wise}, Implication{clips, carries_integers},
                                           Implication{overwrites, element_wise},
                                           Implication{has_response, element_wise}));

TEST(Traits, ProductsAreCountedInMultiplyAccumulatesAndHaveChannels) {
  for (const auto& row : all_traits()) {
    const Node node(std::string(row.type), "", {"x", "w"}, {"y"}, {}, std::string(row.domain));
    EXPECT_EQ(is_product(node), row.is(product));
    EXPECT_EQ(is_matrix_product(node), row.is(product) && !row.is(convolution));
    if (row.is(product)) {
      EXPECT_EQ(row.counting, Counting::macs) << label(row);
    }
    EXPECT_EQ(channel_axis(node, 2).has_value(), row.is(product) || row.is(normalization)) << label(row);
  }
}

TEST(Traits, OfOperatorsThatDoNotCompute) {
  for (const auto& row : all_traits()) {
    const bool computes = row.counting != Counting::moves && row.counting != Counting::free;
    EXPECT_FALSE(computes && (row.is(rearranges) || row.is(renames) || row.is(looks_up))) << label(row);
    // Nothing is both in a place of its own and the same memory.
    EXPECT_FALSE(row.is(renames) && row.is(overwrites)) << label(row);
    EXPECT_FALSE(row.is(quantized) && row.is(by_default)) << label(row);
  }
}

TEST(Traits, AxisOfTheOutputsOfAWeight) {
  const std::vector<std::string> in{"x", "w"};
  EXPECT_EQ(channel_axis({"Conv", "", in, {"y"}}, 4), 0u);
  EXPECT_EQ(channel_axis({"ConvTranspose", "", in, {"y"}}, 4), 1u);
  EXPECT_EQ(channel_axis({"MatMul", "", in, {"y"}}, 2), 1u);
  EXPECT_EQ(channel_axis({"MatMul", "", in, {"y"}}, 4), std::nullopt);
  EXPECT_EQ(channel_axis({"MatMul", "", in, {"y"}}, 1), std::nullopt);
  EXPECT_EQ(channel_axis({"Gemm", "", in, {"y"}}, 2), 1u);
  EXPECT_EQ(channel_axis({"Gemm", "", in, {"y"}, {Attribute::of_int("transB", 1)}}, 2), 0u);
  EXPECT_EQ(channel_axis({"InstanceNormalization", "", in, {"y"}}, 1), std::nullopt);
  EXPECT_EQ(channel_axis({"Relu", "", in, {"y"}}, 2), std::nullopt);
}

}  // namespace
}  // namespace detent::graph
