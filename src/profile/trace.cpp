#include "profile/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBeginning = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"writer\":\"detent\"}";

// A run of thirty years is long enough: sums stay finite, and figures plain.
double sane(double seconds) { return std::isfinite(seconds) && seconds > 0 ? std::min(seconds, 1e9) : 0; }
double microseconds(double seconds) { return sane(seconds) * 1e6; }
double mb(std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

std::string as_json(std::string_view text) { return json_text(nlohmann::json(text)); }

struct Bar {
  std::string_view name;
  double start = 0;
  double end = 0;
  std::size_t lane = 0;
};

template <typename Item>
std::vector<Bar> bars_of(const std::vector<Item>& items) {
  std::vector<Bar> bars;
  for (const Item& item : items) {
    const double start = sane(item.start);
    bars.push_back({item.name, start, start + sane(item.seconds), 0});
  }
  // Of two that start together the longer is around the shorter.
  std::stable_sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) {
    return a.start < b.start || (a.start == b.start && a.end > b.end);
  });
  return bars;
}

/// Gives each bar the first lane where it lies beside or inside the others; returns the number of lanes.
std::size_t place(std::vector<Bar>& bars) {
  std::vector<std::vector<double>> open;  // for each lane the ends of the bars around here, innermost last
  for (Bar& bar : bars) {
    for (bar.lane = 0;; ++bar.lane) {
      if (bar.lane == open.size()) open.emplace_back();
      auto& ends = open[bar.lane];
      while (!ends.empty() && ends.back() <= bar.start) ends.pop_back();
      if (ends.empty() || bar.end <= ends.back()) break;
    }
    open[bar.lane].push_back(bar.end);
  }
  return open.size();
}

struct Event {
  double time;
  std::string text;
};

class Trace {
 public:
  Trace() { events_.push_back({0, R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"detent"}})"}); }

  /// Bars of one kind on tracks from `first_track` on.
  void add_bars(std::vector<Bar> bars, std::string_view kind, std::size_t first_track) {
    const std::size_t lanes = place(bars);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const std::string name = lane == 0 ? std::string(kind) : fmt::format("{} {}", kind, lane + 1);
      const std::size_t track = first_track + lane;
      add(0, R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":{}}}}})", track, as_json(name));
      add(0, R"({{"ph":"M","pid":1,"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", track, track);
    }
    for (const Bar& bar : bars) {
      add(bar.start, R"({{"ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":{},"name":{}}})",
          first_track + bar.lane, microseconds(bar.start), microseconds(bar.end - bar.start), as_json(kind),
          as_json(bar.name));
    }
  }

  void add_curves(const std::vector<TimelinePoint>& points) {
    const bool gpu = std::any_of(points.begin(), points.end(), [](const auto& p) { return p.gpu_memory > 0; });
    const bool device = std::any_of(points.begin(), points.end(), [](const auto& p) { return p.device_memory > 0; });
    for (std::size_t i = 0; i < points.size(); ++i) {
      const TimelinePoint& point = points[i];
      // The two are drawn one on the other, and together are the resident memory.
      counter(point.time, "memory (MB)", "anonymous", mb(point.anonymous), "file-backed",
              mb(point.resident - std::min(point.resident, point.anonymous)));
      if (gpu) {
        counter(point.time, "GPU memory (MB)", "used", mb(point.gpu_memory));
        add(point.time, R"({{"ph":"C","pid":1,"ts":{:.3f},"name":"{}","args":{{"busy":{}}}}})",
            microseconds(point.time), "GPU (%)", point.gpu_busy);
      }
      // A rate is drawn from its event on, so it goes with the point where the time it is for begins.
      const TimelinePoint& next = points[std::min(i + 1, points.size() - 1)];
      if (device) {
        counter(point.time, "GPU memory taken by detent (MB)", "taken", mb(point.device_memory));
        counter(point.time, "bus to the GPU (MB/s)", "copied",
                rate(point, next, point.device_copied, next.device_copied));
        counter(point.time, "storage to the GPU (MB/s)", "read",
                rate(point, next, point.device_storage, next.device_storage));
      }
      counter(point.time, "disk (MB/s)", "read", rate(point, next, point.disk_read, next.disk_read), "write",
              rate(point, next, point.disk_written, next.disk_written));
    }
  }

  std::string text() {
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
    std::string result = fmt::format("{},\"traceEvents\":[\n", kBeginning);
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (i > 0) result += ",\n";
      result += events_[i].text;
    }
    return result + "\n]}\n";
  }

 private:
  static double rate(const TimelinePoint& a, const TimelinePoint& b, std::uint64_t from, std::uint64_t to) {
    return b.time > a.time && to > from ? mb(to - from) / (b.time - a.time) : 0;
  }

  void counter(double time, std::string_view name, std::string_view one, double first) {
    add(time, R"({{"ph":"C","pid":1,"ts":{:.3f},"name":"{}","args":{{"{}":{:.3f}}}}})", microseconds(time), name, one,
        first);
  }
  void counter(double time, std::string_view name, std::string_view one, double first, std::string_view other,
               double second) {
    add(time, R"({{"ph":"C","pid":1,"ts":{:.3f},"name":"{}","args":{{"{}":{:.3f},"{}":{:.3f}}}}})", microseconds(time),
        name, one, first, other, second);
  }

  template <typename... Arguments>
  void add(double time, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    events_.push_back({sane(time), fmt::format(format, std::forward<Arguments>(arguments)...)});
  }

  std::vector<Event> events_;
};

}  // namespace

void check_trace_path(const fs::path& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return;  // nothing there, or write_trace will tell
  std::array<char, kBeginning.size()> start{};
  const ssize_t n = S_ISREG(info.st_mode) ? ::pread(file.get(), start.data(), start.size(), 0) : -1;
  const std::string_view text(start.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  if (n == 0 || text == kBeginning) return;
  throw usage_error(fmt::format("'{}' exists and is not a trace of detent", path.string()),
                    "choose another path for the trace, or remove that file");
}

void write_trace(const fs::path& path, const std::vector<StageTime>& stages, const std::vector<TimelinePoint>& timeline,
                 const std::vector<TraceSpan>& spans) {
  check_trace_path(path);
  constexpr std::size_t kStages = 1;
  constexpr std::size_t kTracks = 1000;  // for each lane
  Trace trace;
  trace.add_bars(bars_of(stages), "stages", kStages);
  std::map<std::string, std::vector<TraceSpan>> lanes{{"", {}}};
  for (const auto& span : spans) lanes[span.lane].push_back(span);
  std::size_t first = kTracks;
  for (const auto& [lane, bars] : lanes) {
    trace.add_bars(bars_of(bars), lane.empty() ? "layers" : lane, first);
    first += kTracks;
  }
  trace.add_curves(timeline);
  AtomicFile file(path);
  file.write(as_byte_span(trace.text()));
  file.commit();
}

namespace {

void merge(TimelinePoint& into, const TimelinePoint& later) {
  into.time = later.time;
  into.resident = std::max(into.resident, later.resident);
  into.anonymous = std::max(into.anonymous, later.anonymous);
  into.disk_read = later.disk_read;
  into.disk_written = later.disk_written;
  into.gpu_memory = std::max(into.gpu_memory, later.gpu_memory);
  into.gpu_busy = std::max(into.gpu_busy, later.gpu_busy);
  into.device_memory = std::max(into.device_memory, later.device_memory);
  into.device_copied = later.device_copied;
  into.device_storage = later.device_storage;
}

}  // namespace

Timeline::Timeline(std::size_t capacity, double step) : capacity_(std::max<std::size_t>(capacity, 2)), step_(step) {}

bool Timeline::same_step(double a, double b) const noexcept { return std::floor(a / step_) == std::floor(b / step_); }

void Timeline::add(TimelinePoint reading) {
  if (points_.empty()) {
    points_.push_back(reading);
    return;
  }
  TimelinePoint& last = points_.back();
  reading.time = std::max(reading.time, last.time);
  reading.disk_read = std::max(reading.disk_read, last.disk_read);
  reading.disk_written = std::max(reading.disk_written, last.disk_written);
  if (reading.time == last.time || same_step(last.time, reading.time)) {
    merge(last, reading);
    return;
  }
  if (points_.size() == capacity_) thin();
  // The last point may have come to stand for this reading's step as well.
  if (same_step(points_.back().time, reading.time)) {
    merge(points_.back(), reading);
  } else {
    points_.push_back(reading);
  }
}

void Timeline::thin() {
  while (points_.size() >= capacity_) {
    step_ *= 2;
    std::size_t kept = 0;
    for (std::size_t i = 1; i < points_.size(); ++i) {
      if (same_step(points_[kept].time, points_[i].time)) {
        merge(points_[kept], points_[i]);
      } else {
        points_[++kept] = points_[i];
      }
    }
    points_.resize(kept + 1);
  }
}

std::string_view lane_name(DeviceLane lane) noexcept {
  switch (lane) {
    case DeviceLane::gather: return "gather";
    case DeviceLane::read: return "read";
    case DeviceLane::copy: return "copy";
    case DeviceLane::compute: return "compute";
  }
  return "unknown";
}

double DeviceActivity::seconds_at(Clock::time_point moment) const noexcept {
  return std::chrono::duration<double>(moment - start_).count();
}

void DeviceActivity::begin_run() {
  const std::lock_guard lock(mutex_);
  totals_.clear();
  for (auto& [number, use] : devices_) use.use = {.number = number, .name = "", .storage = ""};
}

void DeviceActivity::begin(std::string work, std::size_t most) {
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  // A part of what is left, so that there is something left for whatever comes.
  constexpr std::size_t kShare = 32;
  most_ = std::min(most, (kMostSpans - std::min(spans_.size(), kMostSpans)) / kShare);
  kept_here_.clear();
}

void DeviceActivity::add(int device, DeviceLane lane, std::string_view what, double start, double seconds,
                         DeviceAmount amount) {
  const std::lock_guard lock(mutex_);
  DeviceTotal& total = totals_[Kind(device, lane, what)];
  ++total.count;
  total.seconds += seconds;
  total.amount.bytes += amount.bytes;
  total.amount.flops += amount.flops;
  if (lane == DeviceLane::copy) counters_.bus_bytes += amount.bytes;
  if (lane == DeviceLane::read) counters_.storage_bytes += amount.bytes;
  std::size_t& kept = kept_here_[{device, lane}];
  if (kept >= most_ || spans_.size() >= kMostSpans) return;
  ++kept;
  spans_.push_back({work_.empty() ? std::string(what) : fmt::format("{}: {}", what, work_), start, seconds,
                    fmt::format("cuda:{} {}", device, lane_name(lane))});
}

DeviceActivity::Use& DeviceActivity::use_of(int number) {
  Use& use = devices_[number];
  use.use.number = number;
  return use;
}

// A device may be opened once for calibration and once for fine-tuning.
void DeviceActivity::add_device(int number, std::string name, std::uint64_t memory_budget) {
  const std::lock_guard lock(mutex_);
  Use& use = use_of(number);
  use.use.name = std::move(name);
  use.use.memory_budget = std::max(use.use.memory_budget, memory_budget);
}

void DeviceActivity::add_memory_estimate(int number, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  DeviceUse& use = use_of(number).use;
  use.memory_foretold = std::max(use.memory_foretold, bytes);
}

void DeviceActivity::set_memory(int number, std::uint64_t used) {
  const std::lock_guard lock(mutex_);
  Use& use = use_of(number);
  counters_.memory += used - use.memory;
  counters_.memory_peak = std::max(counters_.memory_peak, counters_.memory);
  use.memory = used;
  use.use.memory_peak = std::max(use.use.memory_peak, used);
}

void DeviceActivity::set_storage(int number, std::string how) {
  const std::lock_guard lock(mutex_);
  use_of(number).use.storage = std::move(how);
}

DeviceActivity::Counters DeviceActivity::counters() {
  const std::lock_guard lock(mutex_);
  const Counters now = counters_;
  counters_.memory_peak = counters_.memory;
  return now;
}

std::vector<TraceSpan> DeviceActivity::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<DeviceTotal> DeviceActivity::totals() const {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceTotal> totals;
  for (const auto& [kind, total] : totals_) {
    totals.push_back(total);
    std::tie(totals.back().device, totals.back().lane, totals.back().what) = kind;
  }
  return totals;
}

std::vector<DeviceUse> DeviceActivity::devices() const {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceUse> uses;  // those that this run has opened
  for (const auto& [number, use] : devices_) {
    if (!use.use.name.empty()) uses.push_back(use.use);
  }
  return uses;
}

}  // namespace detent::profile
