#include "run/float_runs.h"

#include <fmt/format.h>

#include <utility>

namespace detent::run {
namespace {

std::uint64_t bytes_of(const FloatRun& run) {
  std::uint64_t bytes = 0;
  for (const auto* arrays : {&run.sample.inputs, &run.results}) {
    for (const auto& array : *arrays) bytes += array.bytes.size();
  }
  return bytes;
}

}  // namespace

FloatRuns::FloatRuns(exec::Session session, data::SampleSource& source, std::size_t most, data::TapReceiver* receiver)
    : session_(std::move(session)), source_(source), left_(most), receiver_(receiver) {}

void FloatRuns::run_ahead(std::uint64_t bytes) {
  std::uint64_t taken = 0;
  while (taken < bytes) {
    auto next = run();
    if (!next) {
      session_.reset();
      return;
    }
    taken += bytes_of(*next);
    ahead_.push_back(std::move(*next));
  }
}

std::optional<FloatRun> FloatRuns::next() {
  if (ahead_.empty()) return run();
  auto first = std::move(ahead_.front());
  ahead_.pop_front();
  return first;
}

std::optional<FloatRun> FloatRuns::run() {
  if (left_ == 0 || !session_) return std::nullopt;
  auto sample = source_.next();
  if (!sample) return std::nullopt;
  --left_;
  auto results = session_->run(sample->inputs, fmt::format("sample '{}'", sample->origin), receiver_);
  return FloatRun{std::move(*sample), std::move(results)};
}

}  // namespace detent::run
