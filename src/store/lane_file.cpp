#include "store/lane_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#ifdef DETENT_HAS_XXH_DISPATCH
#include <xxh_x86dispatch.h>  // the same functions, for the widest vectors that the machine has
#endif

#include "base/error.h"
#include "base/numbers.h"
#include "base/text.h"
#include "store/io_queue.h"

namespace detent::store {
namespace {

constexpr std::uint64_t kMagic = 0x1A6C6F6F70733164;  // "d1spool\x1a"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kArrayAlignment = 64;
constexpr std::uint64_t kLargestHeader = std::uint64_t{1} << 30;
constexpr std::uint64_t kLargestPayload = std::uint64_t{1} << 62;

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
  std::uint32_t unused;  // 0
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

std::optional<data::Array> read_array(std::span<const std::byte>& bytes, RecordHeader& header,
                                      std::uint64_t payload_size) {
  ArrayPart part;
  if (!take(bytes, part) || part.rank > bytes.size() / 8) return std::nullopt;
  if (part.begin > payload_size || part.size > payload_size - part.begin) return std::nullopt;
  data::Array array;
  array.type = static_cast<onnx::DataType>(part.type);
  array.shape.resize(part.rank);
  for (std::int64_t& dim : array.shape) take(bytes, dim);
  header.begins.push_back(part.begin);
  header.sizes.push_back(part.size);
  return array;
}

}  // namespace

Record owned(Record record) {
  for (data::Array& array : record) {
    const std::size_t size = array.bytes.size();
    if (array.owner || size == 0) continue;
    const auto buffer = std::make_shared<const AlignedBuffer>(size);
    std::memcpy(buffer->bytes().data(), array.bytes.data(), size);
    array = in_buffer(std::move(array), buffer, size);
  }
  return record;
}

std::uint64_t byte_count(const Record& record) noexcept {
  std::uint64_t bytes = 0;
  for (const data::Array& array : record) bytes += array.bytes.size();
  return bytes;
}

RecordLayout layout_of(const Record& record) {
  RecordLayout layout;
  std::uint64_t header = sizeof(FixedPart);
  std::uint64_t end = 0;
  for (const data::Array& array : record) {
    header += sizeof(ArrayPart) + 8 * array.shape.size();
    // Large ones begin at a block, so that they can go to disk from where they are.
    const std::uint64_t alignment = array.bytes.size() < kLargeArray ? kArrayAlignment : kBlock;
    const std::uint64_t begin = (end + alignment - 1) / alignment * alignment;
    layout.begins.push_back(begin);
    end = begin + array.bytes.size();
  }
  layout.header_size = whole_blocks(header);
  layout.payload_size = whole_blocks(end);
  return layout;
}

void write_header(std::span<std::byte> to, const Record& record, const RecordLayout& layout, std::size_t sample,
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
    const data::Array& array = record[i];
    append(rest, ArrayPart{static_cast<std::int32_t>(array.type), 0, layout.begins[i], array.bytes.size(),
                           array.shape.size()});
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
    auto array = read_array(rest, header, fixed.payload_size);
    if (!array) return std::nullopt;
    header.arrays.push_back(std::move(*array));
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
    const auto& array = header->arrays[i];
    resting.parts.push_back({array.type, array.shape, header->begins[i], header->sizes[i]});
  }
  return resting;
}

Record to_record(const RecordHeader& header, const std::shared_ptr<const AlignedBuffer>& buffer) {
  const std::span<const std::byte> payload = buffer->bytes().subspan(header.extent.header_size);
  Record record = header.arrays;
  for (std::size_t i = 0; i < record.size(); ++i) {
    record[i].bytes = payload.subspan(header.begins[i], header.sizes[i]);
    record[i].owner = buffer;
  }
  return record;
}

namespace {

// Each step waits for the writes under way, so they are few.
constexpr std::uint64_t kSmallestStep = std::uint64_t{1} << 20;
constexpr std::uint64_t kLargestStep = std::uint64_t{256} << 20;

}  // namespace

void DiskBudget::charge(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (used_ > limit_ || bytes > limit_ - used_) {
    throw resource_error(
        fmt::format("intermediate tensors need {} on disk, {} more than the disk budget of {}",
                    format_size(used_ + bytes), format_size(used_ + bytes - limit_), format_size(limit_)),
        "raise --disk-budget, or --memory-budget so that fewer of them go to disk");
  }
  used_ += bytes;
  note_peak();
}

bool DiskBudget::has_room(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return used_ <= limit_ && bytes <= limit_ - used_;
}

void DiskBudget::charge_anyway(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_ += bytes;
  note_peak();
}

void DiskBudget::give_back(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
}

std::uint64_t DiskBudget::borrow_ahead(std::uint64_t wish) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t taken = used_ + ahead_;
  const std::uint64_t loan = std::min(wish, taken < limit_ ? (limit_ - taken) / kBlock * kBlock : 0);
  ahead_ += loan;
  note_peak();
  return loan;
}

void DiskBudget::give_back_ahead(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  ahead_ -= bytes;
}

bool DiskBudget::over() const {
  const std::lock_guard lock(mutex_);
  return used_ + ahead_ > limit_;
}

std::uint64_t DiskBudget::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

// What was allocated ahead is given back before records need it, so it is no part of a peak beyond the limit.
void DiskBudget::note_peak() { peak_ = std::max({peak_, used_, std::min(used_ + ahead_, limit_)}); }

LaneFile::~LaneFile() {
  trim();
  budget_->give_back(charged_);
}

void LaneFile::charge(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  budget_->charge(bytes);
  charged_ += bytes;
}

void LaneFile::charge_anyway(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  budget_->charge_anyway(bytes);
  charged_ += bytes;
}

void LaneFile::give_back(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (removed_) return;
  charged_ -= bytes;
  budget_->give_back(bytes);
}

int LaneFile::descriptor(DiskAccess access) {
  const std::lock_guard lock(mutex_);
  const int flags = open_flags(access);
  if (fd_.valid() && flags_ == flags) return fd_.get();
  const bool is_new = !fd_.valid();
  int code = failpoint("spool.open");
  UniqueFd fd;
  if (code == 0) {
    fd = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600));
    if (!fd.valid()) code = errno;
  }
  if (code == EINVAL && flags != 0) {
    throw resource_error(
        fmt::format("cannot open '{}' past the page cache: its file system has no O_DIRECT", path_.string()),
        "choose buffered disk access, or another --work-dir");
  }
  if (code != 0) {
    throw resource_error(fmt::format("cannot create '{}': {}", path_.string(), errno_text(code)),
                         "choose a directory that can be written, with free space, with --work-dir");
  }
  fd_ = std::move(fd);
  flags_ = flags;
  created_ = created_ || is_new;
  return fd_.get();
}

std::uint64_t LaneFile::append(std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t offset = end_;
  if (end_ + size > allocated_) {
    // Fresh extents in large steps make direct writes much faster; the page cache does that by itself.
    if (flags_ != 0 && can_allocate_) {
      allocate_ahead(end_ + size);
    } else {
      allocated_ = end_ + size;
    }
  } else {
    budget_->give_back_ahead(size);
  }
  end_ += size;
  dirty_ = true;
  return offset;
}

// Extends the file to `end` and some more. The part up to `end` is charged to its record, the rest is borrowed.
void LaneFile::allocate_ahead(std::uint64_t end) {
  const std::uint64_t had = allocated_ - end_;
  std::uint64_t ahead = budget_->borrow_ahead(std::clamp(whole_blocks(end_ / 4), kSmallestStep, kLargestStep));
  const auto allocate = [&] {
    const auto from = static_cast<off_t>(allocated_);
    const auto length = static_cast<off_t>(end + ahead - allocated_);
    return ::fallocate(fd_.get(), 0, from, length) == 0 ? 0 : errno;
  };
  int code = allocate();
  if (code != 0 && ahead > 0) {
    budget_->give_back_ahead(std::exchange(ahead, 0));
    code = allocate();
  }
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) throw_write_error(code, end - end_);
  can_allocate_ = code == 0;
  budget_->give_back_ahead(had);
  allocated_ = end + ahead;
}

void LaneFile::trim() noexcept {
  const std::lock_guard lock(mutex_);
  if (allocated_ == end_) return;
  if (::ftruncate(fd_.get(), static_cast<off_t>(end_)) != 0) return;  // it is no more than a waste
  budget_->give_back_ahead(allocated_ - end_);
  allocated_ = end_;
}

void LaneFile::free(const Extent& extent) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!fd_.valid() || failpoint("spool.punch") != 0) return;
    if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(extent.offset),
                    static_cast<off_t>(extent.size)) != 0) {
      return;
    }
  }
  give_back(extent.size);
}

void LaneFile::sync() {
  const std::lock_guard lock(mutex_);
  if (sync_error_ != 0) throw_write_error(sync_error_, 0);
  if (!dirty_ && !created_) return;
  int code = failpoint("spool.fsync");
  if (code == 0 && fd_.valid() && ::fdatasync(fd_.get()) != 0) code = errno;
  if (code == 0 && created_) {
    const UniqueFd directory(::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory.valid() || ::fsync(directory.get()) != 0) code = errno;
  }
  // Some file systems know no fsync of a directory.
  if (code != 0 && code != EINVAL) {
    sync_error_ = code;
    throw_write_error(code, 0);
  }
  dirty_ = false;
  created_ = false;
}

void LaneFile::remove() noexcept {
  const std::lock_guard lock(mutex_);
  if (fd_.valid()) ::unlink(path_.c_str());
  budget_->give_back(std::exchange(charged_, 0));
  removed_ = true;
}

void LaneFile::throw_write_error(int code, std::uint64_t size) const {
  std::string what = fmt::format("cannot write '{}': {}", path_.string(), errno_text(code));
  struct statvfs info {};
  if ((code == ENOSPC || code == EDQUOT) && ::statvfs(path_.parent_path().c_str(), &info) == 0) {
    if (size > 0) what += fmt::format("; {} needed", format_size(size));
    what += fmt::format("; {} free there", format_size(std::uint64_t{info.f_bavail} * info.f_frsize));
  }
  throw resource_error(what, code == EIO ? "choose a directory on another disk with --work-dir"
                                         : "free some space there, choose another place with --work-dir, or set "
                                           "--disk-budget to what may be used");
}

// Takes up the records of a file that an earlier process left.

namespace {

constexpr std::uint64_t kScan = std::uint64_t{1} << 20;

[[noreturn]] void throw_read_error(const std::filesystem::path& path, int code) {
  throw resource_error(fmt::format("cannot read '{}': {}", path.string(), errno_text(code)),
                       "choose another place with --work-dir");
}

class Walk {
 public:
  Walk(const std::filesystem::path& path, int fd, std::uint64_t size) : path_(path), fd_(fd), size_(size) {}

  LaneFile::Found run() {
    while (const auto at = next_data(position_)) {
      position_ = *at / kBlock * kBlock;
      if (std::optional<RecordHeader> header = header_at(position_)) {
        position_ += header->extent.size;
        found_.damaged += std::exchange(suspect_, false) ? 1 : 0;
        found_.records.push_back(std::move(*header));
      } else {
        scan();
      }
    }
    return std::move(found_);
  }

 private:
  // Where the file next holds data, past holes; nullopt at its end.
  std::optional<std::uint64_t> next_data(std::uint64_t from) const {
    if (from >= size_) return std::nullopt;
    const off_t at = ::lseek(fd_, static_cast<off_t>(from), SEEK_DATA);
    if (at >= 0) return static_cast<std::uint64_t>(at);
    if (errno == ENXIO) return std::nullopt;
    return from;  // the file system cannot tell
  }

  std::size_t read(std::uint64_t at, std::span<std::byte> to) const {
    std::size_t done = 0;
    int code = failpoint("spool.read");
    while (code == 0 && done < to.size()) {
      const ssize_t n = ::pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(at + done));
      if (n == 0) break;
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (errno != EINTR) {
        code = errno;
      }
    }
    if (code != 0) throw_read_error(path_, code);
    return done;
  }

  // The header of a record that is whole.
  std::optional<RecordHeader> header_at(std::uint64_t at) {
    if (size_ - at < kBlock || read(at, block_.bytes()) < kBlock) return std::nullopt;
    const auto length = header_size(block_.bytes());
    if (!length || *length > size_ - at) return std::nullopt;
    std::optional<RecordHeader> header;
    if (*length == kBlock) {
      header = read_header(block_.bytes(), at);
    } else {
      const AlignedBuffer all(*length);
      if (read(at, all.bytes()) == *length) header = read_header(all.bytes(), at);
    }
    if (!header || header->extent.size > size_ - at) return std::nullopt;
    return header;
  }

  // Steps over blocks that begin no record: what is left of damaged and released ones. A header is the last that is
  // written of a record, so zeros where one should be tell of a write that never came to its end, not of damage.
  void scan() {
    if (scan_.size() == 0) scan_ = AlignedBuffer(kScan);
    const std::size_t length = read(position_, scan_.bytes().first(std::min(kScan, size_ - position_)));
    for (std::size_t at = 0; at < length; at += kBlock) {
      const auto block = scan_.bytes().subspan(at, std::min(kBlock, length - at));
      if (at > 0 && header_size(block)) {
        position_ += at;
        return;
      }
      const bool zero = std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
      if (position_ + at == record_end()) suspect_ = !zero;
    }
    position_ += std::max<std::uint64_t>(length, kBlock);
  }

  std::uint64_t record_end() const {
    if (found_.records.empty()) return 0;
    const Extent& last = found_.records.back().extent;
    return last.offset + last.size;
  }

  const std::filesystem::path& path_;
  const int fd_;
  const std::uint64_t size_;
  std::uint64_t position_ = 0;
  bool suspect_ = false;  // something that is no record began where one should
  LaneFile::Found found_;
  AlignedBuffer block_{kBlock};
  AlignedBuffer scan_;
};

}  // namespace

LaneFile::Found LaneFile::recover() {
  const std::lock_guard lock(mutex_);
  int code = failpoint("spool.open");
  if (code == 0) {
    fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd_.valid()) code = errno;
  }
  if (code == ENOENT) return {};
  if (code != 0) throw_read_error(path_, code);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_read_error(path_, errno);
  Found found = Walk(path_, fd_.get(), static_cast<std::uint64_t>(info.st_size)).run();
  if (!found.records.empty()) end_ = found.records.back().extent.offset + found.records.back().extent.size;
  allocated_ = end_;
  if (::ftruncate(fd_.get(), static_cast<off_t>(end_)) != 0) throw_write_error(errno, 0);
  return found;
}

void PayloadHash::Free::operator()(void* state) const noexcept { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

PayloadHash::PayloadHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void PayloadHash::add(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t PayloadHash::result() const noexcept {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
}

}  // namespace detent::store
