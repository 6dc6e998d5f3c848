// What a target gives to options, what the user may give against it, and what is refused.
#include "config/targets.h"

#include "config/presets.h"
#include "support.h"

namespace detent::config {
namespace {

QuantizeOptions resolved(const std::string& target, std::vector<std::string_view> given = {},
                         const std::function<void(QuantizeOptions&)>& change = {}) {
  QuantizeOptions options;
  options.config.target = target;
  if (change) change(options);
  resolve(options, given);
  return options;
}

TEST(Targets, EverySettingIsAnOptionWithAValueOfIts) {
  for (const auto& row : targets()) {
    const auto options = resolved(std::string(row.name));
    EXPECT_EQ(options.config.target, row.name);
    for (const auto& setting : row.settings) {
      const auto* option = find(setting.option, kQuantize);
      ASSERT_NE(option, nullptr) << row.name << ": " << setting.option;
      EXPECT_EQ(text_of(*read_only(*option, options), option->form), setting.value) << row.name << setting.option;
    }
  }
}

TEST(Targets, OnlyThisMachineIsTimed) {
#if defined(__aarch64__)
  EXPECT_TRUE(chooses_by_speed(resolved("ort-cpu:arm")));
  EXPECT_FALSE(chooses_by_speed(resolved("ort-cpu:vnni")));
#else
  EXPECT_FALSE(chooses_by_speed(resolved("ort-cpu:arm")));
#endif
  EXPECT_TRUE(chooses_by_speed(resolved("ort-cpu")));
}

TEST(Targets, TheDefaultChangesNothing) {
  const auto options = resolved("ort-cpu");
  const auto balanced = preset_config("balanced");
  EXPECT_EQ(options.config.weight_range, balanced.weight_range);
  EXPECT_EQ(options.config.activation_type, balanced.activation_type);
  EXPECT_TRUE(makes_barriers(options.config) && writes_hard_sigmoids(options.config));
  EXPECT_FALSE(makes_barriers(resolved("openvino").config) || writes_hard_sigmoids(resolved("openvino").config));
  EXPECT_FALSE(chooses_by_speed(resolved("ort-web")));
}

TEST(Targets, WhatTheUserGivesWinsWhereTheTargetAllowsIt) {
  const auto options =
      resolved("openvino", {"config.activation_type"}, [](auto& o) { o.config.activation_type = QuantType::int8; });
  EXPECT_EQ(options.config.activation_type, QuantType::int8);
  EXPECT_EQ(options.config.weight_range, WeightRange::pairs);
}

TEST(Targets, WhatContradictsTheTargetIsRefused) {
  const auto says = test::usage_error_of([] {
    (void)resolved("openvino", {"config.weight_type"}, [](auto& o) { o.config.weight_type = QuantType::uint8; });
  });
  EXPECT_TRUE(
      test::contains(says, "--weight-type uint8 contradicts --target openvino: OpenVINO then computes in float"))
      << says;
  EXPECT_TRUE(test::contains(says, "give int8, or another target")) << says;
  const auto flag = test::usage_error_of(
      [] { (void)resolved("amd-npu:xint8", {"config.per_channel"}, [](auto& o) { o.config.per_channel = true; }); });
  EXPECT_TRUE(test::contains(flag, "--per-channel contradicts")) << flag;
}

TEST(Targets, FloatTargetsQuantizeNothing) {
  EXPECT_EQ(resolved("coreml").config.preset, "none");
  EXPECT_EQ(resolved("coreml").config.float_type, FloatType::float16);
  EXPECT_EQ(resolved("amd-npu:bf16").config.float_type, FloatType::bfloat16);
}

TEST(Targets, WhatOnlyMeasuringUsesIsLeftAloneWithoutIt) {
  const auto plain = resolved("qnn", {"config.preset"}, [](auto& o) { o.config.preset = "plain"; });
  EXPECT_EQ(plain.accuracy.fallback, AccuracyFallback::float32);
  EXPECT_EQ(resolved("qnn").accuracy.fallback, AccuracyFallback::int16);
}

TEST(Targets, AnUnknownNameListsThem) {
  const auto says = test::usage_error_of([] { (void)target("qmn"); });
  for (const auto& row : targets()) EXPECT_TRUE(test::contains(says, row.name)) << says;
}

}  // namespace
}  // namespace detent::config
