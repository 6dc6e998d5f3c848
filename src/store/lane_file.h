// How tensors lie on disk: records, their hashes, and the files that records are written to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "store/buffers.h"
#include "store/spool.h"

namespace detent::store {

// How a record stands in a lane's file: one header in whole blocks, then its arrays (docs/spool.md).

/// Takes a record over: copies what does not own its memory.
Record owned(Record record);
std::uint64_t byte_count(const Record& record) noexcept;

/// Where a record stands in its file.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  // header and payload, whole blocks
  std::uint64_t header_size = 0;
};

/// Arrays of this size or more begin at a block of the file.
inline constexpr std::size_t kLargeArray = std::size_t{64} << 10;

/// Sizes of a record in a file. `begins` holds where in the payload each array begins.
struct RecordLayout {
  std::uint64_t header_size = 0;
  std::uint64_t payload_size = 0;  // whole blocks
  std::vector<std::uint64_t> begins;

  std::uint64_t size() const { return header_size + payload_size; }
};
RecordLayout layout_of(const Record& record);

/// `to` is as long as the header.
void write_header(std::span<std::byte> to, const Record& record, const RecordLayout& layout, std::size_t sample,
                  std::uint64_t offset, std::uint64_t payload_hash);

struct RecordHeader {
  std::size_t sample = 0;
  Extent extent;
  std::uint64_t payload_hash = 0;
  Record arrays;                      // bytes and owners are empty
  std::vector<std::uint64_t> begins;  // of the arrays, in the payload
  std::vector<std::uint64_t> sizes;
};

/// The size of the header that begins with this block; nullopt when none does.
std::optional<std::uint64_t> header_size(std::span<const std::byte> block) noexcept;

/// The header that is all of `bytes` and stands at `offset` of its file; nullopt when it is damaged.
std::optional<RecordHeader> read_header(std::span<const std::byte> bytes, std::uint64_t offset);

/// Where the arrays of a record stand in its file; nullopt when its header cannot be read or is not this record's.
std::optional<RecordOnDisk> read_resting(const std::filesystem::path& file, std::size_t sample, const Extent& extent);

/// The arrays of a record that was read whole into `buffer`, which they keep alive.
Record to_record(const RecordHeader& header, const std::shared_ptr<const AlignedBuffer>& buffer);

// The file of one lane: records one after the other, and how much of the disk they may take.

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

/// The checksum of a record's payload: XXH3-64, taken piece by piece.
class PayloadHash {
 public:
  PayloadHash();
  void add(std::span<const std::byte> bytes) noexcept;
  std::uint64_t result() const noexcept;

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace detent::store
