#include "cuda/activity.h"

#include <utility>

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

}  // namespace detent::cuda
