#include "exec/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/process.h"
#include "exec/emit.h"
#include "graph/rewrites/rewrite.h"
#include "profile/meters.h"

namespace detent::exec {
namespace {

constexpr std::size_t kLeastRuns = 3;

// Executions end in the order of the list: what ran within one stands before it.
void subtract_body_times(std::vector<NodeTime>& executions) {
  std::vector<std::pair<double, double>> waiting;  // start and whole duration of those whose outer node is yet to come
  for (auto& execution : executions) {
    const double whole = execution.seconds;
    while (!waiting.empty() && waiting.back().first >= execution.start) {
      execution.seconds -= waiting.back().second;
      waiting.pop_back();
    }
    execution.seconds = std::max(execution.seconds, 0.0);
    waiting.emplace_back(execution.start, whole);
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Kernel> summed_up(const std::vector<NodeTime>& executions, std::size_t runs, bool fastest) {
  std::vector<Kernel> kernels;
  std::vector<std::vector<double>> times;
  std::unordered_map<std::string, std::size_t> position;
  for (const auto& execution : executions) {
    const auto [it, added] = position.try_emplace(execution.name, kernels.size());
    if (added) {
      kernels.push_back({execution.name, execution.op_type, {}, 0});
      times.emplace_back();
    }
    times[it->second].push_back(execution.seconds);
  }
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    const double times_a_run = static_cast<double>(times[k].size()) / static_cast<double>(runs);
    const double one = fastest ? *std::min_element(times[k].begin(), times[k].end()) : median(std::move(times[k]));
    kernels[k].seconds = one * times_a_run;
  }
  return kernels;
}

std::unordered_set<std::string> made_values(const onnx::Model& model) {
  std::unordered_set<std::string> values;
  for (const auto& node : model.graph.nodes) values.insert(node.outputs().begin(), node.outputs().end());
  values.erase("");
  return values;
}

// Kernels of the blocked layout make values of their own, and are named after the model's.
void name_outputs(std::vector<Kernel>& kernels, const onnx::Model& optimized, const onnx::Model& model) {
  constexpr std::string_view kBlocked = "_nchwc";
  const auto known = made_values(model);
  std::unordered_map<std::string_view, const onnx::Node*> nodes;
  for (const auto& node : optimized.graph.nodes) nodes[node.name()] = &node;
  for (auto& kernel : kernels) {
    const auto node = nodes.find(kernel.name);
    if (node == nodes.end()) continue;
    for (const auto& output : node->second->outputs()) {
      if (known.contains(output)) kernel.outputs.push_back(output);
    }
    if (!kernel.outputs.empty() || !kernel.name.ends_with(kBlocked)) continue;
    auto value = kernel.name.substr(0, kernel.name.size() - kBlocked.size());
    if (known.contains(value)) kernel.outputs.push_back(std::move(value));
  }
}

// How many runs there were, and what the shortest took the processor in this thread.
std::pair<std::size_t, double> run_for(Session& session, std::span<const std::vector<data::Array>> samples,
                                       const std::string& where, const KernelTimesOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  std::size_t runs = 0;
  double shortest = std::numeric_limits<double>::infinity();
  while (runs < kLeastRuns || (runs < options.runs && Clock::now() < end)) {
    const double before = profile::thread_cpu_seconds();
    session.run(samples[runs % samples.size()], where);
    shortest = std::min(shortest, profile::thread_cpu_seconds() - before);
    ++runs;
  }
  return {runs, shortest};
}

}  // namespace

double run_seconds(const Runtime& runtime, const onnx::Model& model, std::span<const std::vector<data::Array>> samples,
                   const KernelTimesOptions& options) {
  if (samples.empty()) throw internal_error("there is no sample to time the model with");
  const std::string where = fmt::format("model '{}'", model.path.string());
  const LargeBlocksApart apart;
  Session session(runtime, emit(model), where,
                  {.tuning = SessionMode::deployed, .threads = options.threads, .stop = options.stop});
  return run_for(session, samples, where, options).second;
}

std::vector<Kernel> kernel_times(const Runtime& runtime, const onnx::Model& model,
                                 std::span<const std::vector<data::Array>> samples, const KernelTimesOptions& options) {
  if (samples.empty()) throw internal_error("there is no sample to time the model with");
  const TempDir directory(options.directory);
  const auto optimized = directory.path() / "optimized.onnx";
  onnx::Model named = model;
  name_nodes(named);
  const std::string where = fmt::format("model '{}'", model.path.string());
  const LargeBlocksApart apart;
  Session session(runtime, emit(named), where,
                  {.tuning = SessionMode::deployed,
                   .threads = options.threads,
                   .stop = options.stop,
                   .is_timed = true,
                   .record = directory.path() / "times",
                   .optimized_model = optimized});
  const auto [runs, shortest] = run_for(session, samples, where, options);
  if (options.run != nullptr) *options.run = shortest;
  auto executions = session.end_recording_of_runs();
  subtract_body_times(executions);
  auto kernels = summed_up(executions, runs, options.fastest);
  name_outputs(kernels, onnx::read_model(optimized), named);
  return kernels;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTurn = 0.03, kTurnOfOne = 0.06;  // seconds of the slowest model
constexpr double kSlow = 0.3;                      // a run for which being warm makes little difference
constexpr std::size_t kMostRuns = 1000;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Turns {
 public:
  Turns(std::span<const Timed> models, const TimingOptions& options)
      : models_(models),
        options_(options),
        sessions_(models.size()),
        next_sample_(models.size()),
        turns_(models.size()) {}

  std::vector<std::vector<std::vector<RunTime>>> run() {
    const auto start = Clock::now();
    double slowest = 0;
    for (std::size_t m = 0; m < models_.size(); ++m) {
      double pace = run_once(m).wall;
      if (pace < kSlow) pace = run_once(m).wall;
      slowest = std::max(slowest, pace);
    }
    const double length = options_.one_open ? kTurnOfOne : kTurn;
    const auto in_a_turn = static_cast<std::size_t>(length / std::max(slowest, length / kMostRuns));
    std::size_t done = 0;
    for (std::size_t turn = 0; goes_on(turn, done, seconds_since(start)); ++turn) {
      std::size_t count = std::max(in_a_turn, std::size_t{1});
      if (options_.runs > 0) count = std::min(count, options_.runs - done);
      for (std::size_t m = 0; m < models_.size(); ++m) {
        const bool backwards = options_.one_open && turn % 2 == 0;  // the last one is open
        take_turn(backwards ? models_.size() - 1 - m : m, count);
      }
      done += count;
    }
    return std::move(turns_);
  }

 private:
  bool goes_on(std::size_t turns, std::size_t runs, double seconds) const {
    if (options_.runs > 0) return runs < options_.runs;
    return turns < options_.least_rounds || seconds < options_.seconds;
  }

  void take_turn(std::size_t model, std::size_t count) {
    auto& times = turns_[model].emplace_back();
    if (count > 1 || !sessions_[model]) run_once(model);
    for (std::size_t i = 0; i < count; ++i) times.push_back(run_once(model));
  }

  RunTime run_once(std::size_t m) {
    const auto& model = models_[m];
    const auto& sample = model.samples[next_sample_[m]++ % model.samples.size()];
    auto& session = opened(m);
    const auto start = Clock::now();
    const double cpu = profile::cpu_seconds(), own = profile::thread_cpu_seconds();
    session.run(sample, model.where);
    const RunTime time{seconds_since(start), profile::cpu_seconds() - cpu, profile::thread_cpu_seconds() - own};
    return time;
  }

  Session& opened(std::size_t m) {
    auto& session = sessions_[m];
    if (session) return *session;
    if (options_.one_open) {
      for (auto& other : sessions_) other.reset();
      trim_heap();
    }
    const LargeBlocksApart apart;
    session.emplace(models_[m].open());
    // The runtime plans its memory in the first run, and takes it in the second.
    if (options_.one_open) run_once(m);
    return *session;
  }

  std::span<const Timed> models_;
  const TimingOptions& options_;
  std::vector<std::optional<Session>> sessions_;
  std::vector<std::size_t> next_sample_;
  std::vector<std::vector<std::vector<RunTime>>> turns_;
};

// Nodes that the runtime makes anew, in another layout say, get names with an end of their own.
std::string_view stem(std::string_view name) {
  for (const std::string_view mark : {"_token_", "_nchwc", "/MatMulScaleFusion"}) {
    if (const auto at = name.find(mark); at != std::string_view::npos && at > 0) return name.substr(0, at);
  }
  return name;
}

}  // namespace

std::vector<std::vector<std::vector<RunTime>>> time_interleaved(std::span<const Timed> models,
                                                                const TimingOptions& options) {
  return Turns(models, options).run();
}

std::vector<std::string> deployed_op_types(const Runtime& runtime, const onnx::Model& model) {
  const TempDir directory;
  const auto path = directory.path() / "optimized.onnx";
  onnx::Model named = model;
  name_nodes(named);
  SessionOptions options;
  options.tuning = SessionMode::deployed;
  options.threads = 1;
  options.optimized_model = path;
  (void)Session(runtime, emit(named), fmt::format("model '{}'", model.path.string()), options);
  auto optimized = onnx::read_model(path);
  graph::unfold(optimized);
  std::unordered_map<std::string_view, std::string_view> by_name, by_output;
  for (const auto& node : optimized.graph.nodes) by_name[node.name()] = node.op_type();
  for (const auto& node : optimized.graph.nodes) {
    by_name.try_emplace(stem(node.name()), node.op_type());
    for (const auto& output : node.outputs()) by_output[output] = node.op_type();
  }
  const auto found = [](const auto& map, const std::string& key) {
    const auto at = map.find(key);
    return at == map.end() ? std::string() : std::string(at->second);
  };
  std::vector<std::string> types;
  for (const auto& node : named.graph.nodes) {
    auto type = found(by_name, node.name());
    if (type.empty() && !node.outputs().empty()) type = found(by_output, node.outputs().front());
    types.push_back(std::move(type));
  }
  return types;
}

}  // namespace detent::exec
