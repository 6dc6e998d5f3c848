#include "base/working_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/failure.h"

namespace detent {
namespace fs = std::filesystem;

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
