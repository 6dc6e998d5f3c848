// Which way of reading and writing files is the fastest in a directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "store/spool.h"

namespace detent::store {

struct ProbedAccess {
  DiskAccess access = DiskAccess::buffered;
  std::string reason;  // "io_uring 1.4 GB/s, direct 1.2 GB/s, buffered 0.6 GB/s"
};

/// Writes and reads back some MiB each way, in about a tenth of a second, in files that have no name. Takes
/// `disk_bytes` at most. Buffered access stays the choice unless another is faster by a tenth.
ProbedAccess probe_access(const std::filesystem::path& directory, std::uint64_t disk_bytes);

/// The access of a spool: the one asked for, or on first use the fastest.
class AccessChoice {
 public:
  AccessChoice(std::filesystem::path directory, DiskAccess wish, std::uint64_t disk_bytes)
      : directory_(std::move(directory)), wish_(wish), disk_bytes_(disk_bytes) {}

  /// The first call may measure.
  DiskAccess get();
  /// What get() chose; nullopt before.
  std::optional<ProbedAccess> made() const;

 private:
  const std::filesystem::path directory_;
  const DiskAccess wish_;
  const std::uint64_t disk_bytes_;
  mutable std::mutex mutex_;
  std::optional<ProbedAccess> made_;
};

}  // namespace detent::store
