// Inputs for models without samples.
#include "data/given_inputs.h"

#include <cstring>

#include "data/support.h"

namespace detent::data::test {
namespace {

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

}  // namespace
}  // namespace detent::data::test
