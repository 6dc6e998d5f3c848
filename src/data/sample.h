// Calibration samples as the rest of detent sees them: one dict of named input tensors at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "detent/samples.h"
#include "onnx/types.h"

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

}  // namespace detent::data
