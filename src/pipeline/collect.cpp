#include "pipeline/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "calibrate/observers.h"
#include "exec/batch_invariant.h"
#include "exec/emit.h"
#include "graph/index.h"
#include "pipeline/identity.h"
#include "plan/calibration.h"

namespace detent::pipeline {
namespace {

std::vector<calibration::Observed> observed_values(const onnx::Model& model, const std::vector<std::string>& values) {
  const graph::Index index(model);
  std::vector<calibration::Observed> observed;
  for (const auto& value : values) {
    const int producer = index.producer(value);
    observed.push_back({value, producer == graph::kNone
                                   ? "graph input"
                                   : "made by " + model.graph.nodes[static_cast<std::size_t>(producer)].label()});
  }
  return observed;
}

// What the workers share: the samples, and the first error.
class Queue {
 public:
  Queue(data::SampleSource& source, const CollectOptions& options) : source_(source), options_(options) {}

  struct Item {
    std::uint64_t number = 0;
    data::Sample sample;
  };

  std::optional<Item> next() {
    const std::lock_guard lock(mutex_);
    if (failure_) return std::nullopt;
    try {
      auto sample = source_.next();
      if (!sample) return std::nullopt;
      return Item{taken_++, std::move(*sample)};
    } catch (...) {
      keep(taken_, std::current_exception());
      return std::nullopt;
    }
  }

  void done() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (options_.progress) options_.progress("calibrate", done_, source_.file_count());
  }

  void failed(std::uint64_t number, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    keep(number, std::move(error));
  }

  /// After all workers have ended.
  std::uint64_t finish() const {
    if (failure_) std::rethrow_exception(failure_);
    return done_;
  }

 private:
  void keep(std::uint64_t number, std::exception_ptr error) {
    if (failure_ && number >= failed_) return;
    failed_ = number;
    failure_ = std::move(error);
  }

  data::SampleSource& source_;
  const CollectOptions& options_;
  std::mutex mutex_;
  std::uint64_t taken_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t failed_ = 0;
  std::exception_ptr failure_;
};

struct Worker {
  calibration::Observers observers;
  Fingerprint data;

  // Runs the next sample, if there is one.
  bool step(Queue& queue, exec::Session& session, const std::string& where) {
    const auto item = queue.next();
    if (!item) return false;
    try {
      observers.begin_sample(item->sample.origin);
      session.run(item->sample.inputs, fmt::format("{}, sample '{}'", where, item->sample.origin), &observers);
      data += fingerprint_of(item->sample);
      queue.done();
    } catch (...) {
      queue.failed(item->number, std::current_exception());
    }
    return true;
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The sum over the workers, each of which saw a part of the samples.
calibration::Statistics sum_of(const std::vector<Worker>& workers) {
  calibration::Statistics all;
  for (const auto& worker : workers) {
    auto part = worker.observers.statistics();
    part.data = worker.data;
    all.merge(part);
  }
  return all;
}

}  // namespace

std::size_t thread_count(int threads) {
  return threads > 0 ? static_cast<std::size_t>(threads) : std::max(1U, std::thread::hardware_concurrency());
}

calibration::Statistics collect(const Prepared& prepared, const quantization::Placement& placement,
                                const exec::Runtime& runtime, data::SampleSource& source,
                                const CollectOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const std::string where = fmt::format("model '{}'", prepared.model.path.string());
  const auto values = placement.to_observe();
  const auto observed = observed_values(prepared.model, values);
  onnx::Model tapped = prepared.model;
  exec::make_batch_invariant(tapped, prepared.types);
  if (options.recording != nullptr) options.recording->session_seconds = seconds_since(started);
  exec::Session session(runtime, exec::emit(tapped, {values, {}, {}}), where,
                        {planning::tuning_for(prepared.model), options.threads, options.stop, options.workers > 1,
                         options.recording != nullptr ? options.recording->directory / "runtime" : ""});

  Queue queue(source, options);
  std::vector<Worker> workers;
  for (int w = 0; w < std::max(options.workers, 1); ++w) {
    workers.push_back({calibration::Observers(observed, {options.histograms, options.votes, options.allow_nonfinite,
                                                         thread_count(options.threads)}),
                       {}});
  }
  const auto run_all = [&](Worker& worker) {
    while (worker.step(queue, session, where)) {
    }
  };
  if (options.recording != nullptr) {
    // The first run warms up, the second is the one that counts.
    for (int run = 0; run < 2; ++run) workers.front().step(queue, session, where);
    options.recording->nodes = session.end_recording();
  }
  {
    std::vector<std::jthread> others;
    for (std::size_t w = 1; w < workers.size(); ++w) others.emplace_back([&, w] { run_all(workers[w]); });
    run_all(workers.front());
  }
  const std::uint64_t samples = queue.finish();
  calibration::Statistics statistics = sum_of(workers);
  statistics.samples = samples;
  statistics.has_histograms = options.histograms;
  statistics.has_votes = options.votes;
  return statistics;
}

}  // namespace detent::pipeline
