#include "run/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <compare>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/parallel.h"
#include "calibrate/observers.h"
#include "data/sample_inputs.h"
#include "exec/sweep.h"
#include "graph/index.h"
#include "plan/calibration.h"
#include "run/model_fingerprint.h"
#include "run/sample_queue.h"

namespace detent::run {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<calibration::Observed> observed_values(const onnx::Model& model, const graph::Index& index,
                                                   const std::vector<std::string>& values) {
  std::vector<calibration::Observed> observed;
  for (const auto& value : values) {
    const int producer = index.producer(value);
    observed.push_back({value, producer == graph::kNone
                                   ? "graph input"
                                   : "made by " + model.graph.nodes[static_cast<std::size_t>(producer)].label()});
  }
  return observed;
}

exec::SessionOptions session_options(const onnx::Model& model, const CollectOptions& options) {
  exec::SessionOptions session{options.device == nullptr ? planning::tuning_for(model) : exec::Tuning::lean,
                               options.threads,
                               options.stop,
                               options.workers > 1,
                               {}};
  if (options.device != nullptr) session.device = &options.device->place();
  if (options.recording != nullptr) {
    session.record = options.recording->directory / "runtime";
  } else if (options.device != nullptr) {
    session.record = options.on_device->directory / "runtime";
  }
  return session;
}

std::unique_ptr<calibration::Observation> make_observers(const std::vector<calibration::Observed>& observed,
                                                         const CollectOptions& options) {
  const calibration::ObserverOptions observing{options.histograms, options.votes, options.allow_nonfinite,
                                               thread_count(options.threads)};
  if (options.device == nullptr) return std::make_unique<calibration::Observers>(observed, observing);
  return std::make_unique<calibration::DeviceObservers>(observed, observing, *options.device);
}

void add_left_on_host(const std::vector<exec::NodeTime>& nodes, const std::string& provider, OnDevice& on_device) {
  for (const auto& node : nodes) {
    if (node.op_type.starts_with("Memcpy")) {
      ++on_device.copies;
    } else if (node.provider != provider) {
      ++on_device.nodes[node.op_type];
    }
  }
}

struct Item {
  std::size_t number = 0;
  std::string origin;
  std::optional<data::Sample> sample;  // in the first segment
};

// One sweep over all segments, and what it has found so far.
class Collector {
 public:
  Collector(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
            data::SampleSource& source, const CollectOptions& options)
      : model_(prepared.model),
        source_(source),
        options_(options),
        where_(fmt::format("model '{}'", prepared.model.path.string())),
        started_(Clock::now()),
        branch_(runtime, prepared.model, prepared.types, options.cuts, options.spool,
                {.session = session_options(prepared.model, options),
                 .taps = placement.to_observe(),
                 .batch_invariant = options.device == nullptr,
                 .name = "",
                 .inputs_of = [this](std::size_t sample) { return inputs_of(sample); }}) {}

  calibration::Statistics run() {
    bool goes_on = false;
    if (options_.earlier != nullptr) {
      state_ = *options_.earlier;
      reached_ = {state_.segment, state_.done};
      check_samples();
      goes_on = can_go_on();
    }
    state_.cuts = options_.cuts;
    source_.rewind();
    for (std::size_t segment = goes_on ? reached_.segment : 0; segment < branch_.segments(); ++segment)
      run_segment(segment, goes_on && segment == reached_.segment ? reached_.sample : 0);
    if (options_.keep_result && options_.checkpoints != nullptr) put_down(branch_.segments(), 0);
    calibration::Statistics all = std::move(state_.statistics);
    all.samples = state_.samples;
    all.has_histograms = options_.histograms;
    all.has_votes = options_.votes;
    return all;
  }

 private:
  struct Worker {
    std::unique_ptr<calibration::Observation> observers;
    Fingerprint data;
  };
  struct Position {
    std::size_t segment = 0;
    std::size_t sample = 0;
    auto operator<=>(const Position&) const = default;
  };

  // Whether records of an earlier process let the sweep go on where that one stopped. Else it runs again from the
  // start, and leaves out of the statistics what they hold already.
  bool can_go_on() const {
    for (std::size_t sample = 0; sample < reached_.sample; ++sample) {
      if (!branch_.holds_outputs(reached_.segment, sample)) return false;
    }
    for (std::size_t sample = reached_.sample; sample < state_.samples; ++sample) {
      if (!branch_.holds_inputs(reached_.segment, sample)) return false;
    }
    return branch_.holds_later(reached_.segment, state_.samples);
  }

  // The statistics say which samples they were taken from.
  void check_samples() {
    Fingerprint data;
    const bool all = reached_.segment > 0;
    while (all || origins_.size() < reached_.sample) {
      const auto sample = source_.next();
      if (!sample) break;
      data += fingerprint_of(*sample);
      origins_.push_back(sample->origin);
    }
    if (data != state_.statistics.data)
      throw bad_input("the calibration data are not those of the interrupted run", "run without --resume");
  }

  std::vector<data::Array> inputs_of(std::size_t wanted) {
    const std::lock_guard lock(source_mutex_);
    return data::sample_inputs(source_, wanted);
  }

  std::optional<Item> next_item(std::size_t segment) {
    if (segment > 0) {
      if (next_ == state_.samples) return std::nullopt;
      const std::size_t number = next_++;
      return Item{number, origins_.at(number), std::nullopt};
    }
    const std::lock_guard lock(source_mutex_);
    auto sample = source_.next();
    if (!sample) return std::nullopt;
    if (origins_.size() == next_) origins_.push_back(sample->origin);
    std::string origin = sample->origin;
    return Item{next_++, std::move(origin), std::move(sample)};
  }

  void run_segment(std::size_t segment, std::size_t from) {
    const double session_start = seconds_since(started_);
    auto stage = branch_.load(segment, where_);
    const auto observed = observed_values(model_, branch_.index(), stage.taps());
    std::vector<Worker> workers;
    for (int w = 0; w < std::max(options_.workers, 1); ++w) workers.push_back({make_observers(observed, options_), {}});
    if (segment == 0) {
      for (std::size_t skipped = 0; skipped < from; ++skipped) source_.next();
    } else {
      branch_.announce(segment, from, state_.samples);
    }
    next_ = released_ = from;
    const calibration::Statistics before = state_.statistics;
    if (options_.recording != nullptr || options_.device != nullptr)
      record(segment, stage, workers.front(), session_start);
    for (bool all = false; !all;) {
      all = run_round(segment, stage, workers);
      state_.statistics = before;
      for (const auto& worker : workers) {
        auto part = worker.observers->statistics();
        part.data = worker.data;
        state_.statistics.merge(part);
      }
      if (!all) put_down(segment, next_);
    }
    if (segment == 0) state_.samples = next_;
    for (const auto& worker : workers) {
      if (options_.device != nullptr) options_.on_device->observing += worker.observers->device_work();
    }
    if (options_.weights_at_hand) options_.weights_at_hand(branch_.weights_of(segment));
    failpoint("calibrate.segment");
    if (segment + 1 == branch_.segments()) return;
    const bool on_disk = options_.spool->use().disk_peak > 0;
    if (options_.checkpoints != nullptr && (on_disk || Clock::now() >= options_.checkpoints->due()))
      put_down(segment + 1, 0);
    branch_.finish(segment);
  }

  // The first run warms up, the second is the one that counts.
  void record(std::size_t segment, exec::Stage& stage, Worker& worker, double session_start) {
    SampleQueue<Item> queue([&] { return next_item(segment); }, std::nullopt);
    for (int run = 0; run < 2; ++run) step(segment, stage, queue, worker);
    queue.finish();
    auto nodes = stage.end_recording();
    if (options_.device != nullptr) add_left_on_host(nodes, options_.device->place().provider, *options_.on_device);
    // Of nodes on a device the runtime's profile has the time of starting them only.
    if (options_.recording == nullptr || options_.device != nullptr) return;
    Recording& recording = *options_.recording;
    if (segment == 0) recording.session_seconds = session_start;
    for (auto& node : nodes) {
      node.start += session_start - recording.session_seconds;
      recording.nodes.push_back(std::move(node));
    }
  }

  // Until all samples are through, or progress is to be put down.
  bool run_round(std::size_t segment, exec::Stage& stage, std::vector<Worker>& workers) {
    std::optional<Clock::time_point> until;
    if (options_.checkpoints != nullptr) until = options_.checkpoints->due();
    SampleQueue<Item> queue([&] { return next_item(segment); }, until);
    const auto run_all = [&](Worker& worker) {
      while (step(segment, stage, queue, worker)) {
      }
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t w = 1; w < workers.size(); ++w) others.emplace_back([&, w] { run_all(workers[w]); });
      run_all(workers.front());
    }
    return queue.finish();
  }

  bool step(std::size_t segment, exec::Stage& stage, SampleQueue<Item>& queue, Worker& worker) {
    const auto item = queue.take();
    if (!item) return false;
    try {
      run_sample(segment, stage, *item, worker);
      failpoint("calibrate.sample");
      done(segment);
    } catch (...) {
      queue.failed(item->number, std::current_exception());
    }
    return true;
  }

  void run_sample(std::size_t segment, exec::Stage& stage, const Item& item, Worker& worker) {
    const bool observed = Position{segment, item.number} >= reached_;
    exec::DeafReceiver deaf;  // it was observed before
    exec::TapReceiver* receiver = &deaf;
    if (observed) {
      worker.observers->begin_sample(item.origin);
      receiver = worker.observers.get();
    }
    const auto inputs =
        item.sample ? std::span<const data::Array>(item.sample->inputs) : std::span<const data::Array>();
    stage.run(item.number, inputs, fmt::format("{}, sample '{}'", where_, item.origin), receiver);
    if (observed) worker.observers->end_sample();
    if (options_.device != nullptr) {
      for (const auto& input : inputs) options_.on_device->input_bytes += input.bytes.size();
    }
    if (observed && item.sample) worker.data += fingerprint_of(*item.sample);
    if (options_.spool != nullptr) branch_.release(segment, item.number, options_.checkpoints == nullptr);
  }

  void done(std::size_t segment) {
    const std::lock_guard lock(done_mutex_);
    ++done_;
    if (!options_.progress) return;
    const std::size_t samples = segment == 0 ? source_.file_count() : state_.samples;
    options_.progress("calibrate", done_, samples * branch_.segments());
  }

  // What came before is not put down again.
  void put_down(std::size_t segment, std::size_t done) {
    if (Position{segment, done} < reached_) return;
    state_.segment = segment;
    state_.done = done;
    if (options_.spool != nullptr) options_.spool->sync();
    state_.statistics.has_histograms = options_.histograms;
    state_.statistics.has_votes = options_.votes;
    options_.checkpoints->save(state_);
    if (options_.spool == nullptr || segment == 0) return;
    for (; released_ < done; ++released_) branch_.release(segment, released_, true);
  }

  const onnx::Model& model_;
  data::SampleSource& source_;
  const CollectOptions& options_;
  std::string where_;
  Clock::time_point started_;
  exec::Branch branch_;

  Progressed state_;
  Position reached_;                  // by an earlier process
  std::mutex source_mutex_;           // of the next three
  std::size_t next_ = 0;              // sample of the segment at work
  std::vector<std::string> origins_;  // of the samples, for messages
  std::size_t released_ = 0;
  std::mutex done_mutex_;
  std::uint64_t done_ = 0;
};

}  // namespace

calibration::Statistics collect(const Prepared& prepared, const quantization::Placement& placement,
                                const exec::Runtime& runtime, data::SampleSource& source,
                                const CollectOptions& options) {
  return Collector(prepared, placement, runtime, source, options).run();
}

}  // namespace detent::run
