#include "run/comparison/float_runs.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/heap.h"
#include "run/samples/samples.h"

namespace detent::run {
namespace {

std::uint64_t bytes_of(const FloatRun& made) { return run::bytes_of(made.sample.inputs) + run::bytes_of(made.results); }

}  // namespace

FloatModel model_of_session(std::function<exec::Session()> open, data::TapReceiver* receiver) {
  const auto session = std::make_shared<std::optional<exec::Session>>();
  return {[session, receiver, open = std::move(open)](const data::Sample& sample) {
            std::optional<LargeBlocksApart> apart;  // while it is read, and takes its memory in the first run
            if (!*session) {
              apart.emplace();
              session->emplace(open());
            }
            return (*session)->run(sample.inputs, fmt::format("sample '{}'", sample.origin), receiver);
          },
          [session] { session->reset(); }};
}

FloatRuns::FloatRuns(FloatModel model, data::SampleSource& source, std::size_t most, KeptFloatRuns* kept)
    : model_(std::move(model)), source_(source), left_(most), kept_(kept) {
  if (kept_ == nullptr) return;
  if (kept_->are_all) {
    ahead_.assign(kept_->runs.begin(), kept_->runs.end());
    ended_ = true;
    kept_ = nullptr;
  } else {
    kept_->runs.clear();  // of a comparison that broke off
  }
}

void FloatRuns::run_ahead(std::uint64_t bytes) {
  std::uint64_t taken = 0;
  while (taken < bytes) {
    auto next = run();
    if (!next) {
      model_.close();
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
  if (ended_) return std::nullopt;
  std::optional<FloatRun> next;
  auto sample = left_ > 0 ? source_.next() : std::nullopt;
  if (sample) {
    --left_;
    auto results = model_.run(*sample);
    next = FloatRun{std::move(*sample), std::move(results)};
  }
  ended_ = !next;
  keep(next);
  return next;
}

void FloatRuns::keep(const std::optional<FloatRun>& run) {
  if (kept_ == nullptr) return;
  if (!run) {
    kept_->are_all = true;
  } else if ((kept_bytes_ += bytes_of(*run)) <= kept_->limit) {
    kept_->runs.push_back(*run);
  } else {
    kept_->runs.clear();
    kept_ = nullptr;
  }
}

}  // namespace detent::run
