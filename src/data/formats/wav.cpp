#include "data/formats/wav.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"

namespace detent::data {
namespace {

constexpr std::size_t kTag = 4;         // bytes of a chunk's name
constexpr std::size_t kChunk = 8;       // name and size
constexpr std::size_t kFormat = 16;     // the part of "fmt " that every file has
constexpr std::size_t kSubFormat = 24;  // where the type stands in an extensible "fmt "
constexpr std::uint64_t kExtensible = 0xFFFE, kPcm = 1, kFloat = 3;

std::uint64_t number(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

Error damaged(const std::string& where, std::string_view how) {
  return bad_input(fmt::format("{}: {}", where, how), "write the file again");
}

Waveform format_of(std::span<const std::byte> chunk, const std::string& where) {
  if (chunk.size() < kFormat) throw damaged(where, "its format is truncated");
  std::uint64_t type = number(chunk.subspan(0, 2));
  const std::uint64_t channels = number(chunk.subspan(2, 2)), bits = number(chunk.subspan(14, 2));
  if (type == kExtensible && chunk.size() >= kSubFormat + 2) type = number(chunk.subspan(kSubFormat, 2));
  const bool is_float = type == kFloat && bits == 32;
  if (!is_float && !(type == kPcm && bits >= 8 && bits <= 32 && bits % 8 == 0))
    throw bad_input(fmt::format("{}: values of type {} with {} bits", where, type, bits),
                    "save it as PCM of 8, 16, 24 or 32 bits, or as float32");
  if (channels == 0) throw damaged(where, "it has no channel");
  return {.rate = static_cast<std::uint32_t>(number(chunk.subspan(4, 4))),
          .channels = static_cast<std::uint32_t>(channels),
          .bytes_per_value = static_cast<std::uint32_t>(bits / 8),
          .is_float = is_float,
          .values = {}};
}

float value_at(const Waveform& wave, std::uint64_t index) {
  const auto bytes = wave.values.subspan(index * wave.bytes_per_value, wave.bytes_per_value);
  if (wave.is_float) {
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  const auto raw = static_cast<std::int64_t>(number(bytes));
  const auto half = std::int64_t{1} << (8 * wave.bytes_per_value - 1);
  // Bytes are stored with an offset, wider integers in two's complement.
  const std::int64_t value = wave.bytes_per_value == 1 ? raw - half : raw >= half ? raw - 2 * half : raw;
  return static_cast<float>(static_cast<double>(value) / static_cast<double>(half));
}

}  // namespace

Waveform parse_wav(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kChunk + kTag || as_text(file.first(kTag)) != "RIFF" ||
      as_text(file.subspan(kChunk, kTag)) != "WAVE")
    throw damaged(where, "not a .wav file (RIFF/WAVE)");
  std::optional<Waveform> wave;
  std::size_t at = kChunk + kTag;
  while (file.size() - at >= kChunk) {
    const auto name = as_text(file.subspan(at, kTag));
    const auto size = static_cast<std::size_t>(number(file.subspan(at + kTag, kTag)));
    at += kChunk;
    if (size > file.size() - at)
      throw damaged(where, fmt::format("truncated: a part of {} bytes, of which {} are there", size, file.size() - at));
    const auto chunk = file.subspan(at, size);
    if (name == "fmt ") wave = format_of(chunk, where);
    if (name == "data") {
      if (!wave) throw damaged(where, "its values come before their format");
      wave->values = chunk.first(size - size % (std::size_t{wave->bytes_per_value} * wave->channels));
      if (wave->values.empty()) throw bad_input(fmt::format("{}: holds no sound", where), "leave the file out");
      return *wave;
    }
    at += std::min(size + size % 2, file.size() - at);  // parts begin at even places
  }
  throw damaged(where, "it has no values");
}

void read_channel(const Waveform& wave, std::uint32_t channel, std::uint64_t first_frame, std::span<float> out) {
  const std::uint64_t frames = wave.frames();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t frame = first_frame + i;
    out[i] = frame < frames ? value_at(wave, frame * wave.channels + channel) : 0.0F;
  }
}

}  // namespace detent::data
