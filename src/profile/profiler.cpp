#include "profile/profiler.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <stop_token>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace detent::profile {
namespace {

using namespace std::chrono_literals;

constexpr auto kSamplePeriod = 20ms;
constexpr auto kFamilyPeriod = 200ms;  // finding and reading children costs a file per thread and child
constexpr auto kScanPeriod = 1s;
constexpr int kScanShare = 500;  // a large tree is scanned less often, so that scanning stays below 1/500 of the time

double unix_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::uint64_t since(std::uint64_t now, std::uint64_t before) { return now > before ? now - before : 0; }

/// Signals are for the threads that expect them.
void become_background_thread() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "detent-profile");
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

Scope::~Scope() {
  if (profiler_ != nullptr) profiler_->close(stage_);
}

Profiler::Profiler(std::optional<std::filesystem::path> yaml) : Profiler(ProfilerOptions{std::move(yaml)}) {}

Profiler::Profiler(ProfilerOptions options)
    : started_unix_(unix_now()), disk_before_(disk_traffic()), cpu_before_(cpu_seconds()) {
  if (options.yaml) {
    file_.emplace(std::move(*options.yaml));
    file_->append(header_text());
  }
  mark("Start");
  if (file_ && file_->failure()) std::rethrow_exception(file_->failure());
  if (!options.sample) return;
  try {
    sampler_ = std::jthread([this](const std::stop_token& stop) { sample(stop); });
  } catch (const std::system_error& error) {
    throw resource_error(fmt::format("cannot start the profiler's thread: {}", error.code().message()));
  }
}

Profiler::~Profiler() {
  try {
    finish();
  } catch (...) {  // a destructor has nobody to tell
  }
}

double Profiler::elapsed() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

/// Takes a reading, writes it as `step` and returns its relative time. The caller holds the mutex, except in the
/// constructor.
double Profiler::mark(std::string step) {
  const std::vector<pid_t> family = live_descendants();
  const Memory memory = memory_now(family);
  note(memory);
  const double relative = elapsed();
  if (!file_) return relative;
  const DiskTraffic disk = disk_traffic(family);
  file_->append(checkpoint_text({.step = std::move(step),
                                 .timestamp = started_unix_ + relative,
                                 .relative = relative,
                                 .resident = memory.resident,
                                 .disk_read = since(disk.read, disk_before_.read),
                                 .disk_written = since(disk.written, disk_before_.written)}));
  return relative;
}

/// Merges a reading into the peaks of the run and of every open stage. The caller holds the mutex.
void Profiler::note(const Memory& memory) {
  peak_.resident = std::max(peak_.resident, memory.resident);
  peak_.anonymous = std::max(peak_.anonymous, memory.anonymous);
  for (Stage& stage : stages_) {
    if (!stage.open) continue;
    stage.time.peak_memory = std::max(stage.time.peak_memory, memory.resident);
    stage.time.peak_anonymous = std::max(stage.time.peak_anonymous, memory.anonymous);
  }
}

Scope Profiler::scope(std::string_view name) {
  scan_directories(0s);
  const std::lock_guard lock(mutex_);
  if (final_) return {nullptr, 0};
  Stage stage;
  stage.time.name = name;
  stage.peak_before = peak_resident();
  stages_.push_back(std::move(stage));
  stages_.back().opened = mark(fmt::format("{} Start", name));
  return {this, stages_.size() - 1};
}

void Profiler::close(std::size_t index) noexcept {
  try {
    scan_directories(0s);
    const std::lock_guard lock(mutex_);
    if (final_) return;
    Stage& stage = stages_[index];
    stage.time.seconds = mark(fmt::format("{} End", stage.time.name)) - stage.opened;
    // A high-water mark that rose while the stage was open is its exact peak, which sampling may have missed.
    const std::uint64_t peak = peak_resident();
    if (peak > stage.peak_before) stage.time.peak_memory = std::max(stage.time.peak_memory, peak);
    stage.open = false;
  } catch (...) {  // out of memory: the stage stays open, and the run has worse to report
  }
}

void Profiler::checkpoint(std::string_view name) {
  scan_directories(0s);
  const std::lock_guard lock(mutex_);
  if (!final_) mark(std::string(name));
}

void Profiler::watch_directory(std::filesystem::path directory) {
  const std::lock_guard lock(mutex_);
  directories_.push_back(std::move(directory));
}

/// Measures the watched directories unless that was done within `gap`, or too recently for what it costs.
void Profiler::scan_directories(Clock::duration gap) {
  const std::lock_guard scan(scan_mutex_);
  std::vector<std::filesystem::path> directories;
  {
    const std::lock_guard lock(mutex_);
    if (final_) return;
    directories = directories_;
  }
  const Clock::time_point begin = Clock::now();
  if (directories.empty() || begin < scanned_ + std::max(gap, scan_cost_ * kScanShare)) return;
  std::uint64_t size = 0;
  for (const auto& directory : directories) size += directory_size(directory);
  scanned_ = Clock::now();
  scan_cost_ = scanned_ - begin;
  const std::lock_guard lock(mutex_);
  peak_directories_ = std::max(peak_directories_, size);
}

void Profiler::sample(const std::stop_token& stop) {
  become_background_thread();
  std::mutex idle;
  std::condition_variable_any wake;
  std::unique_lock waiting(idle);
  const OwnMemory own;
  Memory family;
  Clock::time_point next_family = Clock::now();
  while (!stop.stop_requested()) {
    try {
      if (const auto now = Clock::now(); now >= next_family) {
        family = memory_of(live_descendants());
        next_family = now + kFamilyPeriod;
      }
      {
        // Reading under the lock keeps a reading from before a stage opened out of that stage.
        const std::lock_guard lock(mutex_);
        Memory memory = own.now();
        note(memory += family);
      }
      scan_directories(kScanPeriod);
    } catch (...) {  // out of memory: one sample is lost
    }
    wake.wait_for(waiting, stop, kSamplePeriod, [] { return false; });
  }
}

Summary Profiler::summary_at(double relative) const {
  const DiskTraffic disk = disk_traffic();
  Summary summary{.seconds = relative,
                  .cpu_seconds = cpu_seconds() - cpu_before_,
                  .peak_memory = std::max(peak_.resident, peak_resident()),
                  .peak_anonymous = peak_.anonymous,
                  .disk_read = since(disk.read, disk_before_.read),
                  .disk_written = since(disk.written, disk_before_.written),
                  .peak_directories = peak_directories_,
                  .stages = {}};
  for (const Stage& stage : stages_) {
    summary.stages.push_back(stage.time);
    if (stage.open) summary.stages.back().seconds = summary.seconds - stage.opened;
  }
  return summary;
}

Summary Profiler::summary() const {
  const std::lock_guard lock(mutex_);
  return final_ ? *final_ : summary_at(elapsed());
}

void Profiler::finish() {
  scan_directories(0s);
  std::jthread sampler;
  {
    const std::lock_guard lock(mutex_);
    sampler = std::move(sampler_);
  }
  if (sampler.joinable()) {
    sampler.request_stop();
    sampler.join();  // outside the lock, which the sampler may be waiting for
  }
  const std::lock_guard lock(mutex_);
  if (final_) return;
  final_ = summary_at(mark("End"));
  if (!file_) return;
  file_->append(summary_text(*final_));
  const std::exception_ptr failure = file_->failure();
  file_.reset();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detent::profile
