// A layer's stored activations, in memory or on disk.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "solve/layers/patches.h"
#include "store/resting.h"

namespace detent::solve {

/// One sample of a layer. The values stay as they are while `hold` is alive.
struct SampleRef {
  Shape input_shape;
  std::span<const float> input;        // of the quantized branch
  std::span<const float> float_input;  // of the float branch; needed only where config.drop_ratio is below 1
  std::span<const float> target;       // what the output is to be
  std::shared_ptr<const void> hold;
};

/// Called by one thread at a time.
class LayerSamples {
 public:
  virtual ~LayerSamples() = default;
  virtual std::size_t count() const = 0;
  virtual SampleRef get(std::size_t i) = 0;
  /// Where the sample rests on disk: input, target and, if there is one, the float branch's input, in this order;
  /// nullopt when it does not, and only get() has it. A device can then read it past the host's memory
  /// (store::DeviceReader).
  virtual std::optional<store::RecordOnDisk> resting(std::size_t) const { return std::nullopt; }
  /// Tells which samples get() will be called for next, so that they can be read ahead.
  virtual void prefetch(std::span<const std::size_t>) {}
};

}  // namespace detent::solve
