#include "run/latency_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/bytes.h"
#include "base/error.h"
#include "base/parallel.h"
#include "data/made_up.h"
#include "exec/turns.h"
#include "onnx/model.h"
#include "run/latency.h"
#include "run/samples.h"

namespace detent::run {
namespace {

constexpr double kLeastSeconds = 0.2, kMostSeconds = 5, kShareOfRun = 0.03;
constexpr double kTolerable = 1;    // seconds for one turn, or twice what it should take
constexpr double kRunsAtLeast = 4;  // of a sample: each model warm and timed once

double seconds_to_take(const LatencyRequest& request) {
  return std::clamp(kShareOfRun * request.run_seconds, kLeastSeconds, kMostSeconds);
}

std::string too_costly(const LatencyRequest& request) {
  if (request.needed_memory > request.memory_budget) {
    return fmt::format("both models side by side would take about {}, and the memory budget is {}",
                       format_size(request.needed_memory), format_size(request.memory_budget));
  }
  if (kRunsAtLeast * request.sample_seconds > std::max(kTolerable, 2 * seconds_to_take(request)))
    return fmt::format("one run takes about {:.1f} s; detent bench takes the time", request.sample_seconds);
  return "";
}

std::string slower_note(const LatencyChange& change) {
  constexpr double kNoise = 1.03;
  const auto& after = change.after;
  if (std::min(after.ratio, after.cpu_ratio) < kNoise || after.ratio_low <= 1) return "";
  return fmt::format(
      "the quantized model is slower than the float model on this machine ({:.2f}x); detent bench --by-operator shows "
      "where",
      after.ratio);
}

LatencyChange timed(const exec::Runtime& runtime, const LatencyRequest& request) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  LatencyChange change;
  change.made_up = request.source == nullptr;
  std::vector<std::vector<data::Array>> samples;
  if (change.made_up) {
    samples.push_back(data::made_up_inputs(input_specs(onnx::read_model(request.quantized_model)), {}));
  } else {
    samples = first_samples(*request.source, request.samples);
  }
  change.samples = samples.size();
  change.threads = static_cast<int>(thread_count(request.threads));
  exec::SessionOptions options{exec::Tuning::deployed, request.threads, request.stop};
  auto before = exec::Session::of_file(runtime, request.float_model, options);
  auto after = exec::Session::of_file(runtime, request.quantized_model, options);
  const std::array<exec::Timed, 2> models{
      {{&before, "the float model", samples}, {&after, "the quantized model", samples}}};
  const double spent = std::chrono::duration<double>(Clock::now() - start).count();
  const auto both =
      latencies(exec::time_in_turns(models, {.seconds = seconds_to_take(request) - spent, .least_turns = 1}));
  change.before = both[0];
  change.after = both[1];
  return change;
}

}  // namespace

MeasuredLatency measure_latency(const exec::Runtime& runtime, const LatencyRequest& request) {
  const auto without = [](const std::string& why) {
    return MeasuredLatency{std::nullopt, {fmt::format("latency was not measured: {}", why)}};
  };
  if (const auto why = too_costly(request); !why.empty()) return without(why);
  try {
    MeasuredLatency measured{timed(runtime, request), {}};
    const auto& change = *measured.change;
    for (auto& note : {slower_note(change), busy_note({change.before, change.after})}) {
      if (!note.empty()) measured.notes.push_back(note);
    }
    return measured;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    const char* hint = request.source == nullptr ? " (inputs were made up, as there are no samples)" : "";
    return without(fmt::format("{}{}", e.what(), hint));
  }
}

}  // namespace detent::run
