#include "base/small_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"

namespace detent {
namespace {

Error cannot_read(const std::filesystem::path& path, const std::string& role, const std::string& why) {
  return bad_input(fmt::format("cannot read {} '{}': {}", role, path.string(), why));
}

}  // namespace

std::string read_small_file(const std::filesystem::path& path, const std::string& role) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) throw cannot_read(path, role, errno_text(errno));
  return read_small_file(fd.get(), path, role);
}

std::string read_small_file(int fd, const std::filesystem::path& path, const std::string& role) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw cannot_read(path, role, errno_text(errno));
  if (!S_ISREG(info.st_mode)) throw cannot_read(path, role, "it is not a regular file");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > kSmallFile) throw cannot_read(path, role, format_size(size) + " are more than it may have");
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw cannot_read(path, role, errno_text(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace detent
