#include "base/small_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/error.h"
#include "base/failure.h"
#include "base/file.h"

namespace detent {
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

}  // namespace detent
