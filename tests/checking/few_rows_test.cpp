// Which products of few rows OpenVINO joins, and which of these it computes wrongly.
#include "checking/openvino_rules.h"

#include <gtest/gtest.h>

#include "onnx/write.h"

namespace detent::checking {
namespace {

using Names = std::vector<std::string>;

constexpr int kFirst = 3, kSecond = 7;  // positions of the products

// x, behind a pair of uint8, times w1, `between`, a pair, times w2. The zero point of the first pair is 7 or 0.
struct Rows {
  onnx::Model model;
  graph::ValueTypes types;

  explicit Rows(std::int64_t rows, const std::string& zero = "z7", std::int64_t width = 4) {
    model.path = "test.onnx";
    model.set_opset("", 17);
    const std::vector<float> scale{0.5F}, weight(static_cast<std::size_t>(width * width), 1.0F);
    floats("s", {}, scale);
    floats("w", {width, width}, weight);
    floats("bias", {width}, std::vector<float>(static_cast<std::size_t>(width), 2.0F));
    floats("no_bias", {width}, std::vector<float>(static_cast<std::size_t>(width), 0.0F));
    for (const auto& [name, number] : {std::pair{"z7", 7}, std::pair{"z0", 0}}) {
      const std::vector<std::uint8_t> value{static_cast<std::uint8_t>(number)};
      model.graph.initializers.push_back(
          onnx::make_tensor<std::uint8_t>(name, onnx::DataType::uint8, {}, std::span<const std::uint8_t>(value)));
    }
    model.graph.inputs.push_back(onnx::make_value_info("x", onnx::DataType::float32, {}));
    model.graph.outputs.push_back({"y", onnx::DataType::float32, {}, {}});
    node("Relu", {"x"}, "r").pair("r", "d", zero);
    for (const char* value : {"p", "y"})
      types[value] = {onnx::DataType::float32, std::vector<onnx::Dim>{{rows, ""}, {width, ""}}};
  }
  void floats(const char* name, std::vector<std::int64_t> dims, const std::vector<float>& values) {
    model.graph.initializers.push_back(
        onnx::make_tensor<float>(name, onnx::DataType::float32, std::move(dims), std::span<const float>(values)));
  }
  Rows& node(const std::string& op, Names in, const std::string& out) {
    model.graph.nodes.emplace_back(op, out, std::move(in), Names{out});
    return *this;
  }
  Rows& pair(const std::string& in, const std::string& out, const std::string& zero) {
    return node("QuantizeLinear", {in, "s", zero}, out + "_q").node("DequantizeLinear", {out + "_q", "s", zero}, out);
  }
  /// Both products, with an operator between them.
  Rows& products(const std::string& between = "Relu", const std::string& bias = "") {
    Names first{"d", "w"};
    if (!bias.empty()) first.push_back(bias);
    node("Gemm", first, "p").node(between, {"p"}, "a").pair("a", "b", "z0");
    return node("Gemm", {"b", "w"}, "y");
  }
  std::unordered_map<int, ChainOutcome> joined() const {
    return outcome_of_chained_products(model, graph::Index(model), types);
  }
};

TEST(JoinedProducts, OfMoreRowsOrWideWeightsStayApart) {
  EXPECT_EQ(Rows(8).products().joined().size(), 2U);
  EXPECT_EQ(Rows(-1).products().joined().size(), 2U);  // of as many rows as one likes
  EXPECT_TRUE(Rows(9).products().joined().empty());
  EXPECT_EQ(Rows(8, "z7", 256).products().joined().size(), 2U);
  EXPECT_TRUE(Rows(8, "z7", 257).products().joined().empty());
}

TEST(JoinedProducts, AreWrongWhereAZeroPointIsTakenAlong) {
  for (const int product : {kFirst, kSecond}) {
    EXPECT_EQ(Rows(1).products().joined().at(product), ChainOutcome::wrong);
    EXPECT_EQ(Rows(1).products("Relu", "no_bias").joined().at(product), ChainOutcome::wrong);
    // A bias, an activation that stays, or no zero point keep it from that; then the kernel is one of floats.
    EXPECT_EQ(Rows(1).products("Relu", "bias").joined().at(product), ChainOutcome::floats);
    EXPECT_EQ(Rows(1).products("Tanh").joined().at(product), ChainOutcome::floats);
    EXPECT_EQ(Rows(1, "z0").products().joined().at(product), ChainOutcome::floats);
  }
}

TEST(JoinedProducts, ArePartedByWhatHasAKernelOfItsOwn) {
  EXPECT_TRUE(Rows(1).products("LeakyRelu").joined().empty());
  EXPECT_TRUE(Rows(1).products("Softmax").joined().empty());
}

TEST(JoinedProducts, RunOnIntegersThatOthersReadToo) {
  Rows net(1, "z0");
  net.node("Sigmoid", {"d"}, "other");
  net.model.graph.outputs.push_back({"other", onnx::DataType::float32, {}, {}});
  const auto joined = net.products().joined();
  EXPECT_EQ(joined.at(kFirst + 1), ChainOutcome::integers);
}

}  // namespace
}  // namespace detent::checking
