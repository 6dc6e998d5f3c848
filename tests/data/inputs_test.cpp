#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "data/given_inputs.h"
#include "data/layout.h"
#include "data/sample.h"
#include "data/support.h"
#include "support.h"

namespace detent::data::test {
namespace {

const InputSpec& x() {
  static const InputSpec spec = input("x", {-1, 3});
  return spec;
}

TEST(NaturalOrder, NumbersCompareAsNumbers) {
  std::vector<std::string> names{"img_10", "img_2",  "img_1", "img_02",
                                 "img",    "img_2b", "Img_3", "img_999999999999999999999"};
  std::sort(names.begin(), names.end(), natural_less);
  EXPECT_EQ(names, (std::vector<std::string>{"Img_3", "img", "img_1", "img_02", "img_2", "img_2b", "img_10",
                                             "img_999999999999999999999"}));
}

TEST(NaturalOrder, IsATotalOrder) {
  const std::vector<std::string> names{"",   "0",    "00",  "1",   "01", "a",    "a0", "a00",
                                       "a1", "a01b", "a1b", "a1a", "1a", "\xff", "a b"};
  for (const std::string& a : names) {
    EXPECT_FALSE(natural_less(a, a));
    for (const std::string& b : names) {
      EXPECT_EQ(a != b, natural_less(a, b) != natural_less(b, a)) << a << " " << b;
      for (const std::string& c : names) {
        EXPECT_TRUE(!natural_less(a, b) || !natural_less(b, c) || natural_less(a, c)) << a << " " << b << " " << c;
      }
    }
  }
}

TEST(PbIndex, OnlyWholeNumbers) {
  EXPECT_EQ(pb_index("input_0.pb"), 0U);
  EXPECT_EQ(pb_index("input_12.pb"), 12U);
  for (const char* name : {"input_.pb", "input_a.pb", "input_1.pbx", "output_0.pb", "input_-1.pb", "input_1x.pb",
                           "input_99999999999999999999999.pb", "input_pb", "input.pb"}) {
    EXPECT_EQ(pb_index(name), std::nullopt) << name;
  }
}

using LayoutTest = DataTest;

TEST_F(LayoutTest, NpyFilesInNaturalOrder) {
  for (const char* name : {"img_10.npy", "img_2.npy", "img_1.npy"}) put(name, counting({1, 3}));
  for (const char* name : {".hidden.npy", ".npy", "notes.txt"}) put(name, "no array");
  put("cache/more.npy", "in another folder");
  const auto source = open({x()});
  EXPECT_EQ(source->sample_count(), 3U);
  EXPECT_EQ(origins(all(*source)), (std::vector<std::string>{"img_1.npy", "img_2.npy", "img_10.npy"}));
  EXPECT_FALSE(source->next().has_value());
}

TEST_F(LayoutTest, NpyStaysInTheMappedFile) {
  put("a.npy", counting({2, 3}));
  const std::vector<Sample> samples = load({x()});
  const auto* file = static_cast<const MappedFile*>(samples[0].inputs[0].owner.get());
  EXPECT_TRUE(file->contains(samples[0].inputs[0].bytes));
  EXPECT_EQ(values(samples[0].inputs[0]), (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST_F(LayoutTest, ASingleFile) {
  put("a.npy", counting({1, 3}));
  write_zip(at("b.npz"), {{"x.npy", counting({1, 3})}});
  put("c.bin", "?");
  for (const char* name : {"a.npy", "b.npz"}) {
    const auto source = open_samples(at(name), {x()});
    EXPECT_EQ(source->sample_count(), 1U);
    EXPECT_EQ(origins(all(*source)), std::vector<std::string>{name});
  }
  expect_error([&] { open_samples(at("c.bin"), {x()}); }, {"c.bin'", "is no .npy, .npz or .wav file"});
  expect_error([&] { open_samples(at("a.npy"), {x(), input("y", {})}); }, {"a.npy'", "2 inputs", "'y'"});
}

TEST_F(LayoutTest, AFolderForEachInput) {
  for (const char* name : {"10", "9"}) {
    put(fmt::format("x/{}.npy", name), counting({1, 3}));
    put(fmt::format("y/{}.npy", name), counting({1}, 7));
  }
  put("z/1.npy", "a folder that is no input");
  const std::vector<Sample> samples = load({input("y", {1}), x()});
  ASSERT_EQ(origins(samples), (std::vector<std::string>{"9.npy", "10.npy"}));
  EXPECT_EQ(values(samples[0].inputs[0]), (std::vector<float>{7}));
  EXPECT_EQ(samples[0].inputs[1].shape, (Dims{1, 3}));
}

TEST_F(LayoutTest, FoldersMustHoldTheSameNames) {
  put("x/1.npy", counting({1, 3}));
  put("x/2.npy", counting({1, 3}));
  put("y/1.npy", counting({1}));
  const InputSpec y = input("y", {1});
  expect_bad({x(), y}, {"x/2.npy' exists for the input 'x' but not for 'y'"});
  expect_bad({y, x()}, {"x/2.npy' exists for the input 'x' but not for 'y'"});
  expect_bad({x(), input("w", {1})}, {"no folder for the input 'w'", "found: x, y"});
  expect_bad({x(), input("a/b", {1})}, {"no folder for the input 'a/b'", "use .npz"});
  fs::remove(at("y/1.npy"));
  put("y/1.png", "");
  expect_bad({x(), y}, {"y' holds no .npy file", "1 .png"});
}

TEST_F(LayoutTest, NamesNeverLeaveTheDirectory) {
  put("outside/1.npy", counting({1, 3}));
  fs::create_directory(at("data"));
  for (const std::string& name : {std::string("../outside"), at("outside").string(), std::string("..")}) {
    expect_error([&] { open_samples(at("data"), {input(name, {1, 3})}); }, {"is empty"});
  }
}

TEST_F(LayoutTest, NothingUsable) {
  expect_error([&] { open_samples(at("missing"), {x()}); }, {"missing' does not exist", "*.npz", "'x' float32 [?, 3]"});
  expect_bad({x()}, {"is empty", "expected *.npz, *.npy"});
  expect_bad({}, {"no inputs"});
  for (const char* name : {"a.jpg", "b.jpg", "c.txt", "README"}) put(name, "");
  fs::create_directory(at("sub"));
  expect_bad({x()}, {"found 4 files (2 .jpg, 1 without extension, 1 .txt) and 1 folder", "test_data_set_*/input_N.pb"});
}

TEST_F(LayoutTest, MixedLayouts) {
  put("a.npy", counting({1, 3}));
  write_zip(at("b.npz"), {{"x.npy", counting({1, 3})}});
  put("test_data_set_0/input_0.pb", "");
  expect_bad({x()}, {"mixes layouts: *.npz and *.npy and test_data_set_*"});
}

TEST_F(LayoutTest, NpyFilesCannotFeedTwoInputs) {
  put("a.npy", counting({1, 3}));
  expect_bad({x(), input("y", {1})}, {".npy files for one input, the model has 2", "'y' float32 [1]"});
}

TEST_F(LayoutTest, ThousandsOfFilesAreListedInOnePass) {
  for (int i = 1; i < 20000; ++i) put(fmt::format("{}.npy", i), "");
  put("0.npy", counting({1, 3}));
  const auto start = std::clock();  // of the processor, which a busy machine leaves alone
  EXPECT_EQ(open({x()})->sample_count(), 20000U);
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

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
  expect_usage(with({"s=0"}, input("s", {-1, -1})), {"its size does not follow from a sample"});
  expect_usage(with({"x=0", "sr=1"}, rate), {"leaves none for samples"});
  expect_error(with({}, rate), {"--input NAME=NUMBER"});
}

TEST_F(GivenValuesTest, DataThatHoldThemTooAreRefused) {
  write_zip(at("a.npz"), {{"x.npy", counting({1, 2})}, {"sr.npy", npy("<i8", {}, raw<std::int64_t>({1}))}});
  const auto rate = typed("sr", DataType::int64, {});
  expect_bad({input("x", {-1, 2}), rate}, {"the key 'sr' is not an input", "by --input: 'sr'"},
             {.input_values = {"sr=1"}});
}

// Inputs for models without samples.

using onnx::DataType;
using Shape = std::vector<std::int64_t>;

Shape made(const Shape& declared, const std::map<std::string, Shape>& shapes = {}) {
  const std::vector<InputSpec> inputs{{"x", DataType::float32, declared}};
  return synthetic_inputs(inputs, shapes).front().shape;
}

TEST(MadeUpInputs, FillFreeDimensions) {
  EXPECT_EQ(made({2, 5}), (Shape{2, 5}));
  EXPECT_EQ(made({-1, -1}), (Shape{1, 128}));
  EXPECT_EQ(made({-1, 3, 48, -1}), (Shape{1, 3, 48, 224}));
  EXPECT_EQ(made({-1, -1, -1, -1}), (Shape{1, 3, 224, 224}));
  EXPECT_EQ(made({-1, -1, -1, 3}), (Shape{1, 224, 224, 3}));
  EXPECT_EQ(made({}), Shape());
  EXPECT_EQ(made({-1, 3, 48, -1}, {{"x", {2, 3, 48, 320}}, {"other", {1}}}), (Shape{2, 3, 48, 320}));
}

TEST(MadeUpInputs, RefuseWhatDoesNotFit) {
  expect_error([] { made({-1, 3}, {{"x", {1, 4}}}); }, {"input 'x' has the shape [-1,3], and [1,4] was given"});
  expect_error([] { made({-1, 3}, {{"x", {1}}}); }, {"[1] was given"});
  const std::vector<InputSpec> unknown{{"x", DataType::float32, std::nullopt}};
  expect_error([&] { synthetic_inputs(unknown, {}); }, {"the rank of input 'x' is unknown"});
  EXPECT_EQ(synthetic_inputs(unknown, {{"x", {4}}}).front().shape, Shape{4});
}

TEST(MadeUpInputs, AreNumbersThatModelsTake) {
  const std::vector<InputSpec> inputs{{"floats", DataType::float32, Shape{1000}}, {"ids", DataType::int64, Shape{3}}};
  const auto arrays = synthetic_inputs(inputs, {});
  std::vector<float> floats(1000);
  std::memcpy(floats.data(), arrays[0].bytes.data(), arrays[0].bytes.size());
  const auto [low, high] = std::minmax_element(floats.begin(), floats.end());
  EXPECT_GE(*low, 0);
  EXPECT_LT(*high, 1);
  EXPECT_GT(*high - *low, 0.9F);
  std::vector<std::int64_t> ids(3);
  std::memcpy(ids.data(), arrays[1].bytes.data(), arrays[1].bytes.size());
  EXPECT_EQ(ids, (std::vector<std::int64_t>{1, 1, 1}));
}

TEST(MadeUpInputs, HaveTheSizeThatIsAskedFor) {
  const std::vector<InputSpec> inputs{{"x", DataType::float32, Shape{1000}},
                                      {"free", DataType::float16, Shape{-1, -1}}};
  const auto arrays = synthetic_inputs(inputs, {}, {}, {-2, 2, true, 64, 16});
  EXPECT_EQ(arrays[1].shape, (Shape{1, 16}));
  std::vector<float> floats(1000);
  std::memcpy(floats.data(), arrays[0].bytes.data(), arrays[0].bytes.size());
  EXPECT_TRUE(std::all_of(floats.begin(), floats.begin() + 250, [](float x) { return x == 0; }));
  const auto [low, high] = std::minmax_element(floats.begin(), floats.end());
  EXPECT_LT(*low, -1.8F);
  EXPECT_GT(*high, 1.8F);
}

TEST(MadeUpInputs, OfADecoderFitEachOther) {
  const std::vector<InputSpec> inputs{{"input_ids", DataType::int64, Shape{-1, -1}},
                                      {"attention_mask", DataType::int64, Shape{-1, -1}},
                                      {"position_ids", DataType::int64, Shape{-1, -1}},
                                      {"past_key_values.0.key", DataType::float32, Shape{-1, 2, -1, 8}}};
  const auto shapes = [&](const std::map<std::string, Shape>& given, const MadeUp& how) {
    std::vector<Shape> all;
    for (const auto& array : synthetic_inputs(inputs, given, {}, how)) all.push_back(array.shape);
    return all;
  };
  EXPECT_EQ(shapes({}, {}), (std::vector<Shape>{{1, 128}, {1, 256}, {1, 128}, {1, 2, 128, 8}}));
  EXPECT_EQ(shapes({}, {.steps = 1, .cached = 9}), (std::vector<Shape>{{1, 1}, {1, 10}, {1, 1}, {1, 2, 9, 8}}));
  EXPECT_EQ(shapes({{"input_ids", {3, 4}}}, {.cached = 0}), (std::vector<Shape>{{3, 4}, {3, 4}, {3, 4}, {3, 2, 0, 8}}));
  EXPECT_EQ(shapes({{"past_key_values.0.key", {1, 2, 5, 8}}, {"attention_mask", {1, 7}}}, {.steps = 2}),
            (std::vector<Shape>{{1, 2}, {1, 7}, {1, 2}, {1, 2, 5, 8}}));
  const auto arrays = synthetic_inputs(inputs, {}, {}, {.steps = 2, .cached = 9});
  std::vector<std::int64_t> positions(2);
  std::memcpy(positions.data(), arrays[2].bytes.data(), arrays[2].bytes.size());
  EXPECT_EQ(positions, (std::vector<std::int64_t>{9, 10}));
  for (const std::int64_t cached : {0, 9}) {
    const auto flag = synthetic_inputs(
        std::vector<InputSpec>{inputs[0], inputs[3], {"use_cache_branch", DataType::boolean, Shape{1}}}, {}, {},
        {.cached = cached});
    EXPECT_EQ(flag[2].bytes[0], std::byte{cached > 0});
  }
}

}  // namespace
}  // namespace detent::data::test
