// What the HTP leaves to the CPU for its bias.
#include "checking/ort_rules.h"

#include <gtest/gtest.h>

#include "onnx/write.h"

namespace detent::checking {
namespace {

using Names = std::vector<std::string>;

std::string why(const std::string& bias, const std::string& scale) {
  onnx::Model model;
  model.path = "test.onnx";
  const std::vector<float> floats{0.5F};
  const std::vector<std::int32_t> integers{3};
  model.graph.initializers.push_back(
      onnx::make_tensor<float>("b", onnx::DataType::float32, {1}, std::span<const float>(floats)));
  model.graph.initializers.push_back(
      onnx::make_tensor<std::int32_t>("i", onnx::DataType::int32, {1}, std::span<const std::int32_t>(integers)));
  for (const auto* name : {"x", "w"})
    model.graph.inputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  model.graph.nodes.emplace_back("DequantizeLinear", "d", Names{"i", "b"}, Names{"id"});
  model.graph.nodes.emplace_back("LayerNormalization", "n", Names{"x", "w", bias}, Names{"y"});
  const graph::Index index(model);
  return std::string(left_to_cpu_despite_table(model.graph.nodes[1], model, index, {{"u8"}, {scale, true}, {"u8"}}));
}

TEST(QnnRules, LayerNormalizationWithABiasOfInt32WantsOtherScales) {
  EXPECT_NE(why("id", "s8=/t"), "");
  EXPECT_NE(why("id", "f32"), "");
  EXPECT_EQ(why("id", "u8/t"), "");
  EXPECT_EQ(why("id", "s16=/t"), "");
  EXPECT_EQ(why("b", "s8=/t"), "");
}

}  // namespace
}  // namespace detent::checking
