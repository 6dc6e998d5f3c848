#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "data/load.h"
#include "data/pictures.h"
#include "data/sample.h"
#include "detent/error.h"
#include "support.h"

namespace detent::data::test {
namespace {

// Pictures: other sizes as PIL makes them, and how they become the input of a model.

Picture pattern() {
  Picture picture{5, 4, {}};
  for (unsigned i = 0; i < 60; ++i) picture.rgb.push_back(static_cast<std::uint8_t>(37 * i * i + 11 * i));
  return picture;
}

// PIL.Image.fromarray(pattern).resize((width, height), Image.Resampling.BILINEAR), Pillow 11.
struct Reference {
  std::size_t width, height;
  std::vector<int> rgb;
};
const Reference kReferences[] = {
    {3, 2, {79, 137, 160, 129, 167, 160, 95, 172, 218, 115, 125, 111, 132, 114, 116, 125, 138, 179}},
    {2, 4, {73,  99,  187, 68,  201, 221, 117, 217, 147, 116, 148, 185,
            171, 113, 117, 174, 141, 159, 72,  88,  97,  91,  121, 143}},
};

TEST(Picture, IsResizedAsPilDoes) {
  for (const auto& reference : kReferences) {
    const auto small = resized(pattern(), reference.width, reference.height);
    ASSERT_EQ(small.rgb.size(), reference.rgb.size());
    for (std::size_t i = 0; i < small.rgb.size(); ++i) EXPECT_NEAR(small.rgb[i], reference.rgb[i], 1) << i;
  }
  EXPECT_EQ(resized(pattern(), 5, 4).rgb, pattern().rgb);
  const auto large = resized(pattern(), 7, 6);
  EXPECT_NEAR(large.rgb[3], 63, 1);
  EXPECT_NEAR(large.rgb[7 * 6 * 3 - 2], 178, 1);
}

TEST(Picture, FilesAreKnownByTheirNames) {
  for (const char* name : {"a.jpg", "a.JPG", "a.b.jpeg", ".png"}) EXPECT_TRUE(is_picture(name)) << name;
  for (const char* name : {"a", "jpg", "a.jpg.txt", "", "."}) EXPECT_FALSE(is_picture(name)) << name;
}

class Folder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& contents) {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
  }
  std::string error(const InputSpec& input, const ImageRecipe& recipe) {
    try {
      open_pictures(directory_.path(), input, recipe)->next();
    } catch (const Error& e) {
      return std::string(e.what()) + "; " + e.hint();
    }
    return {};
  }

  TempDir directory_{""};
  InputSpec input_{"x", onnx::DataType::float32, std::vector<std::int64_t>{-1, 3, 8, 8}};
};

TEST_F(Folder, WhatIsMissingIsAskedForInOneLine) {
  write("a.png", "x");
  EXPECT_NE(error(input_, {}).find("give --image-preset: imagenet, 01"), std::string::npos);
  input_.shape = {-1, 3, -1, -1};
  EXPECT_NE(error(input_, {ImagePreset::bytes}).find("as in --set image-size"), std::string::npos);
  input_.shape = {-1, 128};
  EXPECT_NE(error(input_, {ImagePreset::bytes}).find("takes no pictures"), std::string::npos);
  input_.shape = {-1, 3, 8, 8};
  input_.type = onnx::DataType::uint8;
  EXPECT_NE(error(input_, {ImagePreset::zero_to_one}).find("give --image-preset 255"), std::string::npos);
}

TEST_F(Folder, FilesThatAreNoPicturesAreNamed) {
  EXPECT_NE(error(input_, {ImagePreset::bytes}).find("holds no .jpg, .jpeg or .png"), std::string::npos);
  for (const char* start : {"", "text", "\xFF\xD8\xFF\xE0 cut off", "\x89PNG\r\n\x1a\n cut off"}) {
    write("class/a.jpg", start);
    EXPECT_NE(error(input_, {ImagePreset::bytes}).find("a.jpg"), std::string::npos) << start;
  }
}

TEST_F(Folder, FewPicturesAreSpreadOverTheFolder) {
  for (int i = 0; i < 10; ++i) write("class" + std::to_string(i / 5) + "/" + std::to_string(i) + ".png", "");
  EXPECT_EQ(open_pictures(directory_.path(), input_, {ImagePreset::bytes, 0, 4})->size(), 4U);
  EXPECT_EQ(open_pictures(directory_.path(), input_, {ImagePreset::bytes, 0, 40})->size(), 10U);
}

constexpr int kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;

std::string chunk(const std::string& name, const std::string& bytes) {
  return name + little_endian(bytes.size(), 4) + bytes + (bytes.size() % 2 == 1 ? std::string(1, '\0') : "");
}

std::string format(int type, int channels, int bits, int rate = 16000) {
  const auto number = [](int value, int bytes) { return little_endian(static_cast<std::uint64_t>(value), bytes); };
  const int frame = channels * bits / 8;
  return number(type, 2) + number(channels, 2) + number(rate, 4) + number(rate * frame, 4) + number(frame, 2) +
         number(bits, 2);
}

std::string wav(const std::string& fmt, const std::string& values) {
  const std::string chunks = "WAVE" + chunk("fmt ", fmt) + chunk("LIST", "odd") + chunk("data", values);
  return "RIFF" + little_endian(chunks.size(), 4) + chunks;
}

std::string sound(const std::vector<std::int16_t>& values, int channels = 1, int rate = 16000) {
  return wav(format(kPcm, channels, 16, rate), raw(values));
}

std::vector<float> read_all(const std::string& file) {
  const Waveform wave = parse_wav(as_byte_span(file), "'a.wav'");
  std::vector<float> out(wave.frames());
  read_channel(wave, 0, 0, out);
  return out;
}

void expect_refused(const std::string& file, const std::vector<std::string>& parts) {
  expect_error([&] { parse_wav(as_byte_span(file), "'a.wav'"); }, parts);
}

TEST(Wav, IntegersOfEveryWidthBecomeMinusOneToOne) {
  EXPECT_EQ(read_all(wav(format(kPcm, 1, 8), std::string("\x00\x80\xff", 3))),
            (std::vector{-1.0F, 0.0F, 127.0F / 128}));
  EXPECT_EQ(read_all(sound({-32768, 0, 16384})), (std::vector{-1.0F, 0.0F, 0.5F}));
  EXPECT_EQ(read_all(wav(format(kPcm, 1, 24), std::string("\x00\x00\x80\x00\x00\x40", 6))), (std::vector{-1.0F, 0.5F}));
  EXPECT_EQ(read_all(wav(format(kPcm, 1, 32), raw<std::int32_t>({std::numeric_limits<std::int32_t>::min(), 1 << 30}))),
            (std::vector{-1.0F, 0.5F}));
}

TEST(Wav, FloatsStayAsTheyAre) {
  EXPECT_EQ(read_all(wav(format(kFloat, 1, 32), raw<float>({-3, 0.1F}))), (std::vector{-3.0F, 0.1F}));
  const std::string extension = little_endian(22, 2) + little_endian(32, 2) + little_endian(4, 4);
  const std::string extensible =
      format(kExtensible, 1, 32) + extension + little_endian(kFloat, 2) + std::string(14, 'x');
  EXPECT_EQ(read_all(wav(extensible, raw<float>({7}))), (std::vector{7.0F}));
}

TEST(Wav, WhatIsNoSoundIsRefused) {
  expect_refused("", {"'a.wav'", "not a .wav file"});
  expect_refused("RIFF0000AVI ", {"not a .wav file"});
  expect_refused(wav(format(kPcm, 1, 12), "1234"), {"type 1 with 12 bits", "PCM of 8, 16, 24 or 32 bits"});
  expect_refused(wav(format(2, 1, 16), "1234"), {"type 2"});
  expect_refused(wav(format(kPcm, 0, 16), "1234"), {"no channel"});
  expect_refused(wav("short", "1234"), {"format is truncated"});
  expect_refused(wav(format(kPcm, 2, 16), "12"), {"holds no sound"});
  expect_refused("RIFF0000WAVE" + chunk("data", "1234"), {"values come before their format"});
  expect_refused("RIFF0000WAVE" + chunk("fmt ", format(kPcm, 1, 16)), {"no values"});
  const std::string whole = sound({1, 2, 3, 4});
  expect_refused(whole.substr(0, whole.size() - 1), {"truncated", "8 bytes", "7 are there"});
}

using WavFolderTest = DataTest;

TEST_F(WavFolderTest, FilesAreCutToTheModelsLength) {
  put("b.wav", sound({1, 2, 3, 4, 5}));
  put("a.wav", sound({7}));
  const auto source = open({input("x", {-1, 2})});
  const auto samples = all(*source);
  EXPECT_EQ(origins(samples), (std::vector<std::string>{"a.wav", "b.wav"}));
  const auto scaled = [](std::vector<float> values) {
    for (float& value : values) value /= 32768;
    return values;
  };
  EXPECT_EQ(samples[0].inputs[0].shape, (Dims{1, 2}));
  EXPECT_EQ(values(samples[0].inputs[0]), scaled({7, 0}));
  EXPECT_EQ(samples[1].inputs[0].shape, (Dims{2, 2}));
  EXPECT_EQ(values(samples[1].inputs[0]), scaled({1, 2, 3, 4}));
  EXPECT_EQ(source->notes(),
            (std::vector<std::string>{"the sound has 16000 Hz; the model does not say what it expects"}));
}

TEST_F(WavFolderTest, WindowsAreBatchesWhereTheModelTakesOne) {
  put("a.wav", sound({1, 2, 3, 4, 5}));
  const auto samples = all(*open({input("x", {1, 2})}));
  EXPECT_EQ(origins(samples), (std::vector<std::string>{"a.wav[0:1]", "a.wav[1:2]"}));
}

TEST_F(WavFolderTest, ChannelsAreAnAxis) {
  put("a.wav", sound({1, -1, 2, -2}, 2));
  const auto samples = all(*open({input("x", {-1, -1, -1})}));
  EXPECT_EQ(samples[0].inputs[0].shape, (Dims{1, 2, 2}));
  EXPECT_EQ(values(samples[0].inputs[0]), (std::vector{1 / 32768.0F, 2 / 32768.0F, -1 / 32768.0F, -2 / 32768.0F}));
  expect_error([&] { all(*open({input("x", {-1, -1})})); }, {"a.wav", "has 2 channels", "takes 1"});
}

TEST_F(WavFolderTest, ChannelsMayBeTheLastAxis) {
  put("a.wav", sound({1, 2, 3, 4}));
  const std::vector scaled{1 / 32768.0F, 2 / 32768.0F, 3 / 32768.0F, 4 / 32768.0F};
  for (const auto& [declared, shape] : std::vector<std::pair<Dims, Dims>>{{{-1, -1, 1}, {1, 4, 1}},
                                                                          {{-1, 2, 1}, {2, 2, 1}},
                                                                          {{-1, 1, -1}, {1, 1, 4}},
                                                                          {{-1, 1}, {4, 1}},
                                                                          {{4, 1}, {4, 1}},
                                                                          {{4}, {4}}}) {
    const auto samples = all(*open({input("x", declared)}));
    EXPECT_EQ(samples[0].inputs[0].shape, shape);
    EXPECT_EQ(values(samples[0].inputs[0]), scaled);
  }
  EXPECT_EQ(origins(all(*open({input("x", {2, 1})}))), (std::vector<std::string>{"a.wav[0:2]", "a.wav[2:4]"}));
}

TEST_F(WavFolderTest, WhatDoesNotFitIsRefused) {
  put("a.wav", sound({1, 2}));
  expect_error([&] { all(*open({input("x", {-1, 3, 8, 8})})); }, {"a.wav", "takes no sound"});
  expect_error(
      [&] {
        open({input("x", {-1, 2}), input("rate", {1})});
      },
      {".wav files for one input", "has 2", "--input NAME=NUMBER"});
  put("b.wav", sound({1, 2}, 1, 8000));
  expect_error([&] { all(*open({input("x", {-1, 2})})); }, {"b.wav", "8000 Hz", "16000 Hz"});
}

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
