// Samples in memory, as an alternative to a directory of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace detent {

/// Element types of inputs, numbered as in ONNX (TensorProto.DataType).
enum class ElementType : std::int32_t {
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
  bfloat16 = 16,
};

/// A dense row-major array in the machine's byte order. The bytes must not change while a copy of `owner` exists; the
/// last copy may be destroyed in any thread.
struct NamedArray {
  std::string name;  // of the input; may be empty for a model with one input
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// Yields samples one after another. detent keeps at most one sample for each worker. Members are called by one thread
/// at a time, which need not be the thread that started the run. An exception ends the run and is rethrown to its
/// caller.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  /// The arrays of the next sample, one for each input of the model; nullopt after the last.
  virtual std::optional<std::vector<NamedArray>> next() = 0;
  /// Starts again with the same samples in the same order.
  virtual void rewind() = 0;
  /// Whether rewind() works. Without it quantize() keeps the samples in files while it runs; calibrate() in several
  /// segments, which reads them again, refuses such a stream.
  virtual bool can_rewind() const { return true; }
  /// Number of samples; 0: unknown. Used for progress and predictions only.
  virtual std::size_t size() const { return 0; }
};

}  // namespace detent
