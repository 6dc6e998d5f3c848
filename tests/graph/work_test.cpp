// Arithmetic, traffic and memory of graphs, against counts made by hand.
#include "graph/execution.h"

#include <gtest/gtest.h>

#include "graph/support.h"

namespace detent::graph {
namespace {

using namespace test;

ValueTypes types_of(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& shapes) {
  ValueTypes types;
  for (const auto& [name, dims] : shapes) {
    std::vector<onnx::Dim> shape;
    for (const auto d : dims) shape.push_back({d, ""});
    types[name] = {DataType::float32, shape};
  }
  return types;
}

onnx::Tensor weight(const std::string& name, const std::vector<std::int64_t>& dims) {
  std::size_t count = 1;
  for (const auto d : dims) count *= static_cast<std::size_t>(d);
  return floats(name, dims, Floats(count, 0.5F));
}

std::optional<Work> work(const Node& node, std::vector<onnx::Tensor> weights, const ValueTypes& types) {
  const Model model = make_model({node}, std::move(weights));
  const Index index(model);
  return work_of(model, index, types, model.graph.nodes.front());
}

TEST(Work, OfAConvolutionByHand) {
  // 8 output channels of 5 x 5, each the sum of 3 channels x 3 x 3, and a bias.
  const auto w = work({"Conv", "c", {"x", "w", "b"}, {"y"}}, {weight("w", {8, 3, 3, 3}), weight("b", {8})},
                      types_of({{"x", {1, 3, 7, 7}}, {"y", {1, 8, 5, 5}}}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->macs, 200u * 27);
  EXPECT_EQ(w->flops, 2u * 200 * 27 + 200);
  EXPECT_EQ(w->bytes, 4u * (147 + 216 + 8 + 200));
}

TEST(Work, OfADepthwiseConvolution) {
  const auto w = work({"Conv", "c", {"x", "w"}, {"y"}, {Attribute::of_int("group", 16)}}, {weight("w", {16, 1, 3, 3})},
                      types_of({{"x", {2, 16, 4, 4}}, {"y", {2, 16, 4, 4}}}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->macs, 2u * 16 * 16 * 9);
}

TEST(Work, OfATransposedConvolution) {
  // Each of 2 x 3 x 3 inputs is multiplied with 4 channels x 2 x 2.
  const auto w = work({"ConvTranspose", "c", {"x", "w"}, {"y"}}, {weight("w", {2, 4, 2, 2})},
                      types_of({{"x", {1, 2, 3, 3}}, {"y", {1, 4, 6, 6}}}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->macs, 18u * 16);
}

TEST(Work, OfProducts) {
  const auto gemm = work({"Gemm", "g", {"x", "w", "b"}, {"y"}, {Attribute::of_int("transA", 1)}},
                         {weight("w", {10, 4}), weight("b", {4})}, types_of({{"x", {10, 3}}, {"y", {3, 4}}}));
  ASSERT_TRUE(gemm);
  EXPECT_EQ(gemm->macs, 3u * 4 * 10);
  EXPECT_EQ(gemm->flops, 2u * 120 + 12);
  const auto batched =
      work({"MatMul", "m", {"x", "x"}, {"y"}}, {}, types_of({{"x", {2, 12, 64, 64}}, {"y", {2, 12, 64, 64}}}));
  ASSERT_TRUE(batched);
  EXPECT_EQ(batched->macs, 2u * 12 * 64 * 64 * 64);
  EXPECT_EQ(batched->bytes, 3u * 4 * 2 * 12 * 64 * 64);
}

TEST(Work, OfTheRest) {
  const auto types = types_of({{"x", {2, 8}}, {"y", {2, 8}}});
  EXPECT_EQ(work({"Relu", "r", {"x"}, {"y"}}, {}, types)->flops, 16u);
  EXPECT_EQ(work({"Transpose", "t", {"x"}, {"y"}}, {}, types)->flops, 0u);
  EXPECT_EQ(work({"Transpose", "t", {"x"}, {"y"}}, {}, types)->bytes, 128u);
  EXPECT_EQ(work({"Reshape", "s", {"x", "x"}, {"y"}}, {}, types)->bytes, 0u);
  EXPECT_EQ(work({"ReduceMean", "m", {"x"}, {"y"}}, {}, types)->flops, 16u);
  const auto pool = work({"MaxPool", "p", {"x"}, {"y"}, {Attribute::of_ints("kernel_shape", {3, 3})}}, {}, types);
  EXPECT_EQ(pool->flops, 16u * 9);
}

TEST(Work, IsUnknownWithoutStaticShapes) {
  EXPECT_FALSE(work({"Relu", "r", {"x"}, {"y"}}, {}, types_of({{"x", {2, 8}}, {"y", {-1, 8}}})));
  EXPECT_FALSE(work({"Relu", "r", {"x"}, {"y"}}, {}, types_of({{"x", {2, 8}}})));
}

std::uint64_t peak(const std::vector<Node>& nodes, const ValueTypes& types, const Workspace& workspace = {},
                   std::vector<onnx::Tensor> weights = {}) {
  const Model model = make_model(nodes, std::move(weights));
  const auto alive = liveness(model, Index(model), types, workspace);
  EXPECT_TRUE(alive);
  return alive ? alive->peak_bytes : 0;
}

TEST(Liveness, AChainHoldsTwoValuesAtATime) {
  const auto types = types_of({{"x", {100}}, {"a", {100}}, {"b", {100}}, {"y", {100}}});
  const std::vector<Node> chain{
      {"Softmax", "1", {"x"}, {"a"}}, {"Softmax", "2", {"a"}, {"b"}}, {"Softmax", "3", {"b"}, {"y"}}};
  EXPECT_EQ(peak(chain, types), 800u);
}

TEST(Liveness, ElementWiseNodesWriteOverTheirInput) {
  const auto types = types_of({{"x", {100}}, {"a", {100}}, {"b", {100}}, {"y", {100}}});
  EXPECT_EQ(
      peak({{"Softmax", "1", {"x"}, {"a"}}, {"Relu", "2", {"a"}, {"b"}}, {"Reshape", "3", {"b", "b"}, {"y"}}}, types),
      800u);
  // The graph input is the caller's.
  EXPECT_EQ(peak({{"Relu", "1", {"x"}, {"y"}}}, types), 800u);
}

TEST(Liveness, AResidualStaysAlive) {
  const auto types = types_of({{"x", {100}}, {"a", {100}}, {"b", {100}}, {"c", {100}}, {"y", {100}}});
  EXPECT_EQ(peak({{"Softmax", "1", {"x"}, {"a"}},
                  {"Softmax", "2", {"a"}, {"b"}},
                  {"Softmax", "3", {"b"}, {"c"}},
                  {"Add", "4", {"a", "c"}, {"y"}}},
                 types),
            1200u);
}

TEST(Liveness, WorkspaceCountsWhileItsNodeRuns) {
  const auto types =
      types_of({{"x", {1, 1, 10, 10}}, {"a", {1, 1, 10, 10}}, {"b", {1, 1, 10, 10}}, {"y", {1, 1, 10, 10}}});
  const std::vector<Node> nodes{
      {"Softmax", "1", {"x"}, {"a"}}, {"Conv", "2", {"a", "w"}, {"b"}}, {"Add", "3", {"a", "b"}, {"y"}}};
  EXPECT_EQ(peak(nodes, types, {}, {weight("w", {1, 1, 1, 1})}), 800u);
  // The convolution's input is read once more, by the Add.
  const Workspace copies = [](const Node& node, bool kept) { return node.is("Conv") && kept ? 400u : 0u; };
  EXPECT_EQ(peak(nodes, types, copies, {weight("w", {1, 1, 1, 1})}), 1200u);
}

}  // namespace
}  // namespace detent::graph
