// One word for what comes out.
#include "config/formats.h"

#include "config/presets.h"
#include "config/validate.h"
#include "support.h"

namespace detent::config {
namespace {

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

}  // namespace
}  // namespace detent::config
