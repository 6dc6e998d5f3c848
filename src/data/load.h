// Reads one unit of a file set: the arrays of all inputs, in the formats that are no arrays of numpy too, each held
// against its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/layout.h"
#include "data/sample.h"

namespace detent::data {

// Holds one array's type and shape against what the model expects of the input.

enum class Fit {
  exact,
  rows_differ,  // only the length of axis 0 is not what the model fixes: splitting or joining can mend it
};

/// Throws bad_input on a mismatch. A single row that lacks the batch axis gets a leading 1 in `shape`.
Fit fit_to_input(const InputSpec& input, onnx::DataType type, std::vector<std::int64_t>& shape,
                 const std::string& where);

[[noreturn]] void throw_mismatch(const InputSpec& input, onnx::DataType type, const std::vector<std::int64_t>& shape,
                                 const std::string& where);

// Reads one unit of a file set: the arrays of all inputs, each checked against its input before it is read.

struct LoadedArray {
  Array array;
  Fit fit = Fit::exact;
  std::string where;                       // the file, for messages
  std::shared_ptr<const MappedFile> file;  // set when the bytes lie in it
};

struct LoadedFile {
  std::string origin;
  std::vector<LoadedArray> inputs;  // in the order of the input specs
  std::uint32_t rate = 0;           // of sound, in frames a second; 0: no sound
};

/// Throws resource when a .npz or .wav file would take more than `memory` bytes (0: no limit).
LoadedFile load_file(const FileSet& files, std::size_t index, std::span<const InputSpec> inputs, std::uint64_t memory);

// The input_N.pb files of ONNX test data: one serialized TensorProto.

struct PbTensor {
  std::string name;  // may be empty
  Array array;       // owned by `file` when the bytes lie in it
};

/// Throws bad_input on damage, on strings, on types below one byte and on data kept in another file.
PbTensor read_pb(const std::shared_ptr<const MappedFile>& file);

/// The same over memory, which is copied; `where` names it in messages.
PbTensor parse_pb(std::string_view message, const std::string& where);

// The .wav format (RIFF/WAVE, Microsoft's "Multiple Channel Audio Data and WAVE Files"): PCM of 8 to 32 bits and
// float32, little-endian.

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
