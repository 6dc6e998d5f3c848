// The course of a run: memory and disk traffic over time, in a bounded number of points however long it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace detent::profile {

/// The run up to `time` since the point before: memory is the largest seen in between, disk what had gone through by
/// then since the start of the profile. Bytes; children included.
struct TimelinePoint {
  double time = 0;  // seconds since the start of the profile
  std::uint64_t resident = 0;
  std::uint64_t anonymous = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_written = 0;
  std::uint64_t gpu_memory = 0;  // 0 where no GPU is measured
  unsigned gpu_busy = 0;         // percent, see GpuMemory; the largest in between
  // Of all devices that detent drives, see DeviceActivity; 0 where nothing was told.
  std::uint64_t device_memory = 0;   // the largest in between
  std::uint64_t device_copied = 0;   // over the bus by then
  std::uint64_t device_storage = 0;  // from storage by then
};

/// Points evenly spread over the time: at most one for each step, and the step doubles whenever there are too many.
/// Not for several threads at a time.
class Timeline {
 public:
  static constexpr std::size_t kCapacity = 2000;
  static constexpr double kFirstStep = 0.02;

  /// `capacity` is at least 2, `step` in seconds is positive.
  explicit Timeline(std::size_t capacity = kCapacity, double step = kFirstStep);

  /// Readings come in the order of time; one that is earlier than the last counts as taken with it. Disk figures never
  /// fall: what a child took with it stays counted.
  void add(TimelinePoint reading);

  /// Oldest first, each later than the one before; never more than the capacity.
  const std::vector<TimelinePoint>& points() const noexcept { return points_; }
  /// Seconds that one point stands for.
  double step() const noexcept { return step_; }

 private:
  bool same_step(double a, double b) const noexcept;
  void thin();

  std::size_t capacity_;
  double step_;
  std::vector<TimelinePoint> points_;
};

}  // namespace detent::profile
