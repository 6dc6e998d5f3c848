// Calibration samples as the rest of detent sees them: one dict of named input tensors at a time.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "detent/samples.h"
#include "onnx/wire.h"

namespace detent::data {

/// A dense row-major little-endian array. `bytes` may point into a mapped file; `owner` keeps it alive.
struct Array {
  onnx::DataType type = onnx::DataType::undefined;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// What the model expects of one input. A dimension of -1 is dynamic and taken from the samples.
struct InputSpec {
  std::string name;
  onnx::DataType type = onnx::DataType::undefined;
  std::optional<std::vector<std::int64_t>> shape;  // nullopt: rank unknown
};

/// One sample: the arrays stand in the order of the input specs.
struct Sample {
  std::string origin;  // for messages: "img_03.npz", or "img_03.npy[4:8]" for a part of a file
  std::vector<Array> inputs;
};

/// Yields samples one by one; at most one file's worth is in memory. Every sample agrees with the input specs in name,
/// type and shape, or next() throws bad_input naming the file, the input, and what was expected and found.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// The next sample, or nullopt after the last.
  virtual std::optional<Sample> next() = 0;
  virtual void rewind() = 0;
  /// Passes over so many samples, or all that are left.
  virtual void skip(std::size_t count) {
    while (count > 0 && next()) --count;
  }
  /// The work known beforehand: max_samples at the most. Where files are cut into samples, or joined, all are taken to
  /// hold as much as the first one. A stream may not know it (0) before it has been read once.
  virtual std::size_t sample_count() const = 0;
  /// Lines for the report about data that was left unused, as in "2 rows of 'x.npy' do not fill the model's batch of
  /// 4".
  virtual std::vector<std::string> notes() const = 0;
};

struct SourceOptions {
  std::size_t max_samples = 0;  // stop after so many samples; 0 = all
  std::int64_t batch_size = 0;  // split arrays along axis 0 into pieces of so many rows; 0 = as stored
  /// A share of the samples: every `shares`-th, beginning with the one at `share`.
  std::size_t share = 0;
  std::size_t shares = 1;
  /// What the arrays of one .npz file may take in memory, in bytes: a compressed one may be a thousand times its size
  /// on the disk. 0: no limit.
  std::uint64_t file_memory = 0;
  /// Inputs that are the same number in every sample, and that the data do not hold: "sr=16000".
  std::vector<std::string> input_values = {};
};

/// Opens `path` as calibration data. Layouts (README of the format: docs/calibration-data.md):
///   DIR/*.npz                     one sample a file, keys are input names
///   DIR/*.npy                     models with one input: one sample a file
///   DIR/*.wav                     likewise, sound
///   DIR/<input name>/*.npy        files of the same name make a sample
///   DIR/test_data_set_*/input_N.pb  ONNX test data: N counts the model's inputs
///   a single .npy, .npz or .wav file, or a single test_data_set folder
/// Throws bad_input when nothing is there, the layout is mixed, or it cannot feed the inputs.
std::unique_ptr<SampleSource> open_samples(const std::filesystem::path& path, std::vector<InputSpec> inputs,
                                           const SourceOptions& options = {});

/// Samples as the stream hands them over, named "sample 1" and so on in messages. rewind() after no more than one
/// sample asks nothing of the stream; after more it throws usage when the stream cannot begin anew.
std::unique_ptr<SampleSource> open_samples(SampleStream& stream, std::vector<InputSpec> inputs,
                                           const SourceOptions& options = {});

// The tap: a pass-through operator inside the graph that hands each chosen tensor, in place, to a receiver the moment
// it is produced. The runtime then frees the tensor as in plain inference.

/// A tensor in the runtime's memory; valid during the call only.
struct TensorView {
  onnx::DataType type = onnx::DataType::undefined;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> bytes;
  /// The same bytes, as the nodes that read the value will get them: a receiver may change them in a session of
  /// SessionOptions::edits.
  std::span<std::byte> passed_on = {};
};

/// A tensor in the memory of the device that the session computes on. It is there once what the device's stream holds
/// is done, so what reads it goes to that stream too; valid for what is put there during the call.
struct DeviceTensorView {
  onnx::DataType type = onnx::DataType::undefined;
  std::span<const std::int64_t> shape;
  const void* address = nullptr;  // not to be read by the host
  std::size_t size = 0;           // bytes
};

/// Runs fn(0) … fn(parts-1) on the runtime's own threads and waits for all of them.
using ParallelFor = std::function<void(std::size_t parts, const std::function<void(std::size_t)>& fn)>;

class TapReceiver {
 public:
  virtual ~TapReceiver() = default;
  /// `tap` is the position of the value in the list of tapped values. Calls for one run come one at a time, in the
  /// thread that called Session::run(). An exception ends the run and comes out of Session::run().
  virtual void receive(std::size_t tap, const TensorView& tensor, const ParallelFor& parallel) = 0;
  /// The same in sessions of SessionOptions::device, whose receivers must have it.
  virtual void receive_on_device(std::size_t tap, const DeviceTensorView& tensor);
};

/// Uninitialised bytes, aligned for every element type.
struct Buffer {
  std::shared_ptr<std::byte[]> memory;
  std::span<std::byte> bytes;
};

/// Throws resource, naming `where` the data came from, when there is no memory for it.
Buffer allocate(std::uint64_t size, const std::string& where);

/// The array itself when its bytes are aligned for its element type, else one with a copy of them.
Array aligned(Array array, const std::string& where);

/// Bytes of an array of this type and shape; throws bad_input when they cannot be counted in 63 bits.
std::uint64_t size_of(onnx::DataType type, std::span<const std::int64_t> shape, const std::string& where);

// The elements of a float32 array, and those of other floating-point types as such.

inline std::span<const float> floats(const Array& array) {
  return {reinterpret_cast<const float*>(array.bytes.data()), array.bytes.size() / sizeof(float)};
}

/// Whether a type is one of floating point, of 16, 32 or 64 bits.
bool holds_floats(onnx::DataType type);
/// One of these, a type of integers of 8 bits or more, or bool.
bool holds_numbers(onnx::DataType type);
/// Of an array of such a type.
std::vector<float> to_floats(const Array& array);
/// The same without a copy where the array has float32; else `owned` holds them.
inline std::span<const float> floats_in(const Array& array, std::vector<float>& owned) {
  if (array.type == onnx::DataType::float32) return floats(array);
  owned = to_floats(array);
  return owned;
}
/// An array of such a type as float16, bfloat16 or float32; any other as it is.
Array as_floats(const Array& array, onnx::DataType type);

/// The inputs of the sample at this position, for what was lost and has to be computed again. The source is read from
/// its start and left behind the sample. Throws bad_input when it has fewer.
inline std::vector<Array> sample_inputs(SampleSource& source, std::size_t wanted) {
  source.rewind();
  std::optional<Sample> sample;
  for (std::size_t number = 0; number <= wanted; ++number) sample = source.next();
  if (!sample) throw bad_input(fmt::format("calibration sample {} no longer exists", wanted + 1));
  return std::move(sample->inputs);
}

// Wording shared by the messages of this room: names made safe to print, shapes, inputs; and the order of file names.

/// The path in quotes.
std::string quoted(const std::filesystem::path& path);

/// "[1, 3, ?, ?]"; dynamic dimensions print as "?".
std::string describe_shape(std::span<const std::int64_t> shape);

/// "float32 [1, 3]".
std::string describe(onnx::DataType type, std::span<const std::int64_t> shape);

/// "float32 [?, 3]", or "float32 of any shape" when the rank is unknown.
std::string describe(const InputSpec& input);

/// "the model's inputs: 'x' float32 [?, 3], 'mask' bool [?]"; long lists are cut.
std::string describe_inputs(std::span<const InputSpec> inputs);

/// Orders names as people do: "img_2" before "img_10". A total order: equal only for equal texts.
bool natural_less(std::string_view a, std::string_view b) noexcept;

}  // namespace detent::data
