#include "profile/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/text.h"

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

namespace {

using Bound = Bottleneck::Bound;

/// Whether figures are positive is all that is asked of them: what is not known has no part.
double share_of(double amount, double peak, double seconds) {
  return amount > 0 && peak > 0 && seconds > 0 ? amount / peak / seconds : 0;
}

/// Stages in which the same options help.
enum class Kind { samples, device, tuning_on_device, reading, writing, model, other };

Kind kind_of(std::string_view stage) {
  if (stage == "Calibration") return Kind::samples;
  if (stage == kCalibrationOnGpu) return Kind::device;
  if (stage == kTuningOnGpu) return Kind::tuning_on_device;
  if (stage == "Pre-process" || stage == "Float Model Validation" || stage == "Model Loaded") return Kind::reading;
  if (stage == "Post-process" || stage == "Model Caching") return Kind::writing;
  if (stage.starts_with("Quantization")) return Kind::model;
  return Kind::other;
}

constexpr std::string_view kModelAlone = "This stage depends on the model alone; no option changes it.";

// Each option in these sentences exists, and does in that stage what is said of it: a test reads them.
std::string_view advice_on_samples(Bound bound, bool busy) {
  switch (bound) {
    case Bound::compute:
      return busy ? "The processor is busy with more than the model's arithmetic: --method minmax needs no histograms "
                    "(--no-histogram for a statistics file), and --samples uses fewer samples."
                  : "The processor's arithmetic is the bottleneck: --threads uses more cores if there are any, "
                    "--samples uses fewer samples.";
    case Bound::memory:
      return "Main memory is the bottleneck: a larger --batch-size reads the weights once for more rows, and fewer "
             "--workers leave more of the cache to each.";
    case Bound::disk:
      return "The disk is the bottleneck: put the samples and --work-dir on a faster one, or use fewer --samples.";
    case Bound::transfer:
      return "Copies between host and device are the bottleneck: a larger --batch-size makes fewer and larger ones.";
    case Bound::contention:
    case Bound::waiting:
      return "No resource is fully used, threads wait for each other: more --workers run samples in parallel, and a "
             "larger --batch-size gives each run of the model more to do.";
  }
  return {};
}

std::string_view advice_on_device(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "The GPU's arithmetic is the bottleneck: --set device-precision=tf32 multiplies faster, --samples uses "
             "fewer "
             "samples.";
    case Bound::memory:
      return "The GPU's memory is the bottleneck: a larger --batch-size reads the weights once for more rows.";
    case Bound::disk:
    case Bound::transfer: return advice_on_samples(bound, false);
    case Bound::contention:
    case Bound::waiting:
      return "The GPU waits for the host: a larger --batch-size gives each run of the model more to do.";
  }
  return {};
}

std::string_view advice_on_tuning(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "The GPU's arithmetic is the bottleneck: --set device-precision=tf32 or bfloat16 multiplies faster, more "
             "devices share the rows, and a smaller --set num-iterations takes less time.";
    case Bound::memory:
      return "The GPU's memory is the bottleneck: more devices share the rows, and a smaller --set "
             "num-iterations takes less time.";
    case Bound::disk:
      return "The disk is the bottleneck: put --work-dir on a faster one, or raise --memory-budget so that samples are "
             "spooled in memory.";
    case Bound::transfer:
      return "Copies of samples to the GPU are the bottleneck: --set finetune-form=gram copies each sample once, and "
             "a smaller --set num-iterations copies less.";
    case Bound::contention:
    case Bound::waiting:
      return "The GPU waits for the host, which runs the model between layers: --threads uses more cores if there are "
             "any.";
  }
  return {};
}

std::string_view advice_on_reading(Bound bound) {
  switch (bound) {
    case Bound::disk: return "The disk is the bottleneck: put the model and --work-dir on a faster one.";
    case Bound::contention:
    case Bound::waiting:
      return "One thread works here and mostly waits for the disk: put the model and --work-dir on a faster one.";
    default: return kModelAlone;
  }
}

std::string_view advice_on_writing(Bound bound) {
  switch (bound) {
    case Bound::disk: return "The disk is the bottleneck: put --output on a faster one.";
    case Bound::contention:
    case Bound::waiting: return "One thread works here and mostly waits for the disk: put --output on a faster one.";
    default: return kModelAlone;
  }
}

std::string_view advice_on_other(Bound bound) {
  switch (bound) {
    case Bound::compute: return "The processor is the bottleneck: --threads uses more cores if there are any.";
    case Bound::memory: return "Main memory is the bottleneck: fewer --workers leave more of the cache to each.";
    case Bound::disk: return "The disk is the bottleneck: put --work-dir on a faster one.";
    case Bound::transfer: return advice_on_samples(bound, false);
    case Bound::contention:
    case Bound::waiting: return "No resource is fully used: more --workers or --threads may help.";
  }
  return {};
}

/// `idle`: not even one thread was busy.
std::string_view advice_for(Bound bound, std::string_view stage, bool busy, bool idle) {
  if (bound == Bound::contention)
    return "Other programs kept the processor busy, so that times tell little: run it again on a free machine, or with "
           "fewer --threads.";
  switch (kind_of(stage)) {
    case Kind::samples: return advice_on_samples(bound, busy);
    case Kind::device: return advice_on_device(bound);
    case Kind::tuning_on_device: return advice_on_tuning(bound);
    case Kind::reading: return bound == Bound::waiting && !idle ? kModelAlone : advice_on_reading(bound);
    case Kind::writing: return bound == Bound::waiting && !idle ? kModelAlone : advice_on_writing(bound);
    case Kind::model: return kModelAlone;
    case Kind::other: return advice_on_other(bound);
  }
  return {};
}

}  // namespace

std::string_view bound_name(Bound bound) noexcept {
  switch (bound) {
    case Bound::compute: return "compute";
    case Bound::memory: return "memory";
    case Bound::disk: return "disk";
    case Bound::transfer: return "transfer";
    case Bound::waiting: return "waiting";
    case Bound::contention: return "contention";
  }
  return "unknown";
}

Bottleneck find_bottleneck(const Work& work, const MachinePeaks& peaks, std::string_view stage) {
  const std::array<std::pair<Bound, double>, 4> shares{
      {{Bound::compute, share_of(work.flops, peaks.flops_per_second, work.seconds)},
       {Bound::memory, share_of(work.memory_bytes, peaks.memory_bytes_per_second, work.seconds)},
       {Bound::disk, share_of(work.disk_bytes, peaks.disk_bytes_per_second, work.seconds)},
       {Bound::transfer, share_of(work.bus_bytes, peaks.bus_bytes_per_second, work.seconds)}}};
  auto [bound, share] =
      *std::max_element(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool no_pace = share < kLeastShare;
  const bool busy = no_pace && share_of(work.cpu_seconds, std::max(peaks.threads, 1), work.seconds) >= kBusyShare;
  const bool idle = work.cpu_seconds < kBusyShare * work.seconds;
  if (busy) {
    bound = Bound::compute;
    share = shares[0].second;
  } else if (no_pace) {
    const bool pressed = work.seconds > 0 && work.pressure_seconds >= kPressureShare * work.seconds;
    bound = pressed ? Bound::contention : Bound::waiting;
  }
  return {bound, std::min(share, 1.0), std::string(advice_for(bound, stage, busy, idle))};
}

// The page before and after its data; report/embed.cmake writes both at build time.
extern const std::string_view report_page_head;
extern const std::string_view report_page_tail;

// In JSON these characters stand in strings only, where an escape means the same; without `<` there is neither an end
// tag nor a comment.
std::string script_safe(std::string_view json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 16);
  while (!json.empty()) {
    const CodePoint first = first_code_point(json);
    const std::string_view character = json.substr(0, first.length);
    if (!first.valid) {
      safe += kReplacementCharacter;
    } else if (character == "<") {
      safe += "\\u003c";
    } else if (character == "\xE2\x80\xA8") {
      safe += "\\u2028";
    } else if (character == "\xE2\x80\xA9") {
      safe += "\\u2029";
    } else {
      safe += character;
    }
    json.remove_prefix(character.size());
  }
  return safe;
}

std::string html_report(std::string_view report_json) {
  const bool empty = report_json.find_first_not_of(" \t\r\n") == std::string_view::npos;
  std::string page(report_page_head);
  page += script_safe(empty ? "{}" : report_json);
  page += report_page_tail;
  return page;
}

}  // namespace detent::profile
