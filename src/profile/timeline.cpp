#include "profile/timeline.h"

#include <algorithm>
#include <cmath>

namespace detent::profile {
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

}  // namespace detent::profile
