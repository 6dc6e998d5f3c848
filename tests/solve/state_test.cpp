// What is saved of layers: solved ones, the state of one that is being solved, and spooled samples.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "data/sample.h"
#include "mpi/peer.h"
#include "solve/sweep/layer_tuner.h"
#include "solve/sweep/solved_layers.h"
#include "solve/sweep_support.h"

namespace detent::solve {
namespace {

using namespace test;

std::vector<std::byte> bytes_up_to(std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

std::vector<std::byte> read(const onnx::TensorData& data) {
  const auto bytes = data.bytes();
  return {bytes.begin(), bytes.end()};
}

/// Another byte at a place of a file, counted from its end.
void damage(const std::filesystem::path& path, int from_end) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-from_end, std::ios::end);
  file.put('\x7f');
}

TEST(SolvedLayers, AreNotThereWithALengthThatNoFileHas) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  std::vector<SolvedLayer> layers(1);
  layers[0].tuning.name = "a";
  solved.save(1, layers);
  const auto path = folder.path() / "solved-1";
  std::ifstream in(path, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const std::string length = "\"integers\":0";
  const auto at = file.find(length);
  ASSERT_NE(at, std::string::npos);
  // 2^64 - 1, which is 0 once it is rounded up to whole blocks.
  file.replace(at, length.size(), "\"integers\":18446744073709551615");
  const auto end = file.find_last_of('}') + 1;
  const auto text = sealed_json_text(*parse_json(std::string_view(file).substr(8, end - 8)));
  const std::uint64_t size = text.size();
  std::ofstream(path, std::ios::binary) << std::string_view(reinterpret_cast<const char*>(&size), sizeof size) << text;
  EXPECT_FALSE(solved.load(1, 1));
}

TEST(SolvedLayers, ComeBackAsTheyWereSaved) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  EXPECT_FALSE(solved.load(3, 2));
  std::vector<SolvedLayer> layers(2);
  layers[0].tuning = {
      .name = "a", .op_type = "Conv", .streamed = true, .tuned = true, .error_before = 2, .error_after = 1};
  layers[0].integers = bytes_up_to(100);
  layers[1].tuning.name = "b";
  layers[1].integers = bytes_up_to(7);
  layers[1].bias = bytes_up_to(12);
  solved.save(3, layers);
  const auto found = solved.load(3, 2);
  ASSERT_TRUE(found && found->size() == 2);
  EXPECT_EQ((*found)[0].tuning.name, "a");
  EXPECT_TRUE((*found)[0].tuning.streamed && (*found)[0].tuning.tuned);
  EXPECT_EQ((*found)[0].tuning.error_after, 1);
  EXPECT_EQ(read((*found)[0].integers), layers[0].integers);
  EXPECT_EQ((*found)[0].bias.size(), 0U);
  EXPECT_EQ(read((*found)[1].integers), layers[1].integers);
  EXPECT_EQ(read((*found)[1].bias), layers[1].bias);
  EXPECT_FALSE(solved.load(2, 2));
  EXPECT_FALSE(solved.load(3, 1));
}

TEST(SolvedLayers, AreSolvedAgainWhereDamaged) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  std::vector<SolvedLayer> layers(1);
  layers[0].integers = bytes_up_to(128);
  solved.save(0, layers);
  damage(folder.path() / "solved-0", 5);
  EXPECT_FALSE(solved.load(0, 1));
  EXPECT_THROW((void)solved.load_saved(0, 1), Error);
}

std::string file_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// As rank 0 saved them.
std::string saved(std::size_t layers) {
  const TempDir folder(std::filesystem::temp_directory_path());
  std::vector<SolvedLayer> solved(layers);
  for (auto& layer : solved) layer.tuning.name = "of rank 0";
  SolvedLayers(folder.path()).save(0, solved);
  return file_of(folder.path() / "solved-0");
}

TEST(SolvedLayers, ComeFromRankZero) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const std::string yes(1, '\1');
  auto ranks = detent::test::beside_peer(1, {yes, "", saved(2)});
  const SolvedLayers solved(folder.path(), &ranks);
  solved.save(0, std::vector<SolvedLayer>(2));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const auto found = solved.load_saved(0, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].tuning.name, "of rank 0");
  EXPECT_EQ(file_of(folder.path() / "solved-0"), saved(2));
  for (const std::string& theirs : {std::string("damaged"), saved(1)}) {
    auto again = detent::test::beside_peer(1, {yes, "", theirs});
    const TempDir other(std::filesystem::temp_directory_path());
    EXPECT_THROW((void)SolvedLayers(other.path(), &again).load(0, 2), Error);
  }
}

TEST(SharedSamples, AreRunByAllRanksAlike) {
  for (const std::size_t ranks : {1U, 2U, 3U}) {
    std::vector<std::size_t> fitted(ranks), held_back(ranks);
    for (std::size_t s = 0; s < 48; ++s) ++(is_held_back(s) ? held_back : fitted)[runner_of(s, ranks)];
    EXPECT_EQ(fitted, std::vector<std::size_t>(ranks, 42 / ranks)) << ranks;
    EXPECT_EQ(held_back, std::vector<std::size_t>(ranks, 6 / ranks)) << ranks;
  }
}

// Of sample s and layer l, as it is sent: one float32 of one dimension.
std::string sent(float value) {
  const std::uint64_t numbers[] = {1, static_cast<std::uint64_t>(onnx::DataType::float32), 1, 1, sizeof value};
  std::string text(reinterpret_cast<const char*>(numbers), sizeof numbers);
  text.resize((text.size() + 15) / 16 * 16);
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
  text.resize((text.size() + 15) / 16 * 16);
  return text;
}

store::Record record_of(float value) {
  const auto owner = std::make_shared<float>(value);
  return {{onnx::DataType::float32, {1}, std::as_bytes(std::span<const float>(owner.get(), 1)), owner}};
}

TEST(SharedSamples, ComeToAllInTheirOrder) {
  store::Spool spool({.directory = std::filesystem::temp_directory_path()});
  std::string theirs;
  for (std::size_t s = 0; s < 16; ++s) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      if (runner_of(s, 2) == 0 && !is_held_back(s)) theirs += sent(static_cast<float>(10 * s + layer));
    }
  }
  // The first of them come by themselves, the others together.
  const auto hand_out = [&](const std::string& all) {
    constexpr std::size_t kSingle = 6;
    const std::size_t size = sent(0).size();
    std::vector<std::string> messages;
    for (std::size_t i = 0; i < kSingle; ++i) messages.push_back(all.substr(i * size, size));
    messages.push_back(all.substr(kSingle * size));
    auto ranks = detent::test::beside_peer(1, messages);
    SharedSamples shared(spool, 2, true, {&ranks});
    for (std::size_t s = 0; s < 16; ++s) {
      for (std::size_t layer = 0; layer < 2 && runner_of(s, 2) == 1; ++layer)
        shared.put(layer, s, record_of(static_cast<float>(10 * s + layer)));
    }
    std::size_t next = 0, elsewhere = 0;
    const auto as_it_is = [](std::size_t, std::size_t, store::Record record) { return record; };
    shared.hand_out(16, as_it_is, [&](std::size_t layer, std::size_t s, std::optional<store::Record> record) {
      EXPECT_EQ(2 * s + layer, next++);
      if (!record) return void(++elsewhere);
      EXPECT_EQ(data::floats(record->at(0))[0], static_cast<float>(10 * s + layer));
    });
    EXPECT_EQ(next, 32U);
    EXPECT_EQ(elsewhere, 2U);  // of sample 8, which rank 0 holds back
  };
  hand_out(theirs);
  EXPECT_THROW(hand_out(theirs.substr(0, theirs.size() - 8)), Error);
  EXPECT_THROW(hand_out(theirs.substr(0, theirs.size() - 64)), Error);
}

TEST(SolvedLayers, WhatIsToldOfThemIsSealed) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  std::vector<SolvedLayer> layers(1);
  layers[0].tuning.error_after = 1;
  solved.save(0, layers);
  auto file = file_of(folder.path() / "solved-0");
  const std::string told = "\"after\":1.0";
  ASSERT_NE(file.find(told), std::string::npos);
  file.replace(file.find(told), told.size(), "\"after\":2.0");
  std::ofstream(folder.path() / "solved-0", std::ios::binary) << file;
  EXPECT_FALSE(solved.load(0, 1));
}

TEST(LayerState, IsTakenUpUnlessDamaged) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const auto path = folder.path() / "solving-0";
  LayerState state(path, 0);
  EXPECT_TRUE(state.load().bytes.empty());
  EXPECT_TRUE(state.is_due());
  const auto first = bytes_up_to(10), second = bytes_up_to(20);
  state.save(std::array{std::span<const std::byte>(first), std::span<const std::byte>(second)});
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  const auto stored = LayerState(path, 3600).load();
  EXPECT_EQ(std::vector<std::byte>(stored.bytes.begin(), stored.bytes.end()), all);
  EXPECT_FALSE(LayerState(path, 3600).is_due());
  damage(path, 3);
  EXPECT_TRUE(state.load().bytes.empty());
}

TEST(StoredSamples, AreReadAheadAndLeaveNothing) {
  const TempDir folder(std::filesystem::temp_directory_path());
  store::SpoolOptions options;
  options.directory = folder.path();
  options.residency = store::Residency::disk;
  store::Spool spool(options);
  {
    StoredSamples samples(spool, "layer");
    for (unsigned i = 0; i < 5; ++i) samples.add({random_floats({4, 300}, i), random_floats({4, 7}, 10 + i)});
    ASSERT_EQ(samples.count(), 5U);
    samples.prefetch(std::array<std::size_t, 3>{2, 0, 4});
    for (const std::size_t i : {2U, 0U, 1U, 4U, 2U, 3U}) {
      const auto sample = samples.get(i);
      const auto expected = floats_of(random_floats({4, 300}, static_cast<unsigned>(i)));
      EXPECT_EQ(Floats(sample.input.begin(), sample.input.end()), expected);
      EXPECT_EQ(sample.target.size(), 28U);
      EXPECT_TRUE(sample.float_input.empty());
      EXPECT_EQ(sample.input_shape, (Shape{4, 300}));
    }
  }
  std::size_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (file.is_regular_file()) bytes += file.file_size();
  }
  EXPECT_EQ(bytes, 0U);
}

}  // namespace
}  // namespace detent::solve
