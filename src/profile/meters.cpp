#include "profile/meters.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

namespace detent::profile {
namespace {

namespace fs = std::filesystem;

std::string read_text(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  std::array<char, 4096> chunk{};
  while (true) {
    const ssize_t n = ::read(fd.get(), chunk.data(), chunk.size());
    if (n > 0) text.append(chunk.data(), static_cast<std::size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) return text;
  }
}

/// Takes the next unsigned number off `text`, skipping what stands before it; zero at the end.
std::uint64_t take_number(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_of("0123456789"), text.size()));
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return status == std::errc() ? value : 0;
}

/// The number after the line that starts with `key`, as in "VmHWM:\t  1896 kB".
std::uint64_t field(std::string_view text, std::string_view key) {
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    std::string_view rest = text.substr(at + key.size());
    return take_number(rest);
  }
  return 0;
}

/// From the text of a statm file: counts of pages, of which the second is resident and the third file-backed.
Memory parse_statm(std::string_view text) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  take_number(text);
  const std::uint64_t resident = take_number(text) * page;
  const std::uint64_t file_backed = std::min(take_number(text) * page, resident);
  return {resident, resident - file_backed, file_backed};
}

/// Of a page that several processes map, one that maps it counts a part here (PSS): our own count has all of those that
/// a child shares with us. Where the kernel does not tell parts, such pages count in each.
Memory memory_of_child(pid_t process) {
  const auto text = read_text(fmt::format("/proc/{}/smaps_rollup", process));
  const std::uint64_t resident = field(text, "Pss:") * 1024;
  if (resident == 0) return parse_statm(read_text(fmt::format("/proc/{}/statm", process)));
  const std::uint64_t anonymous = std::min(field(text, "Pss_Anon:") * 1024, resident);
  return {resident, anonymous, resident - anonymous};
}

/// From the text of an io file.
DiskTraffic parse_io(std::string_view text) { return {field(text, "read_bytes:"), field(text, "write_bytes:")}; }

bool has_children() {
  siginfo_t info{};
  // WNOWAIT leaves an ended child for whoever waits for it.
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

bool shares_our_memory(pid_t child) { return ::syscall(SYS_kcmp, ::getpid(), child, KCMP_VM, 0, 0) == 0; }

/// Appends the direct children of `process`. The kernel lists them by the thread that started each.
void add_children(const std::string& process, std::vector<pid_t>& all) {
  std::error_code error;
  for (fs::directory_iterator thread("/proc/" + process + "/task", error), end; !error && thread != end;
       thread.increment(error)) {
    const std::string text = read_text(thread->path().string() + "/children");
    for (std::string_view rest = text; !rest.empty();) {
      const auto child = static_cast<pid_t>(take_number(rest));
      const bool known = std::find(all.begin(), all.end(), child) != all.end();
      if (child > 0 && !known && !shares_our_memory(child)) all.push_back(child);
    }
  }
}

/// Opens without following a link, so that what replaces a directory during the scan cannot lead out of it.
std::uint64_t size_below(UniqueFd directory, int depth) {
  constexpr int kDeepest = 64;  // one descriptor is open per level
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(directory.get()), &::closedir);
  if (!entries || depth > kDeepest) return 0;
  const int fd = directory.release();  // closed by closedir
  std::uint64_t sum = 0;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    struct stat info {};
    if (name == "." || name == ".." || ::fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode)) sum += static_cast<std::uint64_t>(info.st_size);
    if (!S_ISDIR(info.st_mode)) continue;
    UniqueFd below(::openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (below.valid()) sum += size_below(std::move(below), depth + 1);
  }
  return sum;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

std::vector<pid_t> live_descendants() {
  std::vector<pid_t> all;
  if (!has_children()) return all;
  add_children("self", all);
  for (std::size_t i = 0; i < all.size(); ++i) add_children(fmt::to_string(all[i]), all);
  return all;
}

Memory& Memory::operator+=(const Memory& other) noexcept {
  resident += other.resident;
  anonymous += other.anonymous;
  file_backed += other.file_backed;
  return *this;
}

OwnMemory::OwnMemory() : statm_(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) {}

Memory OwnMemory::now() const {
  std::array<char, 256> text{};
  const ssize_t n = ::pread(statm_.get(), text.data(), text.size(), 0);
  return parse_statm({text.data(), n > 0 ? static_cast<std::size_t>(n) : 0});
}

OwnDiskTraffic::OwnDiskTraffic() : io_(::open("/proc/self/io", O_RDONLY | O_CLOEXEC)) {}

DiskTraffic OwnDiskTraffic::now() const {
  std::array<char, 512> text{};
  const ssize_t n = ::pread(io_.get(), text.data(), text.size(), 0);
  return parse_io({text.data(), n > 0 ? static_cast<std::size_t>(n) : 0});
}

Memory memory_of(std::span<const pid_t> descendants) {
  Memory sum;
  for (const pid_t process : descendants) sum += memory_of_child(process);
  return sum;
}

Memory memory_now(std::span<const pid_t> descendants) {
  Memory sum = OwnMemory().now();
  return sum += memory_of(descendants);
}

std::uint64_t peak_resident() { return field(read_text("/proc/self/status"), "VmHWM:") * 1024; }

double cpu_seconds() {
  double sum = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    if (::getrusage(who, &usage) == 0) sum += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return sum;
}

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double processor_pressure() {
  const auto text = read_text("/proc/pressure/cpu");  // "some avg10=… avg60=… avg300=… total=MICROSECONDS"
  const auto at = text.find("total=");
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + std::strlen("total="), nullptr) / 1e6;
}

DiskTraffic disk_traffic(std::span<const pid_t> descendants) {
  DiskTraffic sum = OwnDiskTraffic().now();
  for (const pid_t process : descendants) {
    const DiskTraffic traffic = parse_io(read_text(fmt::format("/proc/{}/io", process)));
    sum.read += traffic.read;
    sum.written += traffic.written;
  }
  return sum;
}

std::uint64_t directory_size(const fs::path& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() ? size_below(std::move(fd), 0) : 0;
}

}  // namespace detent::profile
