#include "profile/profiler.h"

#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <exception>
#include <system_error>

#include "base/error.h"
#include "detent/profile.h"

namespace detent::profile {
namespace {

using namespace std::chrono_literals;

constexpr auto kSamplePeriod = 20ms;
constexpr double kLittle = 0.015;      // processor seconds, in which memory changes little
constexpr auto kFamilyPeriod = 200ms;  // finding and reading children costs a file per thread and child; also for GPUs
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

Scope::~Scope() {
  if (profiler_ != nullptr) profiler_->close(stage_);
}

Profiler::Profiler(std::optional<std::filesystem::path> yaml) : Profiler(ProfilerOptions{std::move(yaml)}) {}

Profiler::Profiler(ProfilerOptions options)
    : started_unix_(unix_now()), disk_before_(disk_traffic()), cpu_before_(cpu_seconds()) {
  if (options.yaml) {
    file_.emplace(std::move(*options.yaml));
    file_->append(header_text());
    file_->sync();  // by its first line the next run knows that it may be replaced
  }
  if (options.gpu) {
    gpu_ = GpuMeter::open(*options.gpu);
    gpu_sought_ = true;
  }
  read_gpu();
  mark("Start");
  if (file_ && file_->failure()) std::rethrow_exception(file_->failure());
  if (!options.sample) return;
  try {
    sampler_ = std::jthread([this](const std::stop_token& stop) { sample(stop); });
  } catch (const std::system_error& error) {
    throw failed_call(errno_of(error.code()), "cannot start the profiler's thread", ErrorKind::resource);
  }
}

Profiler::~Profiler() {
  try {
    finish();
  } catch (...) {  // a destructor has nobody to tell
  }
}

double Profiler::elapsed() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

DiskTraffic Profiler::since_start(const DiskTraffic& disk) const {
  return {since(disk.read, disk_before_.read), since(disk.written, disk_before_.written)};
}

/// Takes a reading and writes it as `step`. The caller holds the mutex, except in the constructor.
Profiler::Reading Profiler::mark(std::string step) {
  const std::vector<pid_t> family = live_descendants();
  Reading now{.time = 0, .memory = memory_now(family), .disk = since_start(disk_traffic(family))};
  now.time = elapsed();
  note(now);
  if (file_) {
    file_->append(checkpoint_text({.step = std::move(step),
                                   .timestamp = started_unix_ + now.time,
                                   .relative = now.time,
                                   .resident = now.memory.resident,
                                   .disk_read = now.disk.read,
                                   .disk_written = now.disk.written,
                                   .gpu_memory = gpu_memory_}));
  }
  return now;
}

/// Merges a reading into the timeline and the peaks of the run and of every open stage. The caller holds the mutex.
void Profiler::note(const Reading& reading) {
  Memory memory = reading.memory;
  // Where the kernel's high-water mark rose since the last reading, that was the peak in between.
  const std::uint64_t high_water = peak_resident();
  if (high_water > high_water_) memory.resident = std::max(memory.resident, high_water);
  high_water_ = std::max(high_water_, high_water);
  peak_.resident = std::max(peak_.resident, memory.resident);
  peak_.anonymous = std::max(peak_.anonymous, memory.anonymous);
  for (Stage& stage : stages_) {
    if (!stage.open) continue;
    stage.time.peak_memory = std::max(stage.time.peak_memory, memory.resident);
    stage.time.peak_anonymous = std::max(stage.time.peak_anonymous, memory.anonymous);
  }
  const auto device = device_.counters();
  timeline_.add({.time = reading.time,
                 .resident = memory.resident,
                 .anonymous = memory.anonymous,
                 .disk_read = reading.disk.read,
                 .disk_written = reading.disk.written,
                 .gpu_memory = gpu_memory_to_note_,
                 .gpu_busy = gpu_busy_,
                 .device_memory = device.memory_peak,
                 .device_copied = device.bus_bytes,
                 .device_storage = device.storage_bytes});
  gpu_memory_to_note_ = gpu_memory_.value_or(0);
}

Scope Profiler::scope(std::string_view name) {
  look_around();
  const std::lock_guard lock(mutex_);
  if (final_) return {nullptr, 0};
  Stage stage;
  stage.time.name = name;
  stage.peak_before = peak_resident();
  stage.cpu_before = cpu_seconds();
  stage.pressure_before = processor_pressure();
  stages_.push_back(std::move(stage));
  const Reading now = mark(fmt::format("{} Start", name));
  stages_.back().time.start = now.time;
  stages_.back().disk_before = now.disk;
  return {this, stages_.size() - 1};
}

void Profiler::close(std::size_t index) noexcept {
  try {
    look_around();
    const std::lock_guard lock(mutex_);
    if (final_) return;
    Stage& stage = stages_[index];
    measure_up_to(stage, mark(fmt::format("{} End", stage.time.name)));
    // A high-water mark that rose while the stage was open is its exact peak, which sampling may have missed.
    const std::uint64_t peak = peak_resident();
    if (peak > stage.peak_before) stage.time.peak_memory = std::max(stage.time.peak_memory, peak);
    stage.open = false;
  } catch (...) {  // out of memory: the stage stays open, and the run has worse to report
  }
}

/// The stage's figures that grow with time, as if it ended now.
void Profiler::measure_up_to(Stage& stage, const Reading& now) const {
  stage.time.seconds = now.time - stage.time.start;
  stage.time.cpu_seconds = cpu_seconds() - stage.cpu_before;
  stage.time.pressure_seconds = processor_pressure() - stage.pressure_before;
  stage.time.disk_read = since(now.disk.read, stage.disk_before.read);
  stage.time.disk_written = since(now.disk.written, stage.disk_before.written);
}

void Profiler::checkpoint(std::string_view name) {
  look_around();
  const std::lock_guard lock(mutex_);
  if (!final_) mark(std::string(name));
}

void Profiler::add_span(std::string name, double start, double seconds) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({std::move(name), start, seconds});
}

std::vector<TraceSpan> Profiler::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<TimelinePoint> Profiler::timeline() const {
  const std::lock_guard lock(mutex_);
  return timeline_.points();
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

void Profiler::read_gpu() {
  const std::lock_guard one_at_a_time(gpu_mutex_);
  if (!gpu_ && !gpu_sought_ && GpuMeter::driver_is_loaded()) {
    gpu_ = GpuMeter::open();
    gpu_sought_ = true;
  }
  if (!gpu_) return;
  const GpuMemory memory = gpu_->now();
  const std::lock_guard lock(mutex_);
  if (final_) return;
  if (memory.of_this_process && !gpu_memory_is_own_) {
    gpu_memory_is_own_ = true;
    peak_gpu_memory_.reset();  // until then it was of whole devices
    gpu_memory_to_note_ = 0;
  }
  gpu_memory_ = memory.bytes;
  gpu_busy_ = memory.busy_percent;
  gpu_memory_to_note_ = std::max(gpu_memory_to_note_, memory.bytes);
  peak_gpu_memory_ = std::max(peak_gpu_memory_.value_or(0), memory.bytes);
}

/// Reads what takes long, before the mutex is taken for a checkpoint.
void Profiler::look_around() {
  scan_directories(0s);
  read_gpu();
}

void Profiler::sample(const std::stop_token& stop) {
  become_background_thread();
  std::mutex idle;
  std::condition_variable_any wake;
  std::unique_lock waiting(idle);
  const OwnMemory own_memory;
  const OwnDiskTraffic own_disk;
  std::vector<pid_t> family;
  Memory family_memory;
  DiskTraffic disk;
  Clock::time_point next_family = Clock::now();
  while (!stop.stop_requested()) {
    try {
      if (const auto now = Clock::now(); now >= next_family) {
        family = live_descendants();
        family_memory = memory_of(family);
        disk = disk_traffic(family);
        read_gpu();
        next_family = now + kFamilyPeriod;
      } else if (family.empty()) {
        disk = own_disk.now();  // with children both change hands when one ends, so they are read at the same time
      }
      {
        // Reading under the lock keeps a reading from before a stage opened out of that stage.
        const std::lock_guard lock(mutex_);
        Memory memory = own_memory.now();
        note({.time = elapsed(), .memory = memory += family_memory, .disk = since_start(disk)});
      }
      scan_directories(kScanPeriod);
    } catch (...) {  // out of memory: one sample is lost
    }
    const double busy = cpu_seconds() + kLittle;
    do wake.wait_for(waiting, stop, kSamplePeriod, [] { return false; });
    while (!stop.stop_requested() && cpu_seconds() < busy && Clock::now() < next_family);
  }
}

Summary Profiler::summary_at(double relative) const {
  const DiskTraffic disk = since_start(disk_traffic());
  Summary summary{.seconds = relative,
                  .cpu_seconds = cpu_seconds() - cpu_before_,
                  .peak_memory = std::max(peak_.resident, peak_resident()),
                  .peak_anonymous = peak_.anonymous,
                  .disk_read = disk.read,
                  .disk_written = disk.written,
                  .peak_directories = peak_directories_,
                  .peak_gpu_memory = peak_gpu_memory_,
                  .stages = {}};
  for (Stage stage : stages_) {
    if (stage.open) measure_up_to(stage, {.time = relative, .memory = {}, .disk = disk});
    summary.stages.push_back(std::move(stage.time));
  }
  return summary;
}

Summary Profiler::summary() const {
  const std::lock_guard lock(mutex_);
  return final_ ? *final_ : summary_at(elapsed());
}

void Profiler::finish() {
  look_around();
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
  final_ = summary_at(mark("End").time);
  if (!file_) return;
  file_->append(summary_text(*final_));
  const std::exception_ptr failure = file_->failure();
  file_.reset();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detent::profile

namespace detent {

Profiler::Scope::Scope(std::unique_ptr<profile::Scope> scope) : scope_(std::move(scope)) {}
Profiler::Scope::Scope(Scope&&) noexcept = default;
Profiler::Scope::~Scope() = default;

Profiler::Profiler(const std::optional<std::filesystem::path>& yaml)
    : impl_(std::make_unique<profile::Profiler>(yaml)) {}
Profiler::~Profiler() = default;

Profiler::Scope Profiler::scope(std::string_view name) {
  return Scope(std::make_unique<profile::Scope>(impl_->scope(name)));
}
void Profiler::checkpoint(std::string_view name) { impl_->checkpoint(name); }
void Profiler::finish() { impl_->finish(); }

std::vector<StageReport> Profiler::stages() const {
  std::vector<StageReport> reports;
  for (const auto& stage : impl_->stages()) reports.push_back({stage.name, stage.seconds, stage.peak_memory});
  return reports;
}
std::uint64_t Profiler::peak_memory() const { return impl_->peak_memory(); }

}  // namespace detent
