// From disk to the memory of a device by way of the host's: many reads and copies are under way at a time.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "store/io_queue.h"
#include "store/resting.h"

namespace detent::store {

/// Buffers of the host that a device copies from. One thread at a time.
class BounceBuffers {
 public:
  static constexpr std::size_t kPiece = std::size_t{1} << 20;
  /// As many for reads as the disk takes, and as many for copies.
  static constexpr std::size_t kSlots = 2 * IoQueue::kDepth;

  virtual ~BounceBuffers() = default;
  /// kPiece bytes that begin at a block.
  virtual std::span<std::byte> slot(std::size_t number) = 0;
  /// Begins to copy the first bytes of a slot to the device.
  virtual void upload(std::size_t number, std::size_t bytes, void* to) = 0;
  /// Waits for the last copy from the slot; returns at once when there was none.
  virtual void wait(std::size_t number) = 0;
};

/// Reads payloads through such buffers.
class BounceReader {
 public:
  /// `access` is not automatic. `buffers` must outlive this. Throws resource when the system refuses the access.
  BounceReader(DiskAccess access, BounceBuffers& buffers);

  /// Returns when all of the payload is at `to`, its checksum verified. Throws resource when the file cannot be read
  /// or is damaged; no copy is under way then.
  void read(const RecordOnDisk& record, void* to);

 private:
  DiskAccess access_;
  BounceBuffers& buffers_;
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace detent::store
