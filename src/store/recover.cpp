// Takes up the records of a file that an earlier process left.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/failpoint.h"
#include "store/lane_file.h"

namespace detent::store {
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

}  // namespace detent::store
