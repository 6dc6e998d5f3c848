#include "profile/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

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

}  // namespace detent::profile
