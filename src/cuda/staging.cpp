#include "cuda/staging.h"

#include <algorithm>

#include "store/aligned_buffer.h"

namespace detent::cuda {

Staging::Slot& Staging::take_turn() {
  // Work on the piece before this one has all been queued by now: its end is the moment when its place is free.
  slots_[1 - next_].used.record(device_.stream());
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  if (slot.busy) slot.copied.wait();  // before the host writes there again
  return slot;
}

void Staging::make_room(Slot& slot, std::size_t floats) {
  if (slot.busy) slot.used.wait();
  slot.device = {};  // both at once could pass the budget
  slot.device = {device_.memory(), floats, "samples on their way"};
}

const float* Staging::put(std::span<const std::span<const float>> pieces) {
  Slot& slot = take_turn();
  std::size_t count = 0;
  for (const auto piece : pieces) count += piece.size();
  if (slot.device.size() < count) {
    make_room(slot, count);
  } else if (slot.busy) {
    slot.used.hold(device_.copies());
  }
  if (slot.host.size() < count * sizeof(float)) {
    slot.host = {};
    slot.host = HostMemory(count * sizeof(float), device_.pins());
  }
  const std::size_t bytes = count * sizeof(float);
  device_.clock().on_host(DeviceLane::gather, device_.pins() ? "sample into pinned memory" : "sample into memory",
                          bytes, [&] {
                            float* to = slot.host.as<float>().data();
                            for (const auto piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
                          });
  device_.clock().queued(device_.copies(), DeviceLane::copy, "sample", {bytes, 0},
                         [&] { device_.copies().upload(slot.device.data(), slot.host.as<float>().data(), bytes); });
  slot.copied.record(device_.copies());
  slot.copied.hold(device_.stream());
  slot.busy = true;
  return slot.device.data();
}

const std::byte* Staging::read(store::DeviceReader& reader, const store::RecordOnDisk& record) {
  Slot& slot = take_turn();
  const std::size_t floats = (record.size + store::kBlock) / sizeof(float);
  if (slot.device.size() < floats) {
    make_room(slot, floats);
  } else if (slot.busy) {
    slot.used.wait();
  }
  auto* at = reinterpret_cast<std::byte*>(slot.device.data());
  at += (store::kBlock - reinterpret_cast<std::uintptr_t>(at) % store::kBlock) % store::kBlock;
  device_.clock().on_host(DeviceLane::read, "stored sample", record.size, [&] { reader.read(record, at); });
  slot.copied.record(device_.copies());
  slot.busy = true;
  return at;
}

}  // namespace detent::cuda
