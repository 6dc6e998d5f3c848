// Samples on their way to a device, one after the other: the host fills one buffer while the copy of the other
// and the work on the one before go on.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "cuda/device.h"
#include "store/device_route.h"

namespace detent::cuda {

/// Two places for pieces of floats that go to a device together. One thread at a time.
class Staging {
 public:
  /// Place for pieces of up to so many floats in all; more are made room for when they come.
  explicit Staging(Device& device) : device_(device) {}

  /// Queues the copy of all pieces, one after the other, in the device's second queue, and has work that is queued in
  /// its first one from now on wait for it. Returns where they will be: until the call after the next, whose copy waits
  /// for the work queued before that call. The pieces may change as soon as this returns.
  const float* put(std::span<const std::span<const float>> pieces);
  /// Has a record that rests on disk read there instead, and waits for that; work that is queued goes on meanwhile. The
  /// address begins at a block.
  const std::byte* read(store::DeviceReader& reader, const store::RecordOnDisk& record);

 private:
  struct Slot {
    HostMemory host;
    DeviceArray<float> device;
    Event copied;
    Event used;
    bool busy = false;
  };

  Slot& take_turn();
  void make_room(Slot& slot, std::size_t floats);

  Device& device_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace detent::cuda
