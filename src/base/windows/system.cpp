#include <windows.h>

#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <shellapi.h>
#include <stdlib.h>

#include <cerrno>

#include "base/error.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/paths.h"
#include "base/process.h"
#include "base/windows/encoding.h"

namespace detent {

// std::filesystem fails with numbers of Windows in some places, and with errno values in others.
int errno_of(const std::error_code& failed) noexcept {
  return failed.category() == std::system_category() ? windows::errno_of_system(failed.value()) : failed.value();
}

void trim_heap() noexcept { ::_heapmin(); }

LargeBlocksApart::LargeBlocksApart() noexcept = default;
LargeBlocksApart::~LargeBlocksApart() = default;

void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept { return ::_aligned_malloc(size, alignment); }
void free_aligned(void* block) noexcept { ::_aligned_free(block); }

// A journal is kept for --isolate alone, which is refused (cli/windows/isolation.cpp).

void keep_journal_of_leftovers(int) noexcept {}
void note_in_journal(char, const std::filesystem::path&) noexcept {}
void remove_leftovers_of(int) {}

namespace paths {

bool names_open_files() { return false; }

std::filesystem::path of_open_file(int descriptor, std::error_code& failed) {
  auto path = windows::path_of(descriptor);
  if (path.empty()) failed.assign(errno, std::generic_category());
  return path;
}

}  // namespace paths

namespace fs = std::filesystem;

bool reserve_descriptors() noexcept { return true; }

// std::filesystem does not follow links here either. It takes memory, other than on Linux.
bool remove_tree(const fs::path::value_type* path) noexcept {
  try {
    std::error_code failed;
    const fs::path identity = fs::path(path) / kIdentityFile;
    const bool is_file = fs::symlink_status(identity, failed).type() == fs::file_type::regular;
    if (is_file && fs::hard_link_count(identity, failed) == 1) fs::resize_file(identity, 0, failed);
    failed.clear();
    for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed)) {
      if (entry->path().filename() != kIdentityFile) fs::remove_all(entry->path(), failed);
    }
    if (!failed || errno_of(failed) == ENOTDIR || errno_of(failed) == ENOENT) fs::remove_all(path, failed);
    errno = failed ? errno_of(failed) : 0;
    return !failed || errno == ENOENT;
  } catch (...) {
    errno = ENOMEM;
    return false;
  }
}

void release_to_others(UniqueFd& file) noexcept { file = UniqueFd(); }

void open_standard_descriptors() noexcept {
  for (const int fd : {0, 1, 2}) {
    if (::_get_osfhandle(fd) < 0 && ::_open("NUL", _O_RDWR) != fd) ::_exit(1);
    ::_setmode(fd, _O_BINARY);
    const auto console = reinterpret_cast<HANDLE>(::_get_osfhandle(fd));
    DWORD mode = 0;
    if (fd > 0 && ::GetConsoleMode(console, &mode) != 0)
      ::SetConsoleMode(console, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
  }
  _fmode = _O_BINARY;  // of what the C++ library opens
  ::SetConsoleOutputCP(CP_UTF8);
}

std::vector<std::string> command_line(int argc, char** argv) {
  int count = 0;
  wchar_t** const words = ::CommandLineToArgvW(::GetCommandLineW(), &count);
  if (words == nullptr) return {argv, argv + argc};
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(windows::narrow(words[i]));
  ::LocalFree(words);
  return all;
}

std::filesystem::path default_work_dir() {
  std::error_code failed;
  const auto folder = std::filesystem::temp_directory_path(failed);  // of $TMP, $TEMP, $USERPROFILE
  return failed ? std::filesystem::path(".") : folder;
}

}  // namespace detent
