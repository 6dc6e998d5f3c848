#include "cuda/staging.h"

#include <algorithm>

namespace detent::cuda {

const float* Staging::put(std::span<const std::span<const float>> pieces) {
  // Work on the piece before this one has all been queued by now: its end is the moment when its place is free.
  slots_[1 - next_].used.record(device_.stream());
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  std::size_t count = 0;
  for (const auto piece : pieces) count += piece.size();
  if (slot.busy) slot.copied.wait();  // before the host writes there again
  if (slot.device.size() < count) {
    if (slot.busy) slot.used.wait();
    slot.device = {};  // both at once could pass the budget
    slot.device = {device_.memory(), count, "samples on their way"};
    slot.host = {};
    slot.host = PinnedMemory(count * sizeof(float));
  } else if (slot.busy) {
    slot.used.hold(device_.copies());
  }
  float* to = slot.host.as<float>().data();
  for (const auto piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
  device_.copies().upload(slot.device.data(), slot.host.as<float>().data(), count * sizeof(float));
  slot.copied.record(device_.copies());
  slot.copied.hold(device_.stream());
  slot.busy = true;
  return slot.device.data();
}

}  // namespace detent::cuda
