#include "store/record_format.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "store/bfloat16.h"

namespace detent::store {
namespace {

constexpr std::uint64_t kMagic = 0x1A6C6F6F70733164;  // "d1spool\x1a"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kArrayAlignment = 64;
constexpr std::uint64_t kLargestHeader = std::uint64_t{1} << 30;
constexpr std::uint64_t kLargestPayload = std::uint64_t{1} << 62;
constexpr std::uint32_t kNarrowed = 1;

struct FixedPart {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t array_count;
  std::uint64_t header_size;
  std::uint64_t header_hash;  // of the whole header with 0 here
  std::uint64_t sample;
  std::uint64_t offset;  // of the record itself, so that a copy of a file inside a payload is no record
  std::uint64_t payload_size;
  std::uint64_t payload_hash;
};
static_assert(sizeof(FixedPart) == 64);

struct ArrayPart {  // followed by the dimensions, 8 bytes each
  std::int32_t type;
  std::uint32_t flags;
  std::uint64_t begin;
  std::uint64_t size;
  std::uint64_t rank;
};
static_assert(sizeof(ArrayPart) == 32);

std::uint64_t header_hash(std::span<const std::byte> bytes, FixedPart fixed) {
  fixed.header_hash = 0;
  const std::uint64_t seed = XXH3_64bits(&fixed, sizeof(fixed));
  return XXH3_64bits_withSeed(bytes.data() + sizeof(fixed), bytes.size() - sizeof(fixed), seed);
}

// Reads and writes plain values one after the other.
template <typename T>
bool take(std::span<const std::byte>& from, T& value) {
  if (from.size() < sizeof(T)) return false;
  std::memcpy(&value, from.data(), sizeof(T));
  from = from.subspan(sizeof(T));
  return true;
}
template <typename T>
void append(std::span<std::byte>& to, const T& value) {
  std::memcpy(to.data(), &value, sizeof(T));
  to = to.subspan(sizeof(T));
}

data::Array in_buffer(data::Array array, const std::shared_ptr<const AlignedBuffer>& buffer, std::size_t size) {
  array.bytes = buffer->bytes().first(size);
  array.owner = buffer;
  return array;
}

data::Array widened(data::Array array) {
  const auto buffer = std::make_shared<const AlignedBuffer>(2 * array.bytes.size());
  widen(array.bytes, buffer->bytes());
  const std::size_t size = 2 * array.bytes.size();
  return in_buffer(std::move(array), buffer, size);
}

StoredArray to_stored(data::Array array, bool half_precision) {
  const std::size_t size = array.bytes.size();
  if (half_precision && array.type == onnx::DataType::float32 && size % 4 == 0) {
    const auto buffer = std::make_shared<const AlignedBuffer>(size / 2);
    narrow(array.bytes, buffer->bytes());
    return {in_buffer(std::move(array), buffer, size / 2), true};
  }
  if (array.owner || size == 0) return {std::move(array), false};
  const auto buffer = std::make_shared<const AlignedBuffer>(size);
  std::memcpy(buffer->bytes().data(), array.bytes.data(), size);
  return {in_buffer(std::move(array), buffer, size), false};
}

std::optional<StoredArray> read_array(std::span<const std::byte>& bytes, RecordHeader& header,
                                      std::uint64_t payload_size) {
  ArrayPart part;
  if (!take(bytes, part) || part.rank > bytes.size() / 8) return std::nullopt;
  if (part.begin > payload_size || part.size > payload_size - part.begin) return std::nullopt;
  StoredArray stored;
  stored.narrowed = (part.flags & kNarrowed) != 0;
  stored.array.type = static_cast<onnx::DataType>(part.type);
  stored.array.shape.resize(part.rank);
  for (std::int64_t& dim : stored.array.shape) take(bytes, dim);
  header.begins.push_back(part.begin);
  header.sizes.push_back(part.size);
  return stored;
}

}  // namespace

StoredRecord to_stored(Record record, bool half_precision) {
  StoredRecord stored;
  stored.reserve(record.size());
  for (data::Array& array : record) stored.push_back(to_stored(std::move(array), half_precision));
  return stored;
}

Record from_stored(const StoredRecord& record) {
  Record out;
  out.reserve(record.size());
  for (const StoredArray& stored : record) out.push_back(stored.narrowed ? widened(stored.array) : stored.array);
  return out;
}

std::uint64_t byte_count(const StoredRecord& record) noexcept {
  std::uint64_t bytes = 0;
  for (const StoredArray& stored : record) bytes += stored.array.bytes.size();
  return bytes;
}

RecordLayout layout_of(const StoredRecord& record) {
  RecordLayout layout;
  std::uint64_t header = sizeof(FixedPart);
  std::uint64_t end = 0;
  for (const StoredArray& stored : record) {
    header += sizeof(ArrayPart) + 8 * stored.array.shape.size();
    // Large ones begin at a block, so that they can go to disk from where they are.
    const std::uint64_t alignment = stored.array.bytes.size() < kLargeArray ? kArrayAlignment : kBlock;
    const std::uint64_t begin = (end + alignment - 1) / alignment * alignment;
    layout.begins.push_back(begin);
    end = begin + stored.array.bytes.size();
  }
  layout.header_size = whole_blocks(header);
  layout.payload_size = whole_blocks(end);
  return layout;
}

void write_header(std::span<std::byte> to, const StoredRecord& record, const RecordLayout& layout, std::size_t sample,
                  std::uint64_t offset, std::uint64_t payload_hash) {
  std::fill(to.begin(), to.end(), std::byte{0});
  FixedPart fixed{kMagic,
                  kVersion,
                  static_cast<std::uint32_t>(record.size()),
                  layout.header_size,
                  0,
                  sample,
                  offset,
                  layout.payload_size,
                  payload_hash};
  std::span<std::byte> rest = to.subspan(sizeof(fixed));
  for (std::size_t i = 0; i < record.size(); ++i) {
    const data::Array& array = record[i].array;
    append(rest, ArrayPart{static_cast<std::int32_t>(array.type), record[i].narrowed ? kNarrowed : 0, layout.begins[i],
                           array.bytes.size(), array.shape.size()});
    for (const std::int64_t dim : array.shape) append(rest, dim);
  }
  fixed.header_hash = header_hash(to, fixed);
  append(to, fixed);
}

std::optional<std::uint64_t> header_size(std::span<const std::byte> block) noexcept {
  FixedPart fixed;
  if (!take(block, fixed) || fixed.magic != kMagic || fixed.version != kVersion) return std::nullopt;
  if (fixed.header_size < kBlock || fixed.header_size % kBlock != 0 || fixed.header_size > kLargestHeader) {
    return std::nullopt;
  }
  return fixed.header_size;
}

std::optional<RecordHeader> read_header(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (header_size(bytes) != bytes.size()) return std::nullopt;
  std::span<const std::byte> rest = bytes;
  FixedPart fixed;
  take(rest, fixed);
  if (fixed.header_hash != header_hash(bytes, fixed) || fixed.offset != offset) return std::nullopt;
  if (fixed.payload_size % kBlock != 0 || fixed.payload_size > kLargestPayload) return std::nullopt;
  RecordHeader header;
  header.sample = fixed.sample;
  header.extent = {offset, fixed.header_size + fixed.payload_size, fixed.header_size};
  header.payload_hash = fixed.payload_hash;
  for (std::uint32_t i = 0; i < fixed.array_count; ++i) {
    auto stored = read_array(rest, header, fixed.payload_size);
    if (!stored) return std::nullopt;
    header.arrays.push_back(std::move(*stored));
  }
  return header;
}

std::optional<RecordOnDisk> read_resting(const std::filesystem::path& path, std::size_t sample, const Extent& extent) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> bytes(extent.header_size);
  const auto size = static_cast<ssize_t>(bytes.size());
  if (!file.valid() || ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(extent.offset)) != size)
    return std::nullopt;
  const auto header = read_header(bytes, extent.offset);
  if (!header || header->sample != sample || header->extent.size != extent.size) return std::nullopt;
  RecordOnDisk resting{
      path, extent.offset + extent.header_size, extent.size - extent.header_size, header->payload_hash, {}};
  for (std::size_t i = 0; i < header->arrays.size(); ++i) {
    const auto& stored = header->arrays[i];
    resting.parts.push_back(
        {stored.array.type, stored.array.shape, header->begins[i], header->sizes[i], stored.narrowed});
  }
  return resting;
}

Record to_record(const RecordHeader& header, const std::shared_ptr<const AlignedBuffer>& buffer) {
  const std::span<const std::byte> payload = buffer->bytes().subspan(header.extent.header_size);
  StoredRecord record = header.arrays;
  for (std::size_t i = 0; i < record.size(); ++i) {
    record[i].array.bytes = payload.subspan(header.begins[i], header.sizes[i]);
    record[i].array.owner = buffer;
  }
  return from_stored(record);
}

}  // namespace detent::store
