#include "data/layout.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "data/sample.h"
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

}  // namespace
}  // namespace detent::data::test
