// What becomes of int8 values in ONNX Runtime on x86 CPUs.
#include "checking/ort_rules.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "onnx/write.h"

namespace detent::checking {
namespace {

using Names = std::vector<std::string>;

struct Net {
  onnx::Model model;

  Net() {
    model.path = "test.onnx";
    model.set_opset("", 17);
    const std::vector<float> scale{0.5F};
    const std::vector<std::int8_t> zero{0}, weight(8, 1);
    auto& constants = model.graph.initializers;
    constants.push_back(onnx::make_tensor<float>("s", onnx::DataType::float32, {}, std::span<const float>(scale)));
    constants.push_back(
        onnx::make_tensor<std::int8_t>("z", onnx::DataType::int8, {}, std::span<const std::int8_t>(zero)));
    constants.push_back(
        onnx::make_tensor<std::int8_t>("w", onnx::DataType::int8, {2, 4, 1, 1}, std::span<const std::int8_t>(weight)));
    for (const auto* name : {"x", "v"})
      model.graph.inputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  }
  Net& node(const std::string& op, Names in, const std::string& out) {
    model.graph.nodes.emplace_back(op, out, std::move(in), Names{out}, std::vector<onnx::Attribute>{});
    return *this;
  }
  /// A pair of int8 behind `value`, as `value`_d.
  Net& pair(const std::string& value) {
    node("QuantizeLinear", {value, "s", "z"}, value + "_q");
    return node("DequantizeLinear", {value + "_q", "s", "z"}, value + "_d");
  }
  bool mixed(const std::string& name) const {
    const graph::Index index(model);
    return mixes_signs(model, index, model.graph.nodes[static_cast<std::size_t>(index.producer(name))]);
  }
};

TEST(OrtRules, OperatorsHaveOneTypeOfValues) {
  Net net;
  net.pair("x").pair("v").node("Mul", {"x_d", "v_d"}, "y").pair("y").node("Neg", {"y_d"}, "end");
  EXPECT_FALSE(net.mixed("y"));
  net.node("Abs", {"x_d"}, "other");
  EXPECT_TRUE(net.mixed("y"));
  EXPECT_FALSE(net.mixed("other")) << "its result is not quantized";
}

TEST(OrtRules, AShapeReadsNoValues) {
  Net net;
  net.pair("x").node("Sigmoid", {"x_d"}, "y").pair("y").node("Neg", {"y_d"}, "end").node("Shape", {"x_d"}, "shape");
  EXPECT_FALSE(net.mixed("y"));
}

TEST(OrtRules, ProductsWantUint8) {
  Net net;
  net.pair("x").node("DequantizeLinear", {"w", "s", "z"}, "w_d").node("Conv", {"x_d", "w_d"}, "y").pair("y");
  net.node("Neg", {"y_d"}, "a").node("Abs", {"y_d"}, "b").node("Exp", {"x_d"}, "c");
  EXPECT_TRUE(net.mixed("y")) << "both stay int8";
}

}  // namespace
}  // namespace detent::checking
