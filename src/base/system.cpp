#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>  // for __GLIBC__
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/error.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/paths.h"
#include "base/process.h"

namespace detent {

int errno_of(const std::error_code& failed) noexcept { return failed.value(); }

void trim_heap() noexcept {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

#ifdef __GLIBC__
LargeBlocksApart::LargeBlocksApart() noexcept { ::mallopt(M_MMAP_THRESHOLD, 64 << 10); }
// Where the library's own moving threshold ends up after large blocks were freed: programs that run models are there.
LargeBlocksApart::~LargeBlocksApart() {
  constexpr int kMost = 32 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kMost);
  ::mallopt(M_TRIM_THRESHOLD, 2 * kMost);
}
#else
LargeBlocksApart::LargeBlocksApart() noexcept = default;
LargeBlocksApart::~LargeBlocksApart() = default;
#endif

void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept { return std::aligned_alloc(alignment, size); }
void free_aligned(void* block) noexcept { std::free(block); }

namespace {

int journal = -1;

std::string read_all(int file) {
  std::string text;
  char piece[4096];
  for (off_t at = 0;; at = static_cast<off_t>(text.size())) {
    const auto count = ::pread(file, piece, sizeof piece, at);
    if (count <= 0) return text;
    text.append(piece, static_cast<std::size_t>(count));
  }
}

}  // namespace

void keep_journal_of_leftovers(int file) noexcept { journal = file; }

// Each mark before a path, which a zero ends. In one call, so that an entry is whole whenever the process ends.
void note_in_journal(char what, const std::filesystem::path& path) noexcept {
  if (journal < 0) return;
  char mark[] = {what};
  iovec parts[] = {{mark, 1}, {const_cast<char*>(path.c_str()), path.native().size() + 1}};
  if (::writev(journal, parts, 2) < 0) return;
}

void remove_leftovers_of(int file) {
  const std::string text = read_all(file);
  std::set<std::string> left;
  for (std::size_t at = 0; at < text.size();) {
    const std::string entry = text.c_str() + at;
    at += entry.size() + 1;
    if (entry.empty()) continue;
    if (entry.front() == kLeft) left.insert(entry.substr(1));
    if (entry.front() == kReleased) left.erase(entry.substr(1));
  }
  for (const auto& path : left) remove_tree(path.c_str());
}

namespace paths {

bool names_open_files() {
  if (!is_folder("/proc/self/fd"))
    throw device_error("there is no /proc/self/fd, by which the runtime reads files", "mount /proc");
  return true;
}

std::filesystem::path of_open_file(int descriptor, std::error_code& failed) {
  names_open_files();
  return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), failed);
}

}  // namespace paths

namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// One for the folder itself, one for that below it which is being read.
struct Reserve {
  std::mutex mutex;  // one removal at a time may need them
  std::array<int, 2> descriptors{-1, -1};

  bool fill() noexcept {
    for (int& fd : descriptors) {
      if (fd < 0) fd = ::open("/", O_PATH | O_CLOEXEC);
      if (fd < 0) return false;
    }
    return true;
  }
  bool close_one() noexcept {
    for (int& fd : descriptors) {
      if (fd < 0) continue;
      ::close(fd);
      fd = -1;
      return true;
    }
    return false;
  }
};
Reserve& reserve() {
  static Reserve reserve;
  return reserve;
}

// openat() where it is possible at all.
int open_folder(int at, const char* path) noexcept {
  for (;;) {
    const int fd = ::openat(at, path, kOpenFolder);
    if (fd >= 0 || (errno != EMFILE && errno != ENFILE) || !reserve().close_one()) return fd;
  }
}

// opendir() takes memory.
struct Entry {
  ino64_t inode;
  off64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];
};

bool is_dots(const char* name) noexcept { return std::string_view(name) == "." || std::string_view(name) == ".."; }

bool is_gone(int fd, const char* name) noexcept { return ::unlinkat(fd, name, 0) == 0 || errno == ENOENT; }

// A path below the folder that is removed; empty: that folder.
class Below {
 public:
  const char* text() const noexcept { return length_ == 0 ? "." : text_.data(); }
  bool is_top() const noexcept { return length_ == 0; }
  bool enter(const char* name) noexcept {
    const std::size_t more = std::strlen(name);
    if (length_ + 1 + more >= text_.size()) return false;
    if (length_ > 0) text_[length_++] = '/';
    std::memcpy(text_.data() + length_, name, more + 1);
    length_ += more;
    return true;
  }
  void leave() noexcept {
    const auto slash = std::string_view(text_.data(), length_).rfind('/');
    length_ = slash == std::string_view::npos ? 0 : slash;
    text_[length_] = '\0';
  }

 private:
  std::array<char, PATH_MAX> text_{};
  std::size_t length_ = 0;
};

enum class Found { nothing, folder, failure };

// Removes all files of a folder up to the first folder in it, which is entered; at the top, all but kIdentityFile.
Found remove_files(int fd, Below& where) noexcept {
  alignas(Entry) std::array<char, 4096> buffer;
  for (;;) {
    const long size = ::syscall(SYS_getdents64, fd, buffer.data(), buffer.size());
    if (size < 0) return Found::failure;
    if (size == 0) return Found::nothing;
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer.data() + at);
      at += entry->length;
      if (is_dots(entry->name) ||
          (where.is_top() && entry->type == DT_REG && std::string_view(entry->name) == kIdentityFile))
        continue;
      if (is_gone(fd, entry->name)) continue;
      if (errno != EISDIR && errno != EPERM) return Found::failure;
      return where.enter(entry->name) ? Found::folder : Found::failure;
    }
  }
}

// A file of several names may be somebody's still.
void empty_identity(int top) noexcept {
  const int fd = ::openat(top, kIdentityFile, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1) {
    if (::ftruncate(fd, 0) != 0) errno = 0;  // it still goes last
  }
  ::close(fd);
}

// Each folder is read again after one in it is gone, so that two descriptors are enough for any depth.
bool empty_folder(int top) noexcept {
  Below where;
  for (;;) {
    const int fd = open_folder(top, where.text());
    if (fd < 0) return false;
    const Found found = remove_files(fd, where);
    ::close(fd);
    if (found == Found::failure) return false;
    if (found == Found::folder) continue;
    if (where.is_top()) return is_gone(top, kIdentityFile);
    if (::unlinkat(top, where.text(), AT_REMOVEDIR) != 0 && errno != ENOENT) return false;
    where.leave();
  }
}

}  // namespace

bool reserve_descriptors() noexcept {
  const std::lock_guard lock(reserve().mutex);
  return reserve().fill();
}

bool remove_tree(const char* path) noexcept {
  if (::unlink(path) == 0 || errno == ENOENT) return true;
  if (errno != EISDIR && errno != EPERM) return false;
  const std::lock_guard lock(reserve().mutex);
  const int top = open_folder(AT_FDCWD, path);
  if (top < 0) return errno == ENOENT;
  empty_identity(top);
  const bool emptied = empty_folder(top);
  ::close(top);
  reserve().fill();
  return emptied && (::rmdir(path) == 0 || errno == ENOENT);
}

void release_to_others(UniqueFd&) noexcept {}

void open_standard_descriptors() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", O_RDWR) != fd) ::_exit(1);
  }
}

std::vector<std::string> command_line(int argc, char** argv) { return {argv, argv + argc}; }

std::filesystem::path default_work_dir() {
  const char* from_environment = std::getenv("TMPDIR");
  return from_environment != nullptr && *from_environment != '\0' ? from_environment : "/tmp";
}

}  // namespace detent
