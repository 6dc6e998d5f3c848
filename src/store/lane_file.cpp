#include "store/lane_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "store/io_queue.h"

namespace detent::store {
namespace {

// Each step waits for the writes under way, so they are few.
constexpr std::uint64_t kSmallestStep = std::uint64_t{16} << 20;
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
  std::uint64_t ahead = budget_->borrow_ahead(std::clamp(whole_blocks(end_), kSmallestStep, kLargestStep));
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

}  // namespace detent::store
