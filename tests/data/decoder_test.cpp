#include <gtest/gtest.h>

#include "data/sample.h"
#include "support.h"

namespace detent::data::test {
namespace {

const std::vector<InputSpec> kInputs{
    {"past_key_values.0.key", DataType::float16, Dims{-1, 4, -1, 32}},
    {"input_ids", DataType::int64, Dims{-1, -1}},
    {"attention_mask", DataType::int64, Dims{-1, -1}},
    {"position_ids", DataType::int32, Dims{-1, -1}},
    {"use_cache_branch", DataType::boolean, Dims{1}},
};

std::string ids(const Dims& shape) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape[0] * shape[1]), 7);
  return npy("<i8", shape, raw(values));
}

void expect_completed(const Sample& sample, std::int64_t rows) {
  ASSERT_EQ(sample.inputs.size(), kInputs.size());
  for (std::size_t i = 0; i < kInputs.size(); ++i) EXPECT_EQ(sample.inputs[i].type, kInputs[i].type);
  EXPECT_EQ(sample.inputs[0].shape, (Dims{rows, 4, 0, 32}));
  EXPECT_EQ(sample.inputs[1].shape, (Dims{rows, 3}));
  EXPECT_EQ(values<std::int64_t>(sample.inputs[2]), std::vector<std::int64_t>(static_cast<std::size_t>(3 * rows), 1));
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < rows; ++row) positions.insert(positions.end(), {0, 1, 2});
  EXPECT_EQ(values<std::int32_t>(sample.inputs[3]), positions);
  EXPECT_EQ(values<std::uint8_t>(sample.inputs[4]), std::vector<std::uint8_t>{0});
}

using DecoderData = DataTest;

TEST_F(DecoderData, IdsAloneAreEnoughInEveryLayout) {
  put("file.npy", ids({2, 3}));
  put("npy/a.npy", ids({2, 3}));
  put("folders/input_ids/a.npy", ids({2, 3}));
  fs::create_directory(at("npz"));
  write_zip(at("npz/a.npz"), {{"input_ids.npy", ids({2, 3})}});
  write_zip(at("file.npz"), {{"arr_0.npy", ids({2, 3})}});
  for (const char* path : {"file.npy", "npy", "folders", "npz", "file.npz"}) {
    SCOPED_TRACE(path);
    const auto sample = open_samples(at(path), kInputs)->next();
    ASSERT_TRUE(sample);
    expect_completed(*sample, 2);
  }
}

TEST_F(DecoderData, RowsAreSplitWithAllThatBelongsToThem) {
  put("file.npy", ids({4, 3}));
  auto inputs = kInputs;
  inputs.pop_back();
  const auto source = open_samples(at("file.npy"), inputs, {.batch_size = 1});
  for (int row = 0; row < 4; ++row) {
    const auto sample = source->next();
    ASSERT_TRUE(sample);
    EXPECT_EQ(sample->inputs[0].shape, (Dims{1, 4, 0, 32}));
    EXPECT_EQ(values<std::int32_t>(sample->inputs[3]), (std::vector<std::int32_t>{0, 1, 2}));
  }
  EXPECT_FALSE(source->next());
}

TEST_F(DecoderData, WhatIsGivenIsTaken) {
  const auto mask = npy("<i8", {1, 3}, raw(std::vector<std::int64_t>{0, 1, 1}));
  const auto positions = npy("<i4", {1, 3}, raw(std::vector<std::int32_t>{5, 5, 6}));
  write_zip(at("a.npz"),
            {{"input_ids.npy", ids({1, 3})}, {"attention_mask.npy", mask}, {"position_ids.npy", positions}});
  const auto sample = open_samples(at("a.npz"), kInputs)->next();
  ASSERT_TRUE(sample);
  EXPECT_EQ(values<std::int64_t>(sample->inputs[2]), (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(values<std::int32_t>(sample->inputs[3]), (std::vector<std::int32_t>{5, 5, 6}));
  EXPECT_EQ(sample->inputs[0].shape, (Dims{1, 4, 0, 32}));
}

TEST_F(DecoderData, PositionsAreNotGuessedBesideAMask) {
  write_zip(at("a.npz"), {{"input_ids.npy", ids({1, 3})}, {"attention_mask.npy", ids({1, 3})}});
  expect_error([&] { open_samples(at("a.npz"), kInputs)->next(); }, {"position_ids", "missing"});
}

TEST_F(DecoderData, IdsAloneAreEnoughForEncoders) {
  put("file.npy", ids({2, 3}));
  const std::vector<InputSpec> encoder{kInputs[2], kInputs[1], {"token_type_ids", DataType::int64, Dims{-1, -1}}};
  const auto sample = open_samples(at("file.npy"), encoder)->next();
  ASSERT_TRUE(sample);
  EXPECT_EQ(values<std::int64_t>(sample->inputs[0]), std::vector<std::int64_t>(6, 1));
  EXPECT_EQ(values<std::int64_t>(sample->inputs[1]), std::vector<std::int64_t>(6, 7));
  EXPECT_EQ(values<std::int64_t>(sample->inputs[2]), std::vector<std::int64_t>(6, 0));
}

TEST_F(DecoderData, OtherModelsMissNothing) {
  write_zip(at("a.npz"), {{"input_ids.npy", ids({1, 3})}});
  const std::vector<InputSpec> both{kInputs[1], kInputs[2], {"pixels", DataType::float32, Dims{-1, 3}}};
  expect_error([&] { open_samples(at("a.npz"), both)->next(); }, {"attention_mask", "missing"});
}

TEST_F(DecoderData, MasksOfFloatsDoNotFollow) {
  put("file.npy", ids({2, 3}));
  const std::vector<InputSpec> encoder{kInputs[1], {"attention_mask", DataType::float32, Dims{-1, -1}}};
  expect_error([&] { open_samples(at("file.npy"), encoder)->next(); }, {"attention_mask", "float32"});
}

TEST_F(DecoderData, ACacheOfUnknownLengthIsRefused) {
  put("file.npy", ids({2, 3}));
  auto inputs = kInputs;
  inputs[0].shape = Dims{-1, -1, -1, 32};
  expect_error([&] { open_samples(at("file.npy"), inputs)->next(); }, {"length of the cache", "past_key_values.0.key"});
}

}  // namespace
}  // namespace detent::data::test
