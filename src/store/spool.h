// The spool: tensors on their way from one segment of a model to later ones, in memory as long as there is room and on
// disk beyond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "onnx/wire.h"

namespace detent::store {

// Where a record rests on disk, for those who read it by other ways than Spool::get().

/// The payload of a record: whole blocks (kBlock) of a file, with the arrays at places of it. Good until the record is
/// released or put again.
struct RecordOnDisk {
  struct Part {
    onnx::DataType type = onnx::DataType::undefined;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  // from the payload's
    std::uint64_t size = 0;
  };

  std::filesystem::path file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // XXH3-64 of the payload
  std::vector<Part> parts;
};

/// Where records are kept: memory levels 0, 1 and 2 on the command line.
enum class Residency { memory, memory_then_disk, disk };

/// How files are read and written. `automatic` measures the file system for a moment and takes the fastest.
enum class DiskAccess { automatic, buffered, direct, uring };

struct SpoolOptions {
  std::filesystem::path directory;  // private to the run; must exist. Files stay there until their lane is closed
  Residency residency = Residency::memory_then_disk;
  std::uint64_t memory_bytes = std::numeric_limits<std::uint64_t>::max();  // for records kept in memory
  /// For records being written or read: a half for each. A half holds one record at least, however large it is.
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  std::uint64_t disk_bytes = std::numeric_limits<std::uint64_t>::max();
  std::size_t prefetch = 2;  // samples read ahead; 0: each is read when it is asked for
  DiskAccess access = DiskAccess::automatic;
};

struct SpoolUse {
  std::uint64_t memory_peak = 0;    // records and buffers; without what get() has returned
  std::uint64_t disk_peak = 0;      // with what was allocated ahead
  std::uint64_t bytes_written = 0;  // to disk
  std::uint64_t bytes_read = 0;     // from disk
  double write_wait_seconds = 0;    // time that put() and sync() waited for the disk
  double read_wait_seconds = 0;     // time that readers waited for the disk
  DiskAccess access = DiskAccess::buffered;
  std::string access_reason;  // the reason for the choice, for the report; empty while nothing was on disk
};

/// The arrays that one segment hands on for one sample.
using Record = std::vector<data::Array>;

/// Records stand in lanes: all that one segment makes and the same later segments read. All member functions may be
/// called from several threads. They throw resource when the disk or the spool's share of it is full, naming what was
/// needed and the option to change, the same for a read error, and interrupted never; an error of a write in the
/// background comes out of the next call.
class Spool {
 public:
  using Lane = std::size_t;

  explicit Spool(SpoolOptions options);
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  /// Finishes pending writes; only sync() reports their errors.
  ~Spool();

  /// Names may hold letters, digits, '-' and '_'. Takes up the records of a file that an earlier process left under
  /// this name: those that are whole as far as their headers tell.
  Lane open(const std::string& name);

  bool holds(Lane lane, std::size_t sample) const;

  /// Takes the record over: arrays that own their memory are kept as they are, so the caller must not write to them
  /// later. May wait until buffers are free.
  void put(Lane lane, std::size_t sample, Record record);

  /// The record, with its checksum verified; nullopt when it is not there or damaged (damaged ones are forgotten, and
  /// counted in `damaged`).
  std::optional<Record> get(Lane lane, std::size_t sample);

  /// Where the record is on disk, with its header verified; nullopt when it is not there, damaged, or being written.
  std::optional<RecordOnDisk> resting(Lane lane, std::size_t sample) const;

  /// Tells that get() will be called for samples `first`, `first`+1, … `end`-1 of these lanes in this order, so that up
  /// to SpoolOptions::prefetch samples are read ahead of the latest get(). Replaces the order before.
  void prefetch(std::vector<Lane> lanes, std::size_t first, std::size_t end);

  /// Memory of a record is given back at once, its disk space where the file system can.
  void release(Lane lane, std::size_t sample);
  /// Whether the record is only in memory, and would be lost with this process.
  bool in_memory(Lane lane, std::size_t sample) const;
  /// Forgets all of the lane and removes its file.
  void close(Lane lane);

  /// Returns when all writes have finished and files are durable.
  void sync();

  std::uint64_t damaged() const;
  SpoolUse use() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detent::store
