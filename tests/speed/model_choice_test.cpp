// Choices for whole models, as they are kept in the kernel table.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "quantization/support.h"
#include "speed/choice.h"
#include "speed/kernels.h"

namespace detent::speed {
namespace {

TEST(ModelChoice, IsReadBackAsItWasWritten) {
  const ModelChoice choice{{"a", "\xff"}, 1.5e-3, 2e-3, 1e-3, {{"b \"", 2e-6}}};
  const auto read = choice_of(text_of(choice));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->in_float, choice.in_float);
  EXPECT_DOUBLE_EQ(read->seconds, 1.5e-3);
  EXPECT_DOUBLE_EQ(read->seconds_on_integers, 2e-3);
  EXPECT_DOUBLE_EQ(read->seconds_in_float, 1e-3);
  EXPECT_DOUBLE_EQ(read->added.at("b \""), 2e-6);
  for (const char* text : {"", "7", "{}", R"({"time":1,"integers":1,"float":1,"in_float":[7],"added":[]})"})
    EXPECT_FALSE(choice_of(text)) << text;
}

TEST(ModelChoice, IsKeptInTheTable) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const auto path = folder.path() / "table.json";
  {
    KernelTable table(path);
    table.add_choice("model", {{"a"}, 1e-3, 2e-3, 3e-3});
    table.add_choice("model", {{"b"}, 1e-3, 2e-3, 3e-3});  // the first stays
    table.save({});
  }
  const KernelTable read(path);
  ASSERT_NE(read.find_choice("model"), nullptr);
  EXPECT_EQ(read.find_choice("model")->in_float, std::vector<std::string>{"a"});
  EXPECT_EQ(read.find_choice("other"), nullptr);
  for (const char* models :
       {"7", "[7]", R"({"m":{}})", R"({"m":{"time":-1,"integers":1,"float":1,"in_float":[],"added":[]}})"}) {
    std::ofstream(path, std::ios::trunc) << R"({"format":"detent kernel times 1","kernels":{},"models":)" << models
                                         << "}";
    EXPECT_THROW(KernelTable{path}, Error) << models;
  }
}

// Three convolutions in a row: the one in the middle would take two conversions with it into float.
TEST(ModelChoice, TellsWhatFloatWouldAdd) {
  quantization::testing::Builder builder;
  builder.input("x");
  for (const auto& [from, to] : {std::pair{"x", "a"}, {"a", "b"}, {"b", "c"}})
    builder.constant(std::string(to) + "_w", {1, 1, 1, 1}, {1.0F}).node("Conv", {from, std::string(to) + "_w"}, {to});
  for (auto& [name, type] : builder.types) type.shape = std::vector<onnx::Dim>{{1, ""}, {1, ""}, {4, ""}, {4, ""}};
  const graph::Index index(builder.model);
  const QuantConfig config = preset_config("balanced");
  const KernelTimes times{30e-6, 10e-6, 3e-6, 4e-6};
  const TimedModel subject{builder.model, index, builder.types, config};
  const std::vector<bool> all(3, true);
  const TimesOf times_of = [&](std::size_t) { return &times; };
  const auto added = added_in_float(subject, all, {}, times_of);
  ASSERT_EQ(added.size(), 3U);
  EXPECT_NEAR(added[1], 20e-6 + 3e-6 + 4e-6, 1e-9);
  EXPECT_LT(added[0], added[1]);                                 // the input is float anyway
  EXPECT_EQ(added_in_float(subject, all, {1}, times_of)[1], 0);  // it is there already
}

}  // namespace
}  // namespace detent::speed
