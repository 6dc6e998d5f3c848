#include "speed/kernel_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/small_file.h"

namespace detent::speed {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFormat = "detent kernel times 1";
constexpr double kMicrosecond = 1e-6;

KernelTimes from_json(const nlohmann::json& row) {
  const auto seconds = [&](const char* name) { return kMicrosecond * row.at(name).get<double>(); };
  return {seconds("float"),      seconds("integers"),    seconds("quantize"),
          seconds("dequantize"), seconds("into_blocks"), seconds("out_of_blocks")};
}

// To the hundredth of a microsecond: what is read back is what was written.
double microseconds(double seconds) {
  return std::strtod(fmt::format("{:.2f}", seconds / kMicrosecond).c_str(), nullptr);
}

nlohmann::json to_json(const KernelTimes& times) {
  return {{"float", microseconds(times.in_float)},          {"integers", microseconds(times.in_integers)},
          {"quantize", microseconds(times.quantize)},       {"dequantize", microseconds(times.dequantize)},
          {"into_blocks", microseconds(times.into_blocks)}, {"out_of_blocks", microseconds(times.out_of_blocks)}};
}

bool are_times(const KernelTimes& times) {
  constexpr double kMostSeconds = 1e6;
  const auto all = {times.in_float,   times.in_integers, times.quantize,
                    times.dequantize, times.into_blocks, times.out_of_blocks};
  return std::all_of(all.begin(), all.end(), [](double time) { return time >= 0 && time <= kMostSeconds; });
}

// The processors as the kernel names them, each kind once: ARM's may be of several in one machine.
std::string machine() {
  constexpr const char* kTold[] = {"model name",  "flags",    "Features",    "CPU implementer",
                                   "CPU variant", "CPU part", "CPU revision"};
  std::ifstream file("/proc/cpuinfo");
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) {
    const bool told =
        std::any_of(std::begin(kTold), std::end(kTold), [&](const char* name) { return line.starts_with(name); });
    if (told && std::find(found.begin(), found.end(), line) == found.end()) found.push_back(line);
  }
  return fmt::format("{}{}", fmt::join(found, ""), instruction_sets());
}

Error cannot_write(const fs::path& file, const std::string& why) {
  return usage_error(fmt::format("cannot write the kernel table '{}': {}", file.string(), why),
                     "give another file with --set kernel-table");
}

bool is_open_at(int fd, const fs::path& file) {
  struct stat opened {};
  struct stat there {};
  return ::fstat(fd, &opened) == 0 && ::lstat(file.c_str(), &there) == 0 && opened.st_dev == there.st_dev &&
         opened.st_ino == there.st_ino;
}

// The table itself, open and this process's own until it is closed or replaced; empty where there was none. Another
// process holds it for as long as it takes to write some lines.
UniqueFd locked(const fs::path& file, const std::stop_token& stop) {
  constexpr auto kPatience = std::chrono::seconds(10);
  constexpr auto kPause = std::chrono::milliseconds(20);
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < kPatience;) {
    if (stop.stop_requested()) throw interrupted();
    UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
    if (!fd.valid()) throw cannot_write(file, errno_text(errno));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_open_at(fd.get(), file)) return fd;
    } else if (errno == EWOULDBLOCK) {
      std::this_thread::sleep_for(kPause);
    } else if (errno != EINTR) {
      throw cannot_write(file, errno_text(errno));
    }
  }
  throw cannot_write(file, fmt::format("another process has held it for {} seconds", kPatience.count()));
}

}  // namespace

KernelTable::KernelTable(std::optional<fs::path> file) : file_(std::move(file)) { read(); }

void KernelTable::read() {
  if (!file_ || !paths::exists(*file_)) return;
  const auto text = read_small_file(*file_, "the kernel table");
  if (text.empty()) return;  // another process is about to write it, or was
  const auto refused = [&] {
    return bad_input(fmt::format("'{}' is not a table of kernel times", file_->string()),
                     "remove it, and it is measured anew; or give another with --set kernel-table");
  };
  const auto json = parse_json(text);
  if (!json) throw refused();
  try {
    if (json->at("format") != kFormat || !json->at("kernels").is_object()) throw refused();
    for (const auto& [kernel, row] : json->at("kernels").items()) {
      const auto times = from_json(row);
      if (!are_times(times)) throw refused();
      times_.insert_or_assign(kernel, times);
    }
  } catch (const nlohmann::json::exception&) {
    throw refused();
  }
}

const KernelTimes* KernelTable::find(const std::string& kernel) const {
  const auto found = times_.find(kernel);
  return found == times_.end() ? nullptr : &found->second;
}

void KernelTable::save(const std::stop_token& stop) {
  // Rounded as in the file also where there is none: a decision is the same before and after.
  for (auto& [kernel, times] : times_) times = from_json(to_json(times));
  if (!file_) return;
  if (file_->has_parent_path()) {
    std::error_code ignored;
    fs::create_directories(file_->parent_path(), ignored);
  }
  check_replaceable(*file_);
  const auto lock = locked(*file_, stop);
  try {
    write();
  } catch (...) {
    struct stat info {};
    if (::fstat(lock.get(), &info) == 0 && info.st_size == 0) ::unlink(file_->c_str());  // it was made for the lock
    throw;
  }
}

void KernelTable::write() {
  read();
  nlohmann::json kernels = nlohmann::json::object();
  for (const auto& [kernel, times] : times_) kernels[kernel] = to_json(times);
  AtomicFile out(*file_);
  const std::string text = json_text(nlohmann::json{{"format", kFormat}, {"kernels", kernels}}, 1) + "\n";
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

std::optional<fs::path> default_kernel_table(const std::string& runtime_version) {
  const auto folder = []() -> std::optional<fs::path> {
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') return cache;
    if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') return fs::path(home) / ".cache";
    return std::nullopt;
  }();
  if (!folder) return std::nullopt;
  Hasher hasher;
  hasher.add(machine());
  return *folder / "detent" / fmt::format("kernels-{}-{}.json", runtime_version, hasher.result().text().substr(0, 12));
}

}  // namespace detent::speed
