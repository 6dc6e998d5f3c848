// Products of few rows, one behind the other: which of them get a third axis.
#include "graph/support.h"

namespace detent::graph::test {
namespace {

const Store kInMemory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };

Node gemm(const std::string& x, const std::string& w, const std::string& y, const std::string& bias = {}) {
  std::vector<std::string> inputs{x, w};
  if (!bias.empty()) inputs.push_back(bias);
  return {"Gemm", "gemm_" + y, inputs, {y}, {Attribute::of_int("transB", 1)}};
}

std::vector<std::string> types_of(const Model& model) {
  std::vector<std::string> types;
  for (const auto& node : model.graph.nodes) types.push_back(node.op_type());
  return types;
}

class FewRows : public ::testing::Test {
 protected:
  // x of [rows, 2] (0: as many as one likes) becomes y of [rows, 3].
  static Notes rewrite(Model& model, std::int64_t rows) {
    ValueTypes types;
    for (const char* name : {"x", "a", "b", "y"}) {
      const onnx::Dim first = rows > 0 ? onnx::Dim{rows, ""} : onnx::Dim{-1, "n"};
      types[name] = {DataType::float32, std::vector<onnx::Dim>{first, {2, ""}}};
    }
    return add_axis_for_few_rows(model, types, kInMemory);
  }
  static Model model_of(std::vector<Node> nodes) {
    return make_model(std::move(nodes),
                      {floats("w", {2, 2}, {1, 2, 3, 4}), floats("v", {3, 2}, {1, 2, 3, 4, 5, 6}),
                       floats("c", {3}, {1, 0, 0}), floats("none", {3}, {0, 0, 0})},
                      17, {value("x", {1, 2})}, {value("y", {1, 3})});
  }
};

TEST_F(FewRows, BehindOthersGetAnAxis) {
  for (const std::int64_t rows : {0, 1, 8}) {
    auto model = model_of({gemm("x", "w", "a"), {"Relu", "", {"a"}, {"b"}}, gemm("b", "v", "y")});
    EXPECT_EQ(rewrite(model, rows).size(), 1U);
    EXPECT_EQ(types_of(model), (Names{"Gemm", "Relu", "Reshape", "MatMul", "Reshape"}));
    const auto& product = model.graph.nodes[3];
    EXPECT_EQ(product.name(), "gemm_y");
    const Index index(model);
    const auto& weight = model.graph.initializers[static_cast<std::size_t>(index.initializer(product.inputs()[1]))];
    EXPECT_EQ(weight.dims, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(onnx::to_doubles(weight), (std::vector<double>{1, 3, 5, 2, 4, 6}));
    EXPECT_EQ(model.graph.nodes[4].outputs()[0], "y");
  }
}

TEST_F(FewRows, KeepTheirBiasUnlessItIsZero) {
  auto model = model_of({gemm("x", "w", "a"), gemm("a", "v", "y", "c")});
  EXPECT_EQ(rewrite(model, 1).size(), 1U);
  EXPECT_EQ(types_of(model), (Names{"Gemm", "Reshape", "MatMul", "Add", "Reshape"}));
  auto without = model_of({gemm("x", "w", "a"), gemm("a", "v", "y", "none")});
  EXPECT_EQ(rewrite(without, 1).size(), 1U);
  EXPECT_EQ(types_of(without), (Names{"Gemm", "Reshape", "MatMul", "Reshape"}));
}

TEST_F(FewRows, EverySecondOfARowOfThemIsEnough) {
  auto model = model_of({gemm("x", "w", "a"), gemm("a", "w", "b"), gemm("b", "v", "y")});
  EXPECT_EQ(rewrite(model, 1).size(), 1U);
  EXPECT_EQ(types_of(model), (Names{"Gemm", "Reshape", "MatMul", "Reshape", "Gemm"}));
}

TEST_F(FewRows, StayAsTheyAreAloneAndWithMoreRows) {
  auto alone = model_of({gemm("x", "v", "y")});
  EXPECT_TRUE(rewrite(alone, 1).empty());
  auto many = model_of({gemm("x", "w", "a"), gemm("a", "v", "y")});
  EXPECT_TRUE(rewrite(many, 9).empty());
}

}  // namespace
}  // namespace detent::graph::test
