// The schema itself: each row says all that others read from it.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "config/validate.h"
#include "support.h"

namespace detent::config {
namespace {

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

TEST(Schema, EveryCommandHasTheMembersOfItsOptions) {
  for (const auto& option : options()) {
    SCOPED_TRACE(option.name);
    if (option.at.command_line != nullptr) continue;
    EXPECT_EQ((option.commands & (kQuantize | kPlan)) != 0,
              option.at.quantize != nullptr && (option.commands & (kQuantize | kPlan)) != 0);
    if ((option.commands & kCalibrate) != 0) {
      EXPECT_NE(option.at.calibrate, nullptr);
    }
    if ((option.commands & kCompare) != 0) {
      EXPECT_NE(option.at.compare, nullptr);
    }
    if ((option.commands & kInspect) != 0) {
      EXPECT_NE(option.at.inspect, nullptr);
    }
    if ((option.commands & kBench) != 0) {
      EXPECT_NE(option.at.bench, nullptr);
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
      const auto member = option.at.command_line == nullptr ? option.member(fresh) : option.member(line);
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

}  // namespace
}  // namespace detent::config
