// What a preset means, and what gives way to what the user says.
#include "config/presets.h"

#include <nlohmann/json.hpp>

#include "support.h"

namespace detent::config {
namespace {

QuantizeOptions resolved(const std::vector<std::string_view>& given, const std::string& preset = "balanced",
                         const std::function<void(QuantizeOptions&)>& change = {}) {
  QuantizeOptions options;
  options.config.preset = preset;
  if (change) change(options);
  resolve(options, given);
  return options;
}

TEST(Presets, EveryPresetGivesItsRow) {
  for (const auto& row : presets()) {
    const auto options = resolved({"config.preset"}, std::string(row.name));
    EXPECT_EQ(options.config.preset, row.name);
    EXPECT_EQ(options.config.weight_type, row.format.weight_type);
    EXPECT_EQ(options.config.weight_range, row.format.weight_range);
    EXPECT_EQ(options.method.method, row.method.method);
    EXPECT_EQ(preset_config(row.name).weight_type, row.format.weight_type);
    EXPECT_EQ(preset_method(row.name).method, row.method.method);
  }
}

TEST(Presets, TheFirstTwoAreWhatTheyWere) {
  const auto balanced = preset_config("balanced"), plain = preset_config("plain");
  EXPECT_EQ(balanced.weight_type, QuantType::int8);
  EXPECT_EQ(balanced.weight_range, WeightRange::pairs);
  EXPECT_EQ(plain.weight_type, QuantType::int8);
  EXPECT_EQ(plain.weight_range, WeightRange::full);
  EXPECT_EQ(plain.weight_symmetric, std::nullopt);
  EXPECT_TRUE(preset("balanced").measures_accuracy && preset("balanced").barriers &&
              preset("balanced").consumer_functions);
  EXPECT_FALSE(preset("plain").measures_accuracy || preset("plain").barriers || preset("plain").integer_chains_only ||
               preset("plain").fuses_for_runtime);
}

TEST(Presets, AnUnknownNameListsThem) {
  const auto says = test::usage_error_of([] { (void)preset("best"); });
  for (const auto& row : presets()) EXPECT_TRUE(test::contains(says, row.name)) << says;
  EXPECT_TRUE(test::contains(says, "'best'")) << says;
}

TEST(Resolve, WeightsThatAreGivenLeaveNothingOfThePresets) {
  const auto typed =
      resolved({"config.weight_type"}, "balanced", [](auto& o) { o.config.weight_type = QuantType::int4; });
  EXPECT_EQ(typed.config.weight_type, QuantType::int4);
  EXPECT_EQ(typed.config.weight_symmetric, std::nullopt);
  const auto full =
      resolved({"config.weight_range"}, "balanced", [](auto& o) { o.config.weight_range = WeightRange::full; });
  EXPECT_EQ(full.config.weight_type, QuantType::int8);
  EXPECT_EQ(full.config.weight_range, WeightRange::full);
}

TEST(Resolve, AMethodThatIsGivenIsTheOnlyOne) {
  const auto given =
      resolved({"method.method"}, "balanced", [](auto& o) { o.method.method = CalibrationMethod::entropy; });
  EXPECT_EQ(given.method.method, CalibrationMethod::entropy);
  EXPECT_TRUE(given.accuracy.other_methods.empty());
  EXPECT_EQ(resolved({}).accuracy.other_methods.size(), 2U);
  const std::vector<CalibrationMethod> others{CalibrationMethod::mse};
  const auto both = resolved({"method.method", "accuracy.other_methods"}, "balanced", [&](auto& o) {
    o.method.method = CalibrationMethod::minmax;
    o.accuracy.other_methods = others;
  });
  EXPECT_EQ(both.accuracy.other_methods, others);
}

// Other options follow from these, and they have no other values that could be made up.
bool names_what_is_made(std::string_view path) {
  return path == "config.preset" || path == "config.target" || path == "family" || path == "format";
}

TEST(Resolve, WhatIsGivenStays) {
  for (const auto& option : options()) {
    QuantizeOptions changed;
    const auto member = option.member(changed);
    if (!member || names_what_is_made(option.at.path) || option.at.path == "weights_only.enabled") continue;
    SCOPED_TRACE(option.name);
    changed.weights_only.enabled = (option.results & kIntegers) == 0;
    test::change(*member);
    const auto before = json_of(*member);
    resolve(changed, {option.at.path});
    EXPECT_EQ(json_of(*member), before);
  }
}

void convert_to(FloatType type, QuantizeOptions& options) {
  options.config.preset = "none";
  options.config.float_type = type;
}

// Whatever is given means something, or is refused by its name.
TEST(Resolve, WhatHasNoMeaningIsRefused) {
  const std::pair<Result, std::function<void(QuantizeOptions&)>> kinds[] = {
      {kIntegers, [](auto&) {}},
      {kBlocks, [](auto& o) { o.weights_only.enabled = true; }},
      {kFloat16, [](auto& o) { convert_to(FloatType::float16, o); }},
      {kFloat32, [](auto& o) { convert_to(FloatType::float32, o); }}};
  for (const auto& [result, set] : kinds) {
    for (const auto& option : options()) {
      QuantizeOptions changed;
      set(changed);
      const auto member = option.member(changed);
      const auto path = option.at.path;
      if (!member || names_what_is_made(path) || path == "config.float_type" || path == "config.block_float" ||
          path == "weights_only.enabled" || path == "node_formats")
        continue;
      if (path == "config.weight_type" && result == kBlocks) continue;  // floats only
      SCOPED_TRACE(std::string(option.name) + " " + std::to_string(result));
      test::change(*member);
      const auto* value = std::get_if<bool*>(&*member);
      if (value != nullptr && !**value && option.off.starts_with("no-")) continue;  // asks for nothing
      const std::vector<std::string_view> given{path, "config.preset"};
      const std::vector<std::string_view> without_preset{path};
      const auto call = [&] { resolve(changed, result == kBlocks ? without_preset : given); };
      if ((option.results & result) != 0) {
        EXPECT_NO_THROW(call());
      } else {
        EXPECT_TRUE(test::contains(test::usage_error_of(call), "--"));
      }
    }
  }
}

// An option of a family means something if it does to one of the members, and says nothing of what these are.
TEST(Resolve, OptionsOfAFamily) {
  const auto said = [](std::vector<std::string> family, std::string_view path) {
    QuantizeOptions options;
    options.family = std::move(family);
    return test::usage_error_of([&] { resolve(options, {path}); });
  };
  EXPECT_EQ(said({"fp16", "q4"}, "weights_only.block_size"), "");
  EXPECT_EQ(said({"fp16", "q4"}, "config.keep_io_types"), "");
  EXPECT_TRUE(test::contains(said({"fp16", "q8"}, "weights_only.block_size"), "--block-size means nothing"));
  EXPECT_TRUE(test::contains(said({"q4"}, "weights_only.bits"), "--bits does not go with --family"));
  EXPECT_TRUE(test::contains(said({"q4"}, "config.preset"), "--preset does not go with --family"));
}

TEST(Resolve, SwitchesThatAreOffAskForNothing) {
  QuantizeOptions options;
  convert_to(FloatType::float16, options);
  options.bench = false;
  EXPECT_NO_THROW(resolve(options, {"config.preset", "bench"}));
  options.bench = true;
  EXPECT_TRUE(test::contains(test::usage_error_of([&] { resolve(options, {"bench"}); }), "--bench"));
  options.config.per_channel = false;
  EXPECT_TRUE(test::contains(test::usage_error_of([&] { resolve(options, {"config.per_channel"}); }), "--per-tensor"));
}

TEST(Resolve, CalibrateHasThePresetsSelection) {
  CalibrateOptions options;
  options.config.preset = "plain";
  resolve(options, {"config.preset"});
  EXPECT_EQ(options.config.weight_type, QuantType::int8);
}

}  // namespace
}  // namespace detent::config
