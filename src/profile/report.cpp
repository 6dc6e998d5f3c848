#include "profile/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/failure.h"
#include "base/utf8.h"

namespace detent::profile {
namespace {

constexpr std::string_view kFirstLine = "# detent profile\n";
constexpr std::string_view kPeerFirstLine = "# Quark Profiling Results\n";

constexpr std::string_view kDefinitions = R"(
# Metric Definitions:
#
# Memory and disk figures are in units of 2^20 bytes.
#
# Checkpoint Metrics (per record):
# - step: Name of the profiling checkpoint
# - timestamp: Unix timestamp (seconds since epoch)
# - relative_time_secs: Time elapsed since profiling started
# - cpu_memory_mb: Current resident memory (RSS) of the process and its live children
# - gpu_memory_mb: Current GPU memory; 0 where no GPU is measured
# - disk_read_mb: Cumulative disk bytes read since the start of profiling
# - disk_write_mb: Cumulative disk bytes written since the start of profiling
#
# Summary Metrics (overall):
# - total_quantization_time_seconds: Total elapsed time from start to end
# - peak_memory_mb: Peak resident memory (RSS) of the process, or of it and its children where that is more
# - peak_gpu_memory_mb: Peak GPU memory, likewise
# - total_disk_read_mb: Total disk bytes read during the entire profiling session
# - total_disk_write_mb: Total disk bytes written during the entire profiling session
# - peak_cache_dir_disk_usage_mb: Peak size of all working directories together
# - peak_anonymous_memory_mb: Peak resident memory that is not backed by files
# - cpu_time_seconds: User and system time over all threads
# - stages: Each scope with its duration and the peak resident memory inside it
)";

double mb(std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// YAML's printable characters without its line breaks; ASCII is judged by the caller.
bool printable(char32_t c) {
  const bool line_break = c == 0x2028 || c == 0x2029;
  return c >= 0xA0 && !line_break && c != 0xFEFF && c != 0xFFFE && c != 0xFFFF;
}

/// Empty files, earlier profiles and things that hold no data (a terminal, a pipe) may be written over.
bool may_replace(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return true;
  std::array<char, 64> start{};
  const ssize_t n = ::pread(fd, start.data(), start.size(), 0);
  const std::string_view text(start.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  return text.starts_with(kFirstLine) || text.starts_with(kPeerFirstLine);
}

}  // namespace

std::string_view step_name(Step step) noexcept {
  switch (step) {
    case Step::pre_process: return "Pre-process";
    case Step::calibration: return "Calibration";
    case Step::quantization_static: return "Quantization (Static)";
    case Step::quantization_dynamic: return "Quantization (Dynamic)";
    case Step::quantization_matmul_nbits: return "Quantization (MatMulNBits)";
    case Step::post_process: return "Post-process";
    case Step::fast_finetune: return "Fast Finetune";
    case Step::model_caching: return "Model Caching";
    case Step::float_model_validation: return "Float Model Validation";
    case Step::model_loaded: return "Model Loaded";
  }
  return "Unknown";
}

std::string yaml_quoted(std::string_view text) {
  std::string result = "\"";
  const auto out = std::back_inserter(result);
  while (!text.empty()) {
    const auto [c, length, valid] = first_code_point(text);
    if (c == '"' || c == '\\') {
      fmt::format_to(out, "\\{}", static_cast<char>(c));
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (!valid) {
      result += kReplacementCharacter;
    } else if ((c >= 0x20 && c < 0x7F) || printable(c)) {
      result += text.substr(0, length);
    } else {
      fmt::format_to(out, c < 0x100 ? fmt::runtime("\\x{:02x}") : fmt::runtime("\\u{:04x}"), static_cast<unsigned>(c));
    }
    text.remove_prefix(length);
  }
  return result + '"';
}

std::string header_text() { return fmt::format("{}\nmemory_usage:\n", kFirstLine); }

std::string checkpoint_text(const Checkpoint& checkpoint) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "- step: {}\n", yaml_quoted(checkpoint.step));
  fmt::format_to(out, "  timestamp: {:.6f}\n", checkpoint.timestamp);
  fmt::format_to(out, "  relative_time_secs: {:.6f}\n", checkpoint.relative);
  fmt::format_to(out, "  cpu_memory_mb: {:.3f}\n", mb(checkpoint.resident));
  fmt::format_to(out, "  gpu_memory_mb: {:.3f}\n", mb(checkpoint.gpu_memory.value_or(0)));
  fmt::format_to(out, "  disk_read_mb: {:.3f}\n", mb(checkpoint.disk_read));
  fmt::format_to(out, "  disk_write_mb: {:.3f}\n", mb(checkpoint.disk_written));
  return text;
}

std::string summary_text(const Summary& summary) {
  std::string text = "\n# Summary Metrics\n";
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "total_quantization_time_seconds: {:.4f}\n", summary.seconds);
  fmt::format_to(out, "peak_memory_mb: {:.3f}\n", mb(summary.peak_memory));
  fmt::format_to(out, "peak_gpu_memory_mb: {:.3f}\n", mb(summary.peak_gpu_memory.value_or(0)));
  fmt::format_to(out, "total_disk_read_mb: {:.3f}\n", mb(summary.disk_read));
  fmt::format_to(out, "total_disk_write_mb: {:.3f}\n", mb(summary.disk_written));
  if (summary.peak_directories > 0) {
    fmt::format_to(out, "peak_cache_dir_disk_usage_mb: {:.3f}\n", mb(summary.peak_directories));
  }
  fmt::format_to(out, "peak_anonymous_memory_mb: {:.3f}\n", mb(summary.peak_anonymous));
  fmt::format_to(out, "cpu_time_seconds: {:.4f}\n", summary.cpu_seconds);
  text += summary.stages.empty() ? "stages: []\n" : "stages:\n";
  for (const StageTime& stage : summary.stages) {
    fmt::format_to(out, "- name: {}\n  seconds: {:.4f}\n  peak_memory_mb: {:.3f}\n", yaml_quoted(stage.name),
                   stage.seconds, mb(stage.peak_memory));
  }
  return text.append(kDefinitions);
}

ReportFile::ReportFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd_.valid()) {
    throw failed_call(errno, fmt::format("cannot create profile '{}'", path_.string()), ErrorKind::usage,
                      "choose a path in a directory that exists and can be written");
  }
  if (!may_replace(fd_.get())) {
    throw usage_error(fmt::format("'{}' exists and is not a profile", path_.string()),
                      "choose another path for the profile, or remove that file");
  }
  if (::ftruncate(fd_.get(), 0) != 0) return;  // a terminal or a pipe, which holds nothing to remove
}

// Not even its first record was written: it may be a new file.
ReportFile::~ReportFile() {
  struct stat info {};
  if (failure_ != nullptr && size_ == 0 && ::lstat(path_.c_str(), &info) == 0 && S_ISREG(info.st_mode))
    ::unlink(path_.c_str());
}

void ReportFile::sync() noexcept {
  if (::fdatasync(fd_.get()) != 0) return;  // a pipe, or what the next record will tell of
}

void ReportFile::append(std::string_view text) noexcept {
  if (failure_ != nullptr) return;
  try {
    write_all(fd_.get(), as_byte_span(text), path_);
    size_ += text.size();
  } catch (...) {
    failure_ = std::current_exception();
    if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) return;  // half a record makes the list unreadable
  }
}

}  // namespace detent::profile
