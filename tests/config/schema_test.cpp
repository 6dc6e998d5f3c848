#include <nlohmann/json.hpp>

#include <array>
#include <map>
#include <set>

#include "config/formats.h"
#include "config/presets.h"
#include "config/targets.h"
#include "config/validate.h"
#include "support.h"

namespace detent::config {
namespace {

// The schema itself: each row says all that others read from it.

constexpr Command kAll[] = {kQuantize, kCalibrate, kPlan, kCompare, kInspect, kBench};

TEST(Schema, EveryRowIsComplete) {
  for (const auto& option : options()) {
    SCOPED_TRACE(option.name);
    EXPECT_NE(option.affects, Affects::undeclared) << "say what the option affects";
    EXPECT_NE(option.commands, 0U);
    EXPECT_FALSE(option.help.empty());
    EXPECT_FALSE(option.group.empty());
    EXPECT_NO_THROW((void)any_member(option));
    EXPECT_EQ(option.off.empty(), option.off_help.empty());
    if (!is_flag(any_member(option)) && !option.positional()) {
      EXPECT_FALSE(option.label.empty());
    }
  }
}

TEST(Schema, NamesOfACommandAreUnique) {
  for (const auto command : kAll) {
    std::set<std::string_view> names;
    for (const auto& option : options()) {
      if ((option.commands & command) == 0) continue;
      EXPECT_TRUE(names.insert(option.name).second) << option.name;
      if (!option.off.empty()) {
        EXPECT_TRUE(names.insert(option.off).second) << option.off;
      }
    }
  }
}

TEST(Schema, EveryDefaultIsAValueOfItsOption) {
  QuantizeOptions fresh;
  for (const auto& option : options()) {
    SCOPED_TRACE(option.name);
    const auto member = option.member(fresh);
    if (!member || option.positional()) continue;
    const std::string text = text_of(*member, option.form);
    if (text.empty()) continue;
    const auto before = json_of(*member);
    assign(option, *member, is_list(*member) ? split_list(text) : std::vector<std::string>{text}, "--x");
    EXPECT_EQ(json_of(*member), before);
  }
}

TEST(Schema, EveryWordIsAccepted) {
  for (const auto& option : options()) {
    if (option.texts != nullptr) continue;
    for (const auto& word : words_of(option)) {
      SCOPED_TRACE(word);
      QuantizeOptions fresh;
      CommandLine line;
      const auto member = option.of_library() ? option.member(fresh) : option.member(line);
      ASSERT_TRUE(member);
      assign(option, *member, {word}, "--x");
      EXPECT_EQ(text_of(*member), word);
    }
  }
}

TEST(Schema, FindKnowsTheOppositeNameAndTheCommand) {
  EXPECT_EQ(find("per-tensor", kQuantize), find("per-channel", kQuantize));
  EXPECT_EQ(find("per-tensor", kCompare), nullptr);
  EXPECT_EQ(find("MODEL", kQuantize), nullptr);
  EXPECT_NE(find("most-common", kQuantize), find("most-common", kCalibrate));
}

TEST(Schema, TheCommandLineOfQuantizeHasSixtyOptionsAtMost) {
  const auto& all = options();
  EXPECT_LE(std::count_if(all.begin(), all.end(),
                          [](const auto& o) { return (o.commands & kQuantize) != 0 && !o.detail && !o.positional(); }),
            60);
}

TEST(Schema, AsJsonHasEveryRow) {
  const auto schema = schema_json();
  ASSERT_EQ(schema.at("options").size(), options().size());
  for (const auto& row : schema.at("options")) {
    EXPECT_FALSE(row.at("type").get<std::string>().empty());
    EXPECT_FALSE(row.at("commands").empty());
  }
  EXPECT_EQ(schema.at("presets").at(0).at("name"), "balanced");
}

TEST(Assign, WrongTextsAreNamedWithTheOption) {
  const std::map<std::string, std::string> wrong{
      {"threads", "many"},     {"samples", "-3"},       {"percentile", "high"}, {"method", "guess"},
      {"candidates", "a"},     {"beta-range", "1"},     {"resume", "perhaps"},  {"tensor-method", "x"},
      {"tensor-range", "x=1"}, {"other-methods", "new"}};
  for (const auto& [name, text] : wrong) {
    QuantizeOptions fresh;
    const auto* option = find(name, kQuantize);
    ASSERT_NE(option, nullptr) << name;
    const auto says = test::usage_error_of([&] { assign(*option, *option->member(fresh), {text}, "--" + name); });
    EXPECT_TRUE(test::contains(says, "--" + name)) << says;
  }
}

TEST(Assign, OverridesOfEachKindAreReplacedApart) {
  QuantizeOptions o;
  const auto* methods = find("tensor-method", kQuantize);
  const auto* ranges = find("tensor-range", kQuantize);
  assign(*ranges, *ranges->member(o), {"a=-1,2", "b=0,1"}, "--set tensor-range");
  assign(*methods, *methods->member(o), {"c=mse"}, "--set tensor-method");
  ASSERT_EQ(o.overrides.size(), 3U);
  EXPECT_EQ(o.overrides[0].tensor, "c");
  EXPECT_EQ(o.overrides[1].range, std::pair(-1.0F, 2.0F));
  assign(*ranges, *ranges->member(o), {"d=0,1"}, "--set tensor-range");
  ASSERT_EQ(o.overrides.size(), 2U);
  EXPECT_EQ(o.overrides[1].tensor, "d");
}

// An option changes the identity of a run if and only if its row says so.

void expect_identity_follows_the_rows(Command command) {
  const Options fresh;
  std::size_t checked = 0;
  for (const auto& option : options()) {
    if ((option.commands & command) == 0) continue;
    Options changed;
    const auto member = option.member(changed);
    if (!member) continue;
    SCOPED_TRACE(option.name);
    test::change(*member);
    ASSERT_NE(json_of(*member), json_of(read_only(option, fresh)));
    for (const auto what : {Affects::statistics, Affects::integers})
      EXPECT_EQ(identity(changed, what, command) != identity(fresh, what, command), option.affects == what);
    ++checked;
  }
  EXPECT_GT(checked, 20U);
}

TEST(Identity, ChangesWithTheOptionsThatAffectIt) {
  expect_identity_follows_the_rows(kQuantize);
  expect_identity_follows_the_rows(kCalibrate);
}

TEST(Identity, IntegersCountWhereLayersMayBeTuned) {
  QuantizeOptions options;
  options.finetune.solver = WeightSolver::nearest;
  const auto plain = run_identity(options);
  options.finetune.damping = 0.5;
  EXPECT_EQ(run_identity(options), plain);
  options.finetune.solver = WeightSolver::gptq;
  const auto tuned = run_identity(options);
  EXPECT_EQ(tuned.at("--set damping"), 0.5);
  options.config.per_channel = false;
  EXPECT_NE(run_identity(options), tuned);
}

TEST(Identity, ADeviceIsNotItsNumber) {
  QuantizeOptions one, other, two;
  one.device.cuda = {0};
  other.device.cuda = {3};
  two.device.cuda = {0, 3};
  EXPECT_EQ(identity(one, Affects::statistics), identity(other, Affects::statistics));
  EXPECT_NE(identity(one, Affects::statistics), identity(two, Affects::statistics));
  EXPECT_NE(identity(one, Affects::statistics), identity(QuantizeOptions(), Affects::statistics));
}

// One word for what comes out.

using test::contains;
using test::usage_error_of;

// Options as a user gives them, by name and text.
std::string refused(const std::vector<std::pair<std::string_view, std::string>>& texts) {
  QuantizeOptions options;
  options.calibration_data = "samples";
  std::vector<std::string_view> given;
  for (const auto& [name, text] : texts) {
    const auto* option = find(name, kQuantize);
    assign(*option, *option->member(options), {text}, "--x");
    given.push_back(option->at.path);
  }
  return usage_error_of([&] {
    resolve(options, given);
    validate(options);
  });
}

TEST(Formats, EachIsAValidRunOfItsKind) {
  for (const auto& row : formats()) {
    SCOPED_TRACE(row.name);
    auto options = options_of_format(row.name);
    options.calibration_data = "samples";
    EXPECT_NO_THROW(validate(options));
    EXPECT_EQ(refused({{"format", std::string(row.name)}}), "");
    EXPECT_EQ(refused({{"format", std::string(row.name)}, {"samples", "4"}, {"batch-size", "1"}}), "");
  }
  EXPECT_EQ(result_of(options_of_format("int8")), kIntegers);
  EXPECT_EQ(result_of(options_of_format("int8-dynamic")), kDynamic);
  EXPECT_EQ(result_of(options_of_format("q4")), kBlocks);
  EXPECT_EQ(result_of(options_of_format("fp16")), kFloat16);
  EXPECT_EQ(result_of(options_of_format("bfp16")), kBlockFloats);
}

TEST(Formats, AnOptionThatRefinesOneIsTaken) {
  EXPECT_EQ(refused({{"format", "q4"}, {"block-size", "64"}}), "");
  EXPECT_EQ(refused({{"format", "q4"}, {"float", "16"}}), "");
  EXPECT_EQ(refused({{"format", "int8"}, {"weight-type", "uint8"}, {"preset", "plain"}}), "");
  EXPECT_EQ(refused({{"format", "fp8"}, {"weight-type", "float8e5m2"}}), "");
}

TEST(Formats, AnOptionThatSaysSomethingElseIsRefused) {
  EXPECT_TRUE(contains(refused({{"format", "q4"}, {"bits", "8"}}), "--bits and --format q4 both say what comes out"));
  EXPECT_TRUE(contains(refused({{"format", "int8"}, {"weights-only", "true"}}), "--weights-only and --format int8"));
  EXPECT_TRUE(contains(refused({{"format", "int8"}, {"weight-type", "int4"}}), "give --weight-type int8 or uint8"));
  EXPECT_TRUE(contains(refused({{"format", "q4"}, {"family", "fp16"}}), "--format does not go with --family"));
  EXPECT_TRUE(contains(refused({{"format", "int"}}), "int8"));
}

TEST(Formats, ANameAloneIsNoFormat) {
  QuantizeOptions options;
  options.calibration_data = "samples";
  options.format = "q4";
  EXPECT_TRUE(contains(usage_error_of([&] { validate(options); }), "options_of_format(\"q4\")"));
}

// What a target gives to options, what the user may give against it, and what is refused.

QuantizeOptions resolved_for(const std::string& target, std::vector<std::string_view> given = {},
                             const std::function<void(QuantizeOptions&)>& change = {}) {
  QuantizeOptions options;
  options.config.target = target;
  if (change) change(options);
  resolve(options, given);
  return options;
}

TEST(Targets, EverySettingIsAnOptionWithAValueOfIts) {
  for (const auto& row : targets()) {
    const auto options = resolved_for(std::string(row.name));
    EXPECT_EQ(options.config.target, row.name);
    for (const auto& setting : row.settings) {
      const auto* option = find(setting.option, kQuantize);
      ASSERT_NE(option, nullptr) << row.name << ": " << setting.option;
      EXPECT_EQ(text_of(read_only(*option, options), option->form), setting.value) << row.name << setting.option;
    }
  }
}

TEST(Targets, OnlyThisMachineIsTimed) {
#if defined(__aarch64__)
  EXPECT_TRUE(chooses_by_speed(resolved_for("ort-cpu:arm")));
  EXPECT_FALSE(chooses_by_speed(resolved_for("ort-cpu:vnni")));
#else
  EXPECT_FALSE(chooses_by_speed(resolved_for("ort-cpu:arm")));
#endif
  EXPECT_TRUE(chooses_by_speed(resolved_for("ort-cpu")));
}

TEST(Targets, TheDefaultChangesNothing) {
  const auto options = resolved_for("ort-cpu");
  const auto balanced = preset_config("balanced");
  EXPECT_EQ(options.config.weight_range, balanced.weight_range);
  EXPECT_EQ(options.config.activation_type, balanced.activation_type);
  EXPECT_TRUE(makes_barriers(options.config) && writes_hard_sigmoids(options.config));
  EXPECT_FALSE(makes_barriers(resolved_for("openvino").config) ||
               writes_hard_sigmoids(resolved_for("openvino").config));
  EXPECT_FALSE(chooses_by_speed(resolved_for("ort-web")));
}

TEST(Targets, WhatTheUserGivesWinsWhereTheTargetAllowsIt) {
  const auto options =
      resolved_for("openvino", {"config.activation_type"}, [](auto& o) { o.config.activation_type = QuantType::int8; });
  EXPECT_EQ(options.config.activation_type, QuantType::int8);
  EXPECT_EQ(options.config.weight_range, WeightRange::pairs);
}

TEST(Targets, WhatContradictsTheTargetIsRefused) {
  const auto says = test::usage_error_of([] {
    (void)resolved_for("openvino", {"config.weight_type"}, [](auto& o) { o.config.weight_type = QuantType::uint8; });
  });
  EXPECT_TRUE(
      test::contains(says, "--weight-type uint8 contradicts --target openvino: OpenVINO then computes in float"))
      << says;
  EXPECT_TRUE(test::contains(says, "give int8, or another target")) << says;
  const auto flag = test::usage_error_of([] {
    (void)resolved_for("amd-npu:xint8", {"config.per_channel"}, [](auto& o) { o.config.per_channel = true; });
  });
  EXPECT_TRUE(test::contains(flag, "--per-channel contradicts")) << flag;
}

TEST(Targets, FloatTargetsQuantizeNothing) {
  EXPECT_EQ(resolved_for("coreml").config.preset, "none");
  EXPECT_EQ(resolved_for("coreml").config.float_type, FloatType::float16);
  EXPECT_EQ(resolved_for("amd-npu:bf16").config.float_type, FloatType::bfloat16);
}

TEST(Targets, WhatOnlyMeasuringUsesIsLeftAloneWithoutIt) {
  const auto plain = resolved_for("qnn", {"config.preset"}, [](auto& o) { o.config.preset = "plain"; });
  EXPECT_EQ(plain.accuracy.fallback, AccuracyFallback::float32);
  EXPECT_EQ(resolved_for("qnn").accuracy.fallback, AccuracyFallback::int16);
}

TEST(Targets, AnUnknownNameListsThem) {
  const auto says = test::usage_error_of([] { (void)target("qmn"); });
  for (const auto& row : targets()) EXPECT_TRUE(test::contains(says, row.name)) << says;
}

constexpr const char* kOwnTarget = R"(version: 1
name: my-npu
options:
  activation-type: [uint8, int8]
  weight-type: {only: int8, why: its multipliers are signed}
  weight-symmetric: true
  weight-range: {default: full}
operators:
  Conv: {activations: uint8}
  Softmax:
  Gemm: {per-channel: no}
fixed-ranges:
  - {operator: Softmax, type: uint8, low: 0, high: 0.99609375}
)";

TEST(Targets, AFileSaysWhatRowsSay) {
  const auto own = parse_target("my-npu.yaml", kOwnTarget);
  ASSERT_EQ(own.settings.size(), 4u);
  EXPECT_EQ(own.settings[0].value, "uint8");
  EXPECT_EQ(own.settings[0].also, std::vector<std::string>{"int8"});
  EXPECT_EQ(own.settings[1].why, "its multipliers are signed");
  EXPECT_EQ(own.settings[2].why, "my-npu has no other");
  EXPECT_EQ(own.settings[3].why, "");
  EXPECT_TRUE(own.accepts("Softmax") && !own.accepts("MatMul"));
  EXPECT_TRUE(own.has_channels("Conv") && !own.has_channels("Gemm"));
  EXPECT_TRUE(own.has_8_bits_alone("Conv"));
  ASSERT_EQ(own.fixed_ranges.size(), 1u);
  EXPECT_EQ(own.fixed_ranges[0].high, 255.0F / 256);
  EXPECT_TRUE(test::contains(own.table, "Conv\tu8|u8=\ts8=/c|s8=/t|u8|u8=\tu8|u8=\tint8\t\n")) << own.table;
  EXPECT_TRUE(test::contains(own.table, "Gemm\ts8|s8=\ts8=/t|u8|u8=|s8|s8=\t")) << own.table;
}

TEST(Targets, WhatIsWrongInAFileIsToldWithItsLine) {
  const std::string text = kOwnTarget;
  const auto says = [&](const std::string& old, const std::string& now) {
    auto wrong = text;
    return test::usage_error_of([&] { (void)parse_target("t.yaml", wrong.replace(wrong.find(old), old.size(), now)); });
  };
  const std::vector<std::array<std::string, 3>> cases{
      {"version: 1", "version: 2", "t.yaml:1: version: '2' is not known; this detent reads version: 1"},
      {"version: 1", "", "t.yaml:2: a target: there is no 'version'"},
      {"my-npu", "My NPU", "t.yaml:2: name: 'My NPU' is not of small letters"},
      {"operators", "operator", "t.yaml:8: a target: 'operator' is not one of its values; did you mean operators?"},
      {"weight-range", "weight-rnge", "t.yaml:7: options: 'weight-rnge' is not one of its values"},
      {"[uint8, int8]", "int3", "t.yaml:4: activation-type: 'int3' is not one of its values"},
      {"default: full", "deflt: full", "t.yaml:7: weight-range: 'deflt' is not one of its values"},
      {"activations: uint8", "activations: int16",
       "t.yaml:9: Conv: activations: the options have no int16; choose from"},
      {"per-channel: no", "per-channel: 3", "t.yaml:11: per-channel is not true or false"},
      {"low: 0", "low: 2", "t.yaml:13: fixed-ranges: 2 to 0.99609375 is no range"},
      {", high: 0.99609375", "", "t.yaml:13: fixed-ranges: there is no 'high'"},
      {"  Softmax:", "  Conv:", "t.yaml:10: operators: 'Conv' is there twice"},
      {"uint8, int8]", "uint8, int8", "t.yaml:5: "},
  };
  for (const auto& [old, now, expected] : cases) {
    const auto told = says(old, now);
    EXPECT_TRUE(told.starts_with(expected)) << now << ": " << told;
    EXPECT_FALSE(test::contains(told, "\n")) << told;
  }
}

// What a preset means, and what gives way to what the user says.

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

// Other options follow from these, and they have no other values that could be made up; others are not of quantize.
bool names_what_is_made(const Option& option) {
  const std::string_view path = option.at.path;
  return (option.commands & kQuantize) == 0 || path == "config.preset" || path == "config.target" || path == "family" ||
         path == "format";
}

TEST(Resolve, WhatIsGivenStays) {
  for (const auto& option : options()) {
    QuantizeOptions changed;
    const auto member = option.member(changed);
    if (!member || names_what_is_made(option) || option.at.path == "weights_only.enabled") continue;
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
      if (!member || names_what_is_made(option) || path == "config.float_type" || path == "config.block_float" ||
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
  Options options;
  options.config.preset = "plain";
  resolve(options, {"config.preset"}, kCalibrate);
  EXPECT_EQ(options.config.weight_type, QuantType::int8);
}

}  // namespace
}  // namespace detent::config
