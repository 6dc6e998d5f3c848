#include "data/given_inputs.h"

#include "support.h"

namespace detent::data::test {
namespace {

using GivenValuesTest = DataTest;

InputSpec typed(std::string name, DataType type, Dims shape) { return input(std::move(name), std::move(shape), type); }

TEST_F(GivenValuesTest, StandInTheirPlacesForEachBatch) {
  put("a.npy", counting({3, 2}));
  const std::vector inputs{typed("sr", DataType::int64, {}), input("x", {-1, 2}), input("state", {2, -1, 2}),
                           typed("on", DataType::boolean, {1})};
  const auto source = open(inputs, {.batch_size = 2, .input_values = {"sr=16000", "state=0.5", "on=1"}});
  const auto samples = all(*source);
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(origins(samples), (std::vector<std::string>{"a.npy[0:2]", "a.npy[2:3]"}));
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const std::int64_t rows = s == 0 ? 2 : 1;
    const auto& given = samples[s].inputs;
    EXPECT_EQ(given[0].shape, Dims{});
    EXPECT_EQ(values<std::int64_t>(given[0]), std::vector<std::int64_t>{16000});
    EXPECT_EQ(given[1].shape, (Dims{rows, 2}));
    EXPECT_EQ(given[2].shape, (Dims{2, rows, 2}));
    EXPECT_EQ(values(given[2]), std::vector<float>(static_cast<std::size_t>(rows) * 4, 0.5F));
    EXPECT_EQ(values<std::uint8_t>(given[3]), std::vector<std::uint8_t>{1});
  }
  source->rewind();
  EXPECT_EQ(all(*source).size(), 2U);
}

TEST_F(GivenValuesTest, ElementsHaveTheTypeOfTheInput) {
  const auto bytes = [](DataType type, const std::string& number) {
    const auto array = array_of(typed("v", type, {2}), number, 1);
    return std::string(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  };
  EXPECT_EQ(bytes(DataType::int64, "9007199254740993"), raw<std::int64_t>({9007199254740993, 9007199254740993}));
  EXPECT_EQ(bytes(DataType::uint8, "255"), raw<std::uint8_t>({255, 255}));
  EXPECT_EQ(bytes(DataType::int32, "-3"), raw<std::int32_t>({-3, -3}));
  EXPECT_EQ(bytes(DataType::float64, "1e-3"), raw<double>({1e-3, 1e-3}));
  EXPECT_EQ(bytes(DataType::float16, "1.5"), raw<std::uint16_t>({0x3E00, 0x3E00}));
  EXPECT_EQ(bytes(DataType::bfloat16, "1.5"), raw<std::uint16_t>({0x3FC0, 0x3FC0}));
}

TEST_F(GivenValuesTest, WhatIsNoneIsRefused) {
  put("a.npy", counting({1, 2}));
  const auto expect_usage = [](const auto& act, const std::vector<std::string>& parts) {
    expect_error(act, parts, ErrorKind::usage);
  };
  const auto with = [&](std::vector<std::string> given, const InputSpec& other) {
    return [=, this] { (void)load({input("x", {-1, 2}), other}, {.input_values = given}); };
  };
  const auto rate = typed("sr", DataType::int64, {});
  expect_usage(with({"sr"}, rate), {"'sr' is not an input with its number", "sr=16000"});
  expect_usage(with({"sr="}, rate), {"is not an input with its number"});
  expect_usage(with({"sr=1", "sr=2"}, rate), {"'sr' is given twice"});
  expect_usage(with({"sR=1"}, rate), {"has no input 'sR'", "'sr' int64 []"});
  for (const auto* number : {"1.5", "x", "0x10", " 1", "99999999999999999999"})
    expect_usage(with({std::string("sr=") + number}, rate), {"'sr' is int64 []", "is no value"});
  expect_usage(with({"on=2"}, typed("on", DataType::boolean, {})), {"'2' is no value"});
  expect_usage(with({"u=-1"}, typed("u", DataType::uint8, {})), {"'-1' is no value"});
  expect_usage(with({"s=0"}, input("s", {-1, -1})), {"how large it is does not follow from a sample"});
  expect_usage(with({"x=0", "sr=1"}, rate), {"leaves none for samples"});
  expect_error(with({}, rate), {"--input NAME=NUMBER"});
}

TEST_F(GivenValuesTest, DataThatHoldThemTooAreRefused) {
  write_zip(at("a.npz"), {{"x.npy", counting({1, 2})}, {"sr.npy", npy("<i8", {}, raw<std::int64_t>({1}))}});
  const auto rate = typed("sr", DataType::int64, {});
  expect_bad({input("x", {-1, 2}), rate}, {"the key 'sr' is not an input", "by --input: 'sr'"},
             {.input_values = {"sr=1"}});
}

}  // namespace
}  // namespace detent::data::test
