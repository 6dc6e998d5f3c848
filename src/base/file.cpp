#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"

namespace detent {

namespace fs = std::filesystem;

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}
UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}
int UniqueFd::release() noexcept { return std::exchange(fd_, -1); }

namespace {

// A model may have thousands of data files, which stay open: more than the 1,024 that a shell usually allows at first.
bool allow_more_files() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// O_NONBLOCK: opening a FIFO by mistake must not hang.
UniqueFd open_for_reading(const fs::path& path) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  UniqueFd fd(::open(path.c_str(), kFlags));
  if (!fd.valid() && errno == EMFILE && allow_more_files()) fd = UniqueFd(::open(path.c_str(), kFlags));
  return fd;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path, const std::string& role) {
  UniqueFd fd = open_for_reading(path);
  if (!fd.valid())
    throw failed_call(errno, fmt::format("cannot open {} '{}'", role, path.string()), ErrorKind::bad_input);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    throw failed_call(errno, fmt::format("cannot read {} '{}'", role, path.string()), ErrorKind::bad_input);
  }
  if (S_ISDIR(info.st_mode)) throw bad_input(fmt::format("{} '{}' is a directory, not a file", role, path.string()));
  if (!S_ISREG(info.st_mode)) throw bad_input(fmt::format("{} '{}' is not a regular file", role, path.string()));
  std::span<const std::byte> bytes;
  if (info.st_size > 0) {
    const auto size = static_cast<std::size_t>(info.st_size);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (address == MAP_FAILED) {
      throw failed_call(errno, fmt::format("cannot map {} '{}'", role, path.string()), ErrorKind::resource);
    }
    bytes = {static_cast<const std::byte*>(address), size};
  }
  auto file = std::shared_ptr<const MappedFile>(new MappedFile(path, std::move(fd), bytes));
  // What a clone has of large files until they are fetched: no reader knows what to make of it.
  if (as_text(bytes).starts_with("version https://git-lfs.github.com/spec/"))
    throw bad_input(fmt::format("{} '{}' is a pointer of Git LFS, not the file itself", role, path.string()),
                    "fetch it with 'git lfs pull'");
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

bool MappedFile::contains(std::span<const std::byte> part) const noexcept {
  return part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size();
}

std::uint64_t MappedFile::offset_of(std::span<const std::byte> part) const noexcept {
  return static_cast<std::uint64_t>(part.data() - bytes_.data());
}

void MappedFile::release(std::span<const std::byte> part) const noexcept {
  if (part.empty()) return;
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t before = reinterpret_cast<std::uintptr_t>(part.data()) % page;  // of it, on its first page
  ::madvise(const_cast<std::byte*>(part.data()) - before, part.size() + before, MADV_DONTNEED);
}

void write_all(int fd, std::span<const std::byte> data, const fs::path& path) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n >= 0) {
      data = data.subspan(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      throw failed_call(errno, fmt::format("cannot write '{}'", path.string()), ErrorKind::bad_input);
    }
  }
}

void check_replaceable(const fs::path& path) {
  std::error_code failed;
  const auto kind = fs::symlink_status(path, failed).type();
  if (failed || kind == fs::file_type::not_found || kind == fs::file_type::regular) return;  // opening it tells more
  if (kind == fs::file_type::directory)
    throw usage_error(fmt::format("output '{}' is a directory", path.string()), "give the name of a file");
  if (kind == fs::file_type::symlink) {
    throw usage_error(fmt::format("output '{}' is a symbolic link", path.string()),
                      "give the file that it leads to, or remove the link");
  }
  throw usage_error(fmt::format("output '{}' exists and is not a regular file", path.string()), "choose another path");
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)) {
  check_replaceable(target_);
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  std::string name = (parent / fmt::format(".{}.XXXXXX", target_.filename().string())).string();
  const auto held = hold_leftovers();
  fd_ = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd_.valid())
    throw failed_call(errno, fmt::format("cannot create '{}'", target_.string()), ErrorKind::usage,
                      "choose an output path in a directory that exists and can be written");
  try {
    temporary_ = name;
    leftover_ = Leftover(temporary_);
  } catch (...) {
    ::unlink(name.c_str());
    throw;
  }
  // Who may read what it replaces may read it, and nobody else.
  struct stat replaced {};
  if (::lstat(target_.c_str(), &replaced) == 0) {
    ::fchmod(fd_.get(), replaced.st_mode & 0777);
    return;
  }
  const auto mask = ::umask(0);
  ::umask(mask);
  ::fchmod(fd_.get(), 0666 & ~mask);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      leftover_(std::move(other.leftover_)),
      fd_(std::move(other.fd_)),
      buffer_(std::move(other.buffer_)),
      size_(other.size_),
      synced_(other.synced_) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> data) {
  constexpr std::size_t kBuffer = 1 << 18;
  size_ += data.size();
  synced_ = false;
  if (buffer_.size() + data.size() > kBuffer) flush();
  if (data.size() >= kBuffer) {
    write_all(fd_.get(), data, target_);
  } else {
    buffer_.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
}

void AtomicFile::flush() {
  write_all(fd_.get(), std::as_bytes(std::span(buffer_)), target_);
  buffer_.clear();
}

void AtomicFile::sync() {
  flush();
  if (::fsync(fd_.get()) != 0) {
    throw failed_call(errno, fmt::format("cannot write '{}'", target_.string()), ErrorKind::resource);
  }
  synced_ = true;
  release_to_others(fd_);
}

void AtomicFile::commit() {
  failpoint("file.commit");
  if (!synced_) sync();
  check_replaceable(target_);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    throw failed_call(errno, fmt::format("cannot create '{}'", target_.string()), ErrorKind::usage,
                      "choose another output path");
  }
  temporary_.clear();
  leftover_.release();
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems know no fsync of a directory.
  if (directory.valid() && ::fsync(directory.get()) != 0 && errno == EIO)
    throw failed_call(EIO, fmt::format("'{}' is written, but its folder is not safely on the disk", target_.string()),
                      ErrorKind::usage);
  failpoint("file.committed");
}

TempDir named_temp_dir(const fs::path& parent, std::string_view prefix) {
  const fs::path base = paths::absolute(parent.empty() ? default_work_dir() : parent);
  std::string name = (base / fmt::format("{}XXXXXX", prefix)).string();
  const auto held = hold_leftovers();
  if (!reserve_descriptors() || ::mkdtemp(name.data()) == nullptr) {  // mkdtemp creates with mode 0700
    throw failed_call(errno, fmt::format("cannot create a working directory in '{}'", base.string()), ErrorKind::usage,
                      "choose a directory that exists and can be written with --work-dir");
  }
  try {
    return TempDir::adopt(name);
  } catch (...) {
    ::rmdir(name.c_str());
    throw;
  }
}

TempDir::TempDir(const fs::path& parent) : TempDir(named_temp_dir(parent, "detent-")) {}

TempDir::~TempDir() {
  if (!path_.empty()) remove_tree(path_.c_str());
}

namespace {

std::string cannot_read(const std::filesystem::path& path, const std::string& role) {
  return fmt::format("cannot read {} '{}'", role, path.string());
}

Error failed(int code, const std::filesystem::path& path, const std::string& role) {
  return failed_call(code, cannot_read(path, role), ErrorKind::bad_input);
}

}  // namespace

std::string read_small_file(const std::filesystem::path& path, const std::string& role) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) throw failed(errno, path, role);
  return read_small_file(fd.get(), path, role);
}

std::string read_small_file(int fd, const std::filesystem::path& path, const std::string& role) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw failed(errno, path, role);
  if (!S_ISREG(info.st_mode)) throw bad_input(cannot_read(path, role) + ": it is not a regular file");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > kSmallFile)
    throw bad_input(fmt::format("{}: {} are more than it may have", cannot_read(path, role), format_size(size)));
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failed(errno, path, role);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

UniqueFd create_working_file(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid())
    throw failed_call(errno, fmt::format("cannot create '{}'", path.string()), ErrorKind::resource,
                      "choose another --work-dir");
  return fd;
}

void write_at(int fd, std::span<const std::byte> data, std::uint64_t offset, const fs::path& path) {
  auto place = static_cast<off_t>(offset);
  while (!data.empty()) {
    const auto written = ::pwrite(fd, data.data(), data.size(), place);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      throw resource_error(fmt::format("cannot write '{}': {}", path.string(), errno_text(errno)),
                           "make room, or choose another --work-dir");
    data = data.subspan(static_cast<std::size_t>(written));
    place += written;
  }
}

UniqueFd lock_directory(const fs::path& directory) {
  using Clock = std::chrono::steady_clock;
  UniqueFd fd(::open((directory.empty() ? fs::path(".") : directory).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || Clock::now() > end) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return fd;
}

}  // namespace detent
