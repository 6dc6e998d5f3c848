#include "data/load.h"

#include <limits>
#include <string>
#include <vector>

#include "base/text.h"
#include "support.h"

namespace detent::data::test {
namespace {

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

}  // namespace
}  // namespace detent::data::test
