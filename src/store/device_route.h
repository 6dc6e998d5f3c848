// Which way a device reads what rests on disk: past the host's memory (GPUDirect Storage), or through it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "detent/device.h"
#include "store/probe.h"
#include "store/resting.h"

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

}  // namespace detent::store
