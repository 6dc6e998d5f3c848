// The .wav format (RIFF/WAVE, Microsoft's "Multiple Channel Audio Data and WAVE Files"): PCM of 8 to 32 bits and
// float32, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace detent::data {

struct Waveform {
  std::uint32_t rate = 0;  // frames a second
  std::uint32_t channels = 0;
  std::uint32_t bytes_per_value = 0;
  bool is_float = false;
  std::span<const std::byte> values;  // whole frames: the values of all channels, one after another
  std::uint64_t frames() const noexcept { return values.size() / bytes_per_value / channels; }
};

/// A view of the file's bytes; `where` names it in messages. Throws bad_input for anything else than a .wav file of
/// these types, and for one that is shorter than it says.
Waveform parse_wav(std::span<const std::byte> file, const std::string& where);

/// The first out.size() values of one channel from a frame on; integers become -1 to 1 (exclusive) by their type's
/// power of two. Frames behind the last are 0.
void read_channel(const Waveform& wave, std::uint32_t channel, std::uint64_t first_frame, std::span<float> out);

}  // namespace detent::data
