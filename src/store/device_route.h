// Which way a device reads what rests on disk: past the host's memory (GPUDirect Storage), or through it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "detent/device.h"
#include "store/io_queue.h"
#include "store/spool.h"

namespace detent::store {

/// Reads payloads of records into the memory of a device. One thread at a time.
class DeviceReader {
 public:
  virtual ~DeviceReader() = default;
  /// Returns when all of record.size bytes are at `to`, an address of the device that begins at a multiple of kBlock.
  /// Throws resource when the file cannot be read or, where its bytes pass the host, is damaged; device when the device
  /// fails.
  virtual void read(const RecordOnDisk& record, void* to) = 0;
};

struct DeviceRoute {
  bool direct_storage = false;
  DiskAccess access = DiskAccess::buffered;  // of the host's reads, where they are the way
  std::string reason;                        // what the choice rests on, for the report

  /// "GPUDirect Storage", or "pinned buffers filled by io_uring" and the like.
  std::string name() const;
};

/// What a choice asks of the machine. Each is called when its answer matters, and only then.
struct RouteProbe {
  /// Why files of the directory cannot be read by GPUDirect Storage; empty: they can.
  std::function<std::string()> refusal;
  /// The fastest access of the host.
  std::function<ProbedAccess()> access;
  /// Bytes per second into the device's memory.
  std::function<double(const DeviceRoute& route)> rate;
};

/// `on`: GPUDirect Storage, or device is thrown with the reason. `off`: pinned buffers. `automatic`: the faster of the
/// two where both work; pinned buffers must be faster by a tenth.
DeviceRoute choose_route(GdsMode mode, const RouteProbe& probe);

/// A payload of some MiB in a file of its own in the directory, not in the page cache, for measuring. The file goes
/// with the object. Throws resource when it cannot be written.
class ProbePayload {
 public:
  explicit ProbePayload(const std::filesystem::path& directory);
  ProbePayload(const ProbePayload&) = delete;
  ProbePayload& operator=(const ProbePayload&) = delete;
  ~ProbePayload();

  static constexpr std::uint64_t kBytes = std::uint64_t{32} << 20;
  const RecordOnDisk& record() const noexcept { return record_; }
  /// Forgets the pages that reading has left.
  void drop_pages() const;

 private:
  RecordOnDisk record_;
};

/// Bytes per second of reading the payload, the better of two times. `to` takes its bytes.
double measure_reads(DeviceReader& reader, const ProbePayload& payload, void* to);

/// A reader with memory of its own to read into, for those that drive no device themselves.
class DeviceStorage : public DeviceReader {
 public:
  /// Memory of the device for `size` bytes, the same each time; what was there before may be gone. Throws resource.
  virtual void* memory(std::size_t size) = 0;
  virtual const DeviceRoute& route() const = 0;
};

/// Loads the plugin and chooses the way, see choose_route(). Throws device where there is no such device, or another
/// version of the plugin, or where `mode` is on and cannot be.
std::unique_ptr<DeviceStorage> open_cuda_storage(int device, GdsMode mode, const std::filesystem::path& directory);

/// What the plugin offers this room, by its entry symbol.
struct StorageCalls {
  std::unique_ptr<DeviceStorage> (*open)(int device, GdsMode mode, const std::filesystem::path& directory);
};
using StorageEntry = const StorageCalls*(int version);  // null: the plugin is of another version
inline constexpr const char* kStorageEntryName = "detent_cuda_storage";
/// Raised when anything above changes. Plugin and binary come from the same compiler.
inline constexpr int kStorageVersion = 1;

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
