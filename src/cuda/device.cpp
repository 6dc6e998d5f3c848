#include "cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace detent::cuda {
namespace {

using Clock = profile::DeviceActivity::Clock;

// Work is told of in the order in which it was queued, at the latest when so much more has been: by then it is done.
constexpr std::size_t kMostUnderWay = 256;
// The device tells times since the base in floats: after this long the base is set anew.
constexpr double kBaseSeconds = 10;

}  // namespace

void ActivityClock::log_to(profile::DeviceActivity* log, const Stream& stream) {
  log_ = log;
  if (log == nullptr) return;
  stream_ = &stream;
  base_ = std::make_unique<Event>(true);
  // Read before and not after: a thread that is held up here moves spans to the front, never past the run's end.
  base_seconds_ = log->seconds_at(Clock::now());
  base_->record(stream);
  base_->wait();
}

ActivityClock::Timed& ActivityClock::next() {
  if (under_way_.size() >= kMostUnderWay) tell_first();
  if (free_.empty()) {
    free_.emplace_back();
    free_.back().begin = std::make_unique<Event>(true);
    free_.back().end = std::make_unique<Event>(true);
  }
  under_way_.push_back(std::move(free_.back()));
  free_.pop_back();
  return under_way_.back();
}

void ActivityClock::tell_first() {
  Timed& timed = under_way_.front();
  timed.end->wait();
  log_->add(device_, timed.lane, timed.what, base_seconds_ + 1e-3 * timed.begin->milliseconds_since(*base_),
            1e-3 * timed.end->milliseconds_since(*timed.begin), timed.amount);
  free_.push_back(std::move(timed));
  under_way_.pop_front();
}

void ActivityClock::tell_host(DeviceLane lane, const char* what, std::uint64_t bytes, Clock::time_point begin) const {
  const double start = log_->seconds_at(begin);
  log_->add(device_, lane, what, start, log_->seconds_at(Clock::now()) - start, {bytes, 0});
}

void ActivityClock::report_finished_work() {
  if (log_ == nullptr) return;
  while (!under_way_.empty()) tell_first();
  if (log_->seconds_at(Clock::now()) - base_seconds_ > kBaseSeconds) log_to(log_, *stream_);
}

void MemoryBudget::require(std::uint64_t bytes, const std::string& what) const {
  if (bytes <= limit_ - used_) return;
  const auto [need, left] = format_sizes(bytes, limit_ - used_);
  throw resource_error(
      fmt::format("{} needs {} on cuda:{}, but only {} of its budget are left", what, need, device_, left),
      "raise --set device-memory-budget, or give --device cpu");
}

void MemoryBudget::take(std::uint64_t bytes, const std::string& what) {
  require(bytes, what);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (log_ != nullptr) log_->set_memory(device_, used_);
}

void MemoryBudget::give_back(std::uint64_t bytes) noexcept {
  used_ -= bytes;
  if (log_ != nullptr) log_->set_memory(device_, used_);
}

}  // namespace detent::cuda
