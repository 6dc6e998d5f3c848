#include "profile/disk_rate.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/file.h"
#include "profile/pages.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kDiskTime = 80ms;  // for writing, and again for reading
constexpr std::size_t kFileSize = 64ULL << 20;
constexpr std::size_t kRequest = 4ULL << 20;

/// A file of `directory` that has no name, or has lost it at once.
UniqueFd nameless_file(const fs::path& directory, int more_flags) {
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | more_flags, 0600));
  if (file.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = (directory / "detent-disk-XXXXXX").string();
  file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC | more_flags));
  if (file.valid()) ::unlink(name.c_str());
  return file;
}

struct Transfer {
  std::size_t bytes = 0;
  double seconds = 0;
};

/// Moves up to `size` bytes by `request(buffer, count, offset)` for kDiskTime.
template <typename Request>
Transfer transfer(std::span<std::byte> buffer, std::size_t size, const Request& request) {
  Transfer done;
  const Clock::time_point begin = Clock::now();
  while (done.bytes < size && Clock::now() < begin + kDiskTime) {
    const ssize_t n = request(buffer.data(), std::min(buffer.size(), size - done.bytes), done.bytes);
    if (n <= 0) break;
    done.bytes += static_cast<std::size_t>(n);
  }
  done.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return done;
}

/// Data that no file system can compress.
void fill(std::span<std::byte> bytes) {
  auto* const words = reinterpret_cast<std::uint64_t*>(bytes.data());
  std::uint64_t random = 0x9E3779B97F4A7C15;
  for (std::size_t i = 0; i < bytes.size() / sizeof(random); ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    words[i] = random;
  }
}

Transfer write_file(const UniqueFd& file, std::span<std::byte> data, bool flush) {
  const Clock::time_point begin = Clock::now();
  Transfer written = transfer(data, kFileSize, [&](std::byte* from, std::size_t n, std::size_t at) {
    return ::pwrite(file.get(), from, n, static_cast<off_t>(at));
  });
  if (flush && written.bytes > 0) ::fdatasync(file.get());
  written.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return written;
}

}  // namespace

double disk_rate(const fs::path& directory) {
  const Pages pages(kRequest);
  const std::span<std::byte> data = pages.bytes();
  if (data.empty()) return 0;
  fill(data);
  UniqueFd file = nameless_file(directory, O_DIRECT);
  Transfer written = write_file(file, data, false);
  if (written.bytes == 0) {  // no direct access here: through the page cache, and out of it again
    file = nameless_file(directory, 0);
    written = write_file(file, data, true);
    if (written.bytes > 0) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  const Transfer read = transfer(data, written.bytes, [&](std::byte* to, std::size_t n, std::size_t at) {
    return ::pread(file.get(), to, n, static_cast<off_t>(at));
  });
  if (read.bytes == 0 || written.seconds <= 0 || read.seconds <= 0) return 0;
  // The seconds that a byte each way takes.
  return 2 / (written.seconds / static_cast<double>(written.bytes) + read.seconds / static_cast<double>(read.bytes));
}

}  // namespace detent::profile
