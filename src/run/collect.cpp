#include "run/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <compare>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "calibration/observers.h"
#include "calibration/statistics_file.h"
#include "exec/sweep.h"
#include "graph/index.h"
#include "planning/memory.h"
#include "run/samples/sample_feed.h"
#include "shim/shared_work.h"

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

exec::SessionOptions session_options(const onnx::Model& model, const Context& context, const CollectOptions& options) {
  exec::SessionOptions session{options.device == nullptr ? planning::session_mode_for(model) : exec::SessionMode::lean,
                               context.threads, context.stop};
  if (options.device != nullptr) session.device = &options.device->place();
  if (options.recording != nullptr) {
    session.record = options.recording->directory / "runtime";
  } else if (options.device != nullptr) {
    session.record = options.on_device->directory / "runtime";
  }
  return session;
}

std::unique_ptr<calibration::Observation> make_observers(const std::vector<calibration::Observed>& observed,
                                                         int threads, const CollectOptions& options) {
  const calibration::ObserverOptions observing{options.histograms, options.votes, options.allow_nonfinite,
                                               thread_count(threads)};
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

// One sweep over all segments, and what it has found so far.
class Collector {
 public:
  Collector(const Context& context, const Prepared& prepared, const quantization::Placement& placement,
            data::SampleSource& source, const CollectOptions& options)
      : context_(context),
        model_(prepared.model),
        source_(source),
        options_(options),
        feed_(source),
        where_(fmt::format("model '{}'", prepared.model.path.string())),
        started_(Clock::now()),
        branch_(context.runtime, prepared.model, prepared.types, options.cuts, options.spool,
                {.session = session_options(prepared.model, context, options),
                 .taps = placement.to_observe(),
                 .batch_invariant = options.device == nullptr,
                 .name = "",
                 .inputs_of = [this](std::size_t sample) { return feed_.inputs_of(sample); }}) {}

  calibration::Statistics run() {
    bool goes_on = false;
    if (options_.earlier != nullptr) {
      state_ = *options_.earlier;
      reached_ = {state_.segment, state_.done};
      const bool all = reached_.segment > 0;
      if (feed_.read(all ? std::nullopt : std::make_optional(reached_.sample)) != state_.statistics.data)
        throw bad_input("the calibration data are not those of the interrupted run", "run without --resume");
      goes_on = can_go_on();
    }
    state_.cuts = options_.cuts;
    for (std::size_t segment = goes_on ? reached_.segment : 0; segment < branch_.segments(); ++segment)
      run_segment(segment, goes_on && segment == reached_.segment ? reached_.sample : 0);
    if (options_.keep_result && options_.checkpoints != nullptr) save(branch_.segments(), 0);
    calibration::Statistics all = std::move(state_.statistics);
    all.samples = state_.samples;
    all.repeated = repeated_;
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

  void run_segment(std::size_t segment, std::size_t from) {
    const double session_start = seconds_since(started_);
    auto stage = branch_.load(segment, where_);
    const auto observed = observed_values(model_, branch_.index(), stage.taps());
    std::vector<Worker> workers;
    for (int w = 0; w < std::max(options_.workers, 1); ++w)
      workers.push_back({make_observers(observed, context_.threads, options_), {}});
    if (segment == 0) {
      feed_.start_first(from);
    } else {
      branch_.prefetch(segment, from, state_.samples);
      feed_.start_later(from, state_.samples);
    }
    released_ = from;
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
      if (!all) save(segment, feed_.position());
    }
    if (segment == 0) state_.samples = feed_.position();
    for (const auto& worker : workers) {
      if (options_.device != nullptr) options_.on_device->observing += worker.observers->device_work();
    }
    if (options_.weights_at_hand) options_.weights_at_hand(branch_.weights_of(segment));
    failpoint("calibrate.segment");
    if (segment + 1 == branch_.segments()) return;
    const bool on_disk = options_.spool->use().disk_peak > 0;
    if (options_.checkpoints != nullptr && (on_disk || Clock::now() >= options_.checkpoints->due()))
      save(segment + 1, 0);
    branch_.finish(segment);
  }

  // The first run warms up; the second is recorded.
  void record(std::size_t segment, exec::Stage& stage, Worker& worker, double session_start) {
    SampleQueue<FedSample> queue([&] { return feed_.next(); }, std::nullopt);
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

  // Until all samples are done, or it is time to save progress; whether all are done.
  bool run_round(std::size_t segment, exec::Stage& stage, std::vector<Worker>& workers) {
    std::optional<Clock::time_point> until;
    if (options_.checkpoints != nullptr) until = options_.checkpoints->due();
    SampleQueue<FedSample> queue([&] { return feed_.next(); }, until);
    const auto run_all = [&](Worker& worker) {
      while (step(segment, stage, queue, worker)) {
      }
    };
    {
      std::vector<std::jthread> others;
      try {
        for (std::size_t w = 1; w < workers.size(); ++w) others.emplace_back([&, w] { run_all(workers[w]); });
      } catch (...) {  // no further thread can be had
        queue.failed(0, std::current_exception());
      }
      run_all(workers.front());
    }
    return queue.finish();
  }

  bool step(std::size_t segment, exec::Stage& stage, SampleQueue<FedSample>& queue, Worker& worker) {
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

  void run_sample(std::size_t segment, exec::Stage& stage, const FedSample& item, Worker& worker) {
    const bool observed = Position{segment, item.number} >= reached_;
    exec::NullReceiver null;  // it was observed before
    data::TapReceiver* receiver = &null;
    if (observed) {
      worker.observers->begin_sample(item.origin);
      receiver = worker.observers.get();
    }
    const auto inputs =
        item.sample ? std::span<const data::Array>(item.sample->inputs) : std::span<const data::Array>();
    try {
      stage.run(item.number, inputs, fmt::format("{}, sample '{}'", where_, item.origin), receiver);
      if (observed) worker.observers->end_sample();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bad_input) blame_inputs(inputs, item.origin);
      if (error.kind() == ErrorKind::bad_input && options_.odd != nullptr)
        options_.odd->refuse_beyond_tables(inputs, item.origin);
      throw;
    }
    if (options_.device != nullptr) {
      for (const auto& input : inputs) options_.on_device->input_bytes += input.bytes.size();
    }
    if (observed && item.sample) note(*item.sample, worker);
    if (options_.spool != nullptr) branch_.release(segment, item.number, options_.checkpoints == nullptr);
  }

  void note(const data::Sample& sample, Worker& worker) {
    const auto print = fingerprint_of(sample);
    worker.data += print;
    const std::lock_guard lock(done_mutex_);
    if (!seen_.emplace(print.high, print.low).second) ++repeated_;
    if (options_.odd != nullptr) options_.odd->add(sample);
  }

  // What fails on a value that is no number fails at some node; where the value came with the sample, it says so.
  void blame_inputs(std::span<const data::Array> inputs, const std::string& origin) const {
    std::size_t i = 0;
    for (const auto& input : model_.graph.inputs) {
      if (branch_.index().initializer(input.name) != graph::kNone) continue;
      if (i == inputs.size()) return;
      const auto& array = inputs[i++];
      if (!data::holds_floats(array.type)) continue;
      const auto values = data::to_floats(array);
      const auto count = std::count_if(values.begin(), values.end(), [](float v) { return std::isnan(v); });
      if (count == 0) continue;
      throw bad_input(fmt::format("sample '{}': input '{}' holds {} NaN", origin, input.name, count),
                      "correct the sample, or leave such values out with --set allow-nonfinite");
    }
  }

  void done(std::size_t segment) {
    const std::lock_guard lock(done_mutex_);
    ++done_;
    if (!context_.progress) return;
    const std::size_t samples = segment == 0 ? source_.sample_count() : state_.samples;
    context_.progress("calibrate", done_, std::max(done_, samples * branch_.segments()));
  }

  // What an earlier process has saved is not saved again.
  void save(std::size_t segment, std::size_t done) {
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

  const Context& context_;
  const onnx::Model& model_;
  data::SampleSource& source_;
  const CollectOptions& options_;
  SampleFeed feed_;
  std::string where_;
  Clock::time_point started_;
  exec::Branch branch_;

  CalibrationProgress state_;
  Position reached_;  // by an earlier process
  std::size_t released_ = 0;
  std::mutex done_mutex_;
  std::uint64_t done_ = 0;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen_;  // samples, by their fingerprints
  std::uint64_t repeated_ = 0;
};

}  // namespace

calibration::Statistics collect(const Context& context, const Prepared& prepared,
                                const quantization::Placement& placement, data::SampleSource& source,
                                const CollectOptions& options) {
  return Collector(context, prepared, placement, source, options).run();
}

void gather_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop) {
  if (ranks.size() == 1) return;
  const auto mine = ranks.rank() == 0 ? std::string() : calibration::encode(statistics);
  ranks.gather(
      std::as_bytes(std::span(mine)),
      [&](int rank, std::span<const std::byte> bytes) {
        const auto where = fmt::format("what rank {} sent", rank);
        const auto theirs = calibration::decode(bytes, where);
        if (theirs.model != statistics.model)
          throw bad_input(fmt::format("rank {} calibrated another model file", rank), "give all ranks the same files");
        calibration::check_mergeable(statistics, theirs, where);
        statistics.merge(theirs);
      },
      stop);
}

void merge_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop) {
  if (ranks.size() == 1) return;
  gather_statistics(ranks, statistics, stop);
  const auto merged = ranks.rank() == 0 ? calibration::encode(statistics) : std::string();
  const auto bytes = std::as_bytes(std::span(merged));
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  ranks.broadcast(all, stop);
  if (ranks.rank() != 0) statistics = calibration::decode(all, "what rank 0 sent");
}

DeviceCalibration::DeviceCalibration(const DeviceConfig& config, std::size_t taps, bool histograms,
                                     std::filesystem::path directory, profile::DeviceActivity* activity)
    : config_(config), use_{.directory = std::move(directory), .nodes = {}} {
  if (config.is_cpu()) return;
  device_ = calibration::open_cuda({.number = config.cuda.front(),
                                    .memory_budget = config.memory_budget,
                                    .tf32 = config.precision == DevicePrecision::tf32,
                                    .taps = taps,
                                    .tables = histograms,
                                    .pins = config.pin_memory,
                                    .activity = activity});
  constexpr std::size_t kSpans = 1024;  // observers of the first samples
  if (activity != nullptr) activity->begin("calibration", kSpans);
}

void DeviceCalibration::lend(CollectOptions& options) {
  options.device = device_.get();
  options.on_device = &use_;
}

std::vector<std::string> DeviceCalibration::notes() const {
  return device_ ? device_notes(config_, *device_, use_) : std::vector<std::string>();
}

std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, unsigned shares) {
  if (config.is_cpu()) return nullptr;
  auto place = std::make_shared<shim::Device>();
  place->ordinal = config.cuda.front();
  place->memory_limit = config.memory_budget.value_or(0) / shares;
  place->tf32 = config.precision == DevicePrecision::tf32;
  return place;
}

std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, const exec::Runtime& runtime,
                                                        unsigned shares) {
  auto place = inference_device_of(config, shares);
  return place && runtime.has_provider(place->provider) ? place : nullptr;
}

std::string inference_device_note(const DeviceConfig& config, const exec::Runtime& runtime, std::string_view passes) {
  const auto place = inference_device_of(config);
  if (!place) return {};
  if (!runtime.has_provider(place->provider))
    return fmt::format("{} ran on the CPU: this ONNX Runtime was built without {}", passes, place->provider);
  return fmt::format("{} ran on cuda:{}", passes, place->ordinal);
}

std::vector<std::string> device_notes(const DeviceConfig& config, const calibration::CalibrationDevice& device,
                                      const OnDevice& use) {
  std::vector<std::string> notes;
  std::string line = "calibration ran on " + device.name();
  if (config.cuda.size() > 1) line += ", the first of the devices";
  if (config.precision == DevicePrecision::bfloat16) line += ", in float32";
  notes.push_back(std::move(line));
  if (use.nodes.empty()) return notes;
  std::string types;
  std::size_t count = 0;
  for (const auto& [type, nodes] : use.nodes) {
    count += nodes;
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", nodes, type);
  }
  notes.push_back(fmt::format(
      "ONNX Runtime ran {} node{} on the CPU nevertheless ({}), with {} {} between it and the device in each run",
      count, count == 1 ? "" : "s", types, use.copies, use.copies == 1 ? "copy" : "copies"));
  return notes;
}

}  // namespace detent::run
