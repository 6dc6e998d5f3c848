#include "quantization/blocks/block_weights.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "onnx/write.h"
#include "quantization/blocks/block_stream.h"

namespace detent::quantization {
namespace {

using onnx::Node;

void add_constant(onnx::Model& model, const std::string& name, std::vector<std::int64_t> dims) {
  std::vector<float> values(1);
  for (const auto d : dims) values.resize(values.size() * static_cast<std::size_t>(d));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0F + static_cast<float>(i);
  model.graph.initializers.push_back(
      onnx::make_tensor(name, onnx::DataType::float32, std::move(dims), std::span<const float>(values)));
}

// x [n, 8] through a product, its bias and a gate to another product.
onnx::Model gated() {
  onnx::Model model;
  model.set_opset("", 17);
  model.graph.inputs.push_back(onnx::make_value_info("x", onnx::DataType::float32, std::nullopt));
  model.graph.outputs.push_back(onnx::make_value_info("y", onnx::DataType::float32, std::nullopt));
  add_constant(model, "up", {8, 32});
  add_constant(model, "bias", {32});
  add_constant(model, "down", {32, 8});
  model.graph.nodes = {Node("MatMul", "up", {"x", "up"}, {"a"}), Node("Add", "add", {"bias", "a"}, {"b"}),
                       Node("Sigmoid", "share", {"x"}, {"s"}), Node("Mul", "gate", {"b", "s"}, {"g"}),
                       Node("MatMul", "down", {"g", "down"}, {"y"})};
  return model;
}

BlockPlacement placed() {
  BlockPlacement placement;
  for (const bool down : {false, true}) {
    BlockTensor tensor;
    tensor.initializer = down ? 2 : 0;
    tensor.rows = down ? 32 : 8;
    tensor.columns = down ? 8 : 32;
    tensor.products = {down ? std::size_t{4} : std::size_t{0}};
    placement.tensors.push_back(tensor);
  }
  return placement;
}

TEST(InputFolds, ThroughAGateIntoAProductAndItsBias) {
  auto model = gated();
  auto placement = placed();
  const auto folds = input_folds(model, placement);
  ASSERT_EQ(folds.size(), 1U);
  EXPECT_EQ(folds[0].value, "g");
  EXPECT_EQ(folds[0].tensors, std::vector<std::size_t>{1});
  EXPECT_EQ(folds[0].constants, std::vector<std::size_t>{1});
  EXPECT_EQ(folds[0].product, std::size_t{0});

  std::vector<float> factors(32);
  for (std::size_t i = 0; i < 32; ++i) factors[i] = 0.5F + static_cast<float>(i);
  apply_fold(folds[0], factors, model, placement);
  std::vector<float> columns(2 * 32), others(2 * 8);
  read_columns(model.graph.initializers[2], placement.tensors[1], 3, 5, columns);
  EXPECT_FLOAT_EQ(columns[0], (1 + 3) * 0.5F);               // [0, 3]
  EXPECT_FLOAT_EQ(columns[32 + 7], (1 + 7 * 8 + 4) * 7.5F);  // [7, 4]
  read_columns(model.graph.initializers[0], placement.tensors[0], 3, 5, others);
  EXPECT_FLOAT_EQ(others[1], (1 + 32 + 3) / 3.5F);  // [1, 3]
  EXPECT_NEAR(onnx::to_doubles(model.graph.initializers[1])[4], 5 / 4.5, 1e-6);
}

TEST(InputFolds, NotWhereSomethingElseReadsWhatIsOnTheWay) {
  for (const std::string value : {"a", "b", "g"}) {
    auto model = gated();
    model.graph.outputs.push_back(onnx::make_value_info(value, onnx::DataType::float32, std::nullopt));
    EXPECT_TRUE(input_folds(model, placed()).empty()) << value;
  }
  for (const std::string value : {"a", "b", "g", "bias"}) {
    auto model = gated();
    model.graph.nodes.emplace_back("Relu", "other", std::vector<std::string>{value}, std::vector<std::string>{"z"});
    EXPECT_TRUE(input_folds(model, placed()).empty()) << value;
  }
}

TEST(InputFolds, NotWhereWeightsDoNotTakePart) {
  auto placement = placed();
  placement.tensors[1].stays = true;
  EXPECT_TRUE(input_folds(gated(), placement).empty());
  placement = placed();
  placement.tensors[0].tables = {4};
  EXPECT_TRUE(input_folds(gated(), placement).empty());
  placement = placed();
  placement.tensors.erase(placement.tensors.begin());  // the first product stays in float
  EXPECT_TRUE(input_folds(gated(), placement).empty());
}

}  // namespace
}  // namespace detent::quantization
