// The file of one lane: records one after the other, and how much of the disk they may take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "base/file.h"
#include "store/record_format.h"
#include "store/spool.h"

namespace detent::store {

/// The share of the disk that all lanes of a spool have together: what records take, and what was allocated ahead.
class DiskBudget {
 public:
  explicit DiskBudget(std::uint64_t limit) : limit_(limit) {}

  /// Throws resource when records would take more than the limit.
  void charge(std::uint64_t bytes);
  bool has_room(std::uint64_t bytes) const;
  /// For records that are there already.
  void charge_anyway(std::uint64_t bytes);
  void give_back(std::uint64_t bytes);
  /// Up to `wish` bytes to allocate ahead, as far as there is room.
  std::uint64_t borrow_ahead(std::uint64_t wish);
  void give_back_ahead(std::uint64_t bytes);

  std::uint64_t limit() const noexcept { return limit_; }
  /// Whether records and what is allocated ahead take more than the limit together.
  bool over() const;
  std::uint64_t peak() const;

 private:
  void note_peak();

  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::uint64_t used_ = 0;
  std::uint64_t ahead_ = 0;
  std::uint64_t peak_ = 0;
};

/// May be used by several threads, but only one may append.
class LaneFile {
 public:
  /// Creates nothing yet.
  LaneFile(std::filesystem::path path, DiskBudget& budget) : path_(std::move(path)), budget_(&budget) {}
  LaneFile(const LaneFile&) = delete;
  LaneFile& operator=(const LaneFile&) = delete;
  /// Closes the file without what was allocated ahead. All of its charge is given back.
  ~LaneFile();

  const std::filesystem::path& path() const noexcept { return path_; }

  struct Found {
    std::vector<RecordHeader> records;  // in their order in the file
    std::uint64_t damaged = 0;          // places that hold something else
  };
  /// The records of a file that is there already; what is left of a torn one at its end is cut off.
  Found recover();

  /// The descriptor for reading and writing this way; creates the file. Throws resource.
  int descriptor(DiskAccess access);

  /// Room for `size` bytes at the end: their offset. Throws resource when the disk is full.
  std::uint64_t append(std::uint64_t size);
  /// Gives back what was allocated ahead.
  void trim() noexcept;

  /// Counts a record against the budget; throws resource when that is spent.
  void charge(std::uint64_t bytes);
  void charge_anyway(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) noexcept;
  /// Gives back the blocks of a record that is not needed any more, and what it was charged; neither where the file
  /// system cannot.
  void free(const Extent& extent) noexcept;

  /// Makes durable what was appended since the last time.
  void sync();
  /// Removes the file and gives its charge back, whatever is still under way in it.
  void remove() noexcept;

  /// The error for an errno of a write to this file.
  [[noreturn]] void throw_write_error(int code, std::uint64_t size) const;

 private:
  void allocate_ahead(std::uint64_t end);

  const std::filesystem::path path_;
  DiskBudget* const budget_;
  std::mutex mutex_;
  std::uint64_t charged_ = 0;
  bool removed_ = false;
  UniqueFd fd_;
  int flags_ = 0;                // O_DIRECT or 0
  std::uint64_t end_ = 0;        // of the records
  std::uint64_t allocated_ = 0;  // at least end_
  bool can_allocate_ = true;
  bool dirty_ = false;
  int sync_error_ = 0;    // the system tells of a failed fsync only once, but what it lost stays lost
  bool created_ = false;  // and its directory not synced since
};

}  // namespace detent::store
