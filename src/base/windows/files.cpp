// Files by descriptor, as the headers in posix/ declare them.
#include <windows.h>

#include <fcntl.h>
#include <io.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/windows/encoding.h"

namespace {

using detent::windows::fail;
using detent::windows::narrow;
using detent::windows::wide;

constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

HANDLE handle_of(int fd) { return reinterpret_cast<HANDLE>(::_get_osfhandle(fd)); }

DWORD disposition_of(int flags) {
  if ((flags & O_CREAT) == 0) return (flags & O_TRUNC) != 0 ? TRUNCATE_EXISTING : OPEN_EXISTING;
  if ((flags & O_EXCL) != 0) return CREATE_NEW;
  return (flags & O_TRUNC) != 0 ? CREATE_ALWAYS : OPEN_ALWAYS;
}

DWORD access_of(int flags) {
  switch (flags & (O_RDONLY | O_WRONLY | O_RDWR)) {
    case O_WRONLY: return GENERIC_WRITE;
    case O_RDWR: return GENERIC_READ | GENERIC_WRITE;
    default: return GENERIC_READ;
  }
}

int fill(const BY_HANDLE_FILE_INFORMATION& info, bool is_link, struct detent_stat* status) {
  *status = {};
  const bool is_folder = (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
  status->st_mode = is_folder ? S_IFDIR | 0700U : S_IFREG | 0600U;
  if (is_link) status->st_mode = S_IFCHR | 0600U;  // there is no S_IFLNK: neither a file nor a folder
  status->st_dev = info.dwVolumeSerialNumber;
  status->st_ino = std::uint64_t{info.nFileIndexHigh} << 32 | info.nFileIndexLow;
  status->st_nlink = info.nNumberOfLinks;
  status->st_size = static_cast<std::int64_t>(std::uint64_t{info.nFileSizeHigh} << 32 | info.nFileSizeLow);
  return 0;
}

int fill(HANDLE handle, struct detent_stat* status) {
  BY_HANDLE_FILE_INFORMATION info{};
  if (::GetFileInformationByHandle(handle, &info) == 0) return fail();
  return fill(info, (info.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0, status);
}

int status_at(const wchar_t* path, DWORD more_flags, struct detent_stat* status) {
  const HANDLE handle = ::CreateFileW(path, FILE_READ_ATTRIBUTES, kShared, nullptr, OPEN_EXISTING,
                                      FILE_FLAG_BACKUP_SEMANTICS | more_flags, nullptr);
  if (handle == INVALID_HANDLE_VALUE) return fail();
  const int result = fill(handle, status);
  ::CloseHandle(handle);
  return result;
}

OVERLAPPED position(std::uint64_t at) {
  OVERLAPPED place{};
  place.Offset = static_cast<DWORD>(at);
  place.OffsetHigh = static_cast<DWORD>(at >> 32);
  return place;
}

constexpr std::size_t kMost = std::size_t{1} << 30;  // of one call

// Makes what the name's last six characters stand for, under one that is not taken.
template <class Make>
bool make_unique(char* name, const Make& make) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";  // names are alike in both cases
  std::string_view text(name);
  if (!text.ends_with("XXXXXX")) return fail(EINVAL) == 0;
  std::random_device random;
  for (int tries = 0; tries < 100; ++tries) {
    for (std::size_t i = text.size() - 6; i < text.size(); ++i) name[i] = kLetters[random() % kLetters.size()];
    if (make(wide(name))) return true;
    if (errno != EEXIST) return false;
  }
  return false;
}

}  // namespace

int open(const wchar_t* path, int flags, int) {
  if ((flags & (O_DIRECT | O_TMPFILE)) != 0) return fail(EINVAL);
  const bool folder = (flags & O_DIRECTORY) != 0;
  const DWORD attributes = FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS |
                           ((flags & O_NOFOLLOW) != 0 ? FILE_FLAG_OPEN_REPARSE_POINT : 0U);
  const HANDLE handle =
      ::CreateFileW(path, access_of(flags), kShared, nullptr, disposition_of(flags), attributes, nullptr);
  if (handle == INVALID_HANDLE_VALUE) return fail();
  struct detent_stat status {};
  const bool known = ::GetFileType(handle) != FILE_TYPE_DISK || fill(handle, &status) == 0;
  const bool is_link = (status.st_mode & S_IFMT) == S_IFCHR;
  const bool is_folder = (status.st_mode & S_IFMT) == S_IFDIR;
  if (!known || is_link || (folder && !is_folder)) {
    ::CloseHandle(handle);
    return known ? fail(is_link ? ELOOP : ENOTDIR) : -1;
  }
  const int fd = ::_open_osfhandle(reinterpret_cast<std::intptr_t>(handle),
                                   (flags & (O_RDONLY | O_WRONLY | O_RDWR | O_APPEND)) | _O_BINARY | _O_NOINHERIT);
  if (fd < 0) ::CloseHandle(handle);
  return fd;
}

int openat(int folder, const wchar_t* name, int flags, int mode) {
  if (folder == AT_FDCWD) return open(name, flags, mode);
  const auto path = detent::windows::path_of(folder);
  if (path.empty()) return -1;
  return open((path + L'\\' + name).c_str(), flags, mode);
}

int fcntl(int fd, int command, int) {
  if (::_get_osfhandle(fd) < 0) return fail(EBADF);
  if (command == F_GETFD) return 0;
  if (command == F_DUPFD_CLOEXEC) return ::_dup(fd);
  return fail(EINVAL);
}

// Folders cannot be flushed; EINVAL is what Linux says of file systems on which they cannot either.
int fsync(int fd) {
  struct detent_stat status {};
  if (fstat(fd, &status) != 0) return -1;
  if ((status.st_mode & S_IFMT) == S_IFDIR) return fail(EINVAL);
  return ::FlushFileBuffers(handle_of(fd)) != 0 ? 0 : fail();
}

ssize_t pread(int fd, void* to, std::size_t size, off_t at) {
  OVERLAPPED place = position(static_cast<std::uint64_t>(at));
  DWORD done = 0;
  if (::ReadFile(handle_of(fd), to, static_cast<DWORD>(std::min(size, kMost)), &done, &place) != 0) return done;
  return ::GetLastError() == ERROR_HANDLE_EOF ? 0 : fail();
}

ssize_t pwrite(int fd, const void* from, std::size_t size, off_t at) {
  OVERLAPPED place = position(static_cast<std::uint64_t>(at));
  DWORD done = 0;
  if (::WriteFile(handle_of(fd), from, static_cast<DWORD>(std::min(size, kMost)), &done, &place) == 0) return fail();
  return done;
}

int fallocate(int, int, off_t, off_t) { return fail(EOPNOTSUPP); }

int syncfs(int) { return fail(EOPNOTSUPP); }

ssize_t sendfile(int to, int from, off_t* from_at, std::size_t size) {
  std::vector<char> piece(std::min(size, std::size_t{1} << 20));
  const ssize_t count = pread(from, piece.data(), piece.size(), *from_at);
  if (count <= 0) return count;
  const int written = ::_write(to, piece.data(), static_cast<unsigned>(count));
  if (written > 0) *from_at += written;
  return written;
}

int statvfs(const wchar_t* folder, struct statvfs* status) {
  ULARGE_INTEGER available{};
  if (::GetDiskFreeSpaceExW(folder, &available, nullptr, nullptr) == 0) return fail();
  *status = {available.QuadPart, 1};
  return 0;
}

int unlink(const wchar_t* path) { return ::DeleteFileW(path) != 0 ? 0 : fail(); }

int rmdir(const wchar_t* path) { return ::RemoveDirectoryW(path) != 0 ? 0 : fail(); }

int access(const wchar_t* path, int mode) { return ::_waccess(path, mode); }

int mkdir(const wchar_t* path, int) { return ::CreateDirectoryW(path, nullptr) != 0 ? 0 : fail(); }

int rename(const wchar_t* from, const wchar_t* to) {
  return ::MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0 ? 0 : fail();
}

int mkostemp(char* name, int flags) {
  int fd = -1;
  make_unique(name, [&](const std::wstring& path) {
    fd = open(path.c_str(), flags | O_RDWR | O_CREAT | O_EXCL, 0600);
    return fd >= 0;
  });
  return fd;
}

char* mkdtemp(char* name) {
  const auto make = [](const std::wstring& path) { return mkdir(path.c_str(), 0700) == 0; };
  return make_unique(name, make) ? name : nullptr;
}

int fstat(int fd, struct detent_stat* status) {
  if (::_get_osfhandle(fd) < 0) return fail(EBADF);
  return fill(handle_of(fd), status);
}

int detent_stat(const wchar_t* path, struct detent_stat* status) { return status_at(path, 0, status); }

int detent_stat(const char* path, struct detent_stat* status) { return status_at(wide(path).c_str(), 0, status); }

int lstat(const wchar_t* path, struct detent_stat* status) {
  return status_at(path, FILE_FLAG_OPEN_REPARSE_POINT, status);
}

// Windows keeps others from what is locked; a byte that no file has keeps them from the lock alone.
int flock(int fd, int operation) {
  if (operation != (LOCK_EX | LOCK_NB)) return fail(EINVAL);
  struct detent_stat status {};
  if (fstat(fd, &status) != 0) return -1;
  if ((status.st_mode & S_IFMT) == S_IFDIR) return fail(ENOTSUP);
  OVERLAPPED place = position(std::uint64_t{1} << 62);
  if (::LockFileEx(handle_of(fd), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &place) != 0) return 0;
  const DWORD why = ::GetLastError();
  return why == ERROR_LOCK_VIOLATION || why == ERROR_IO_PENDING ? fail(EWOULDBLOCK) : fail();
}
