// Samples in memory: what a caller gives instead of a directory of files.
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

/// A dense row-major array in the machine's byte order. The bytes stay as they are for as long as a copy of `owner`
/// lives; the last one may go in any thread.
struct NamedArray {
  std::string name;  // of the input; may be empty for a model that has only one
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// Yields samples one after another. detent holds one sample for each worker, and no more. Members are called by one
/// thread at a time, which need not be the one that started the run. What they throw ends the run and reaches its
/// caller.
class SampleStream {
 public:
  virtual ~SampleStream() = default;
  /// The arrays of the next sample, one for each input of the model; nullopt after the last.
  virtual std::optional<std::vector<NamedArray>> next() = 0;
  /// Begins anew: the same samples in the same order.
  virtual void rewind() = 0;
  /// Whether rewind() works. Without it nothing can be done that reads all samples twice: fine-tuning, several
  /// segments. A few samples are kept where a few are read again.
  virtual bool can_rewind() const { return true; }
  /// How many samples there are; 0: not known. Only progress and predictions depend on it.
  virtual std::size_t size() const { return 0; }
};

}  // namespace detent
