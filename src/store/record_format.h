// How a record stands in a lane's file: one header in whole blocks, then its arrays (docs/spool.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/sample.h"
#include "store/aligned_buffer.h"
#include "store/resting.h"
#include "store/spool.h"

namespace detent::store {

/// An array as it rests; type and shape are those that the caller gave and gets back.
struct StoredArray {
  data::Array array;
  bool narrowed = false;  // float32, kept as bfloat16
};
using StoredRecord = std::vector<StoredArray>;

/// Takes a record over: copies what does not own its memory, narrows float32 arrays where `half_precision` asks for it.
StoredRecord to_stored(Record record, bool half_precision);
Record from_stored(const StoredRecord& record);
std::uint64_t byte_count(const StoredRecord& record) noexcept;

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
RecordLayout layout_of(const StoredRecord& record);

/// `to` is as long as the header.
void write_header(std::span<std::byte> to, const StoredRecord& record, const RecordLayout& layout, std::size_t sample,
                  std::uint64_t offset, std::uint64_t payload_hash);

struct RecordHeader {
  std::size_t sample = 0;
  Extent extent;
  std::uint64_t payload_hash = 0;
  StoredRecord arrays;                // bytes and owners are empty
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

}  // namespace detent::store
