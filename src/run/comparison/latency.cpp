#include "run/comparison/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "data/given_inputs.h"
#include "graph/traits.h"
#include "onnx/model.h"
#include "run/model/finish.h"
#include "run/samples/samples.h"

namespace detent::run {
namespace {

/// The value below which a share of all lie; the nearest one.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto place = static_cast<std::ptrdiff_t>(std::lround(share * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<std::size_t>(place)];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

std::vector<double> of_runs(std::span<const exec::RunTime> runs, double exec::RunTime::*what) {
  std::vector<double> values;
  for (const auto& run : runs) values.push_back(run.*what);
  return values;
}

// Both models' turns were at about the same time, so a busy while does not count for one of them only.
std::vector<double> ratios(const Turns& turns, const Turns& first, double exec::RunTime::*what) {
  std::vector<double> all;
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const double base = median(of_runs(first[t], what));
    if (base > 0) all.push_back(median(of_runs(turns[t], what)) / base);
  }
  return all;
}

Latency latency_of(const Turns& turns, const Turns& first) {
  std::vector<exec::RunTime> runs;
  for (const auto& turn : turns) runs.insert(runs.end(), turn.begin(), turn.end());
  const auto wall = of_runs(runs, &exec::RunTime::wall);
  const auto ratio = ratios(turns, first, &exec::RunTime::wall);
  // Of a typical run: a few that were interrupted do not make the others' times doubtful.
  const double typical = median(wall), own = median(of_runs(runs, &exec::RunTime::own));
  return {.runs = runs.size(),
          .min = quantile(wall, 0),
          .median = typical,
          .p90 = quantile(wall, 0.9),
          .cpu = median(of_runs(runs, &exec::RunTime::cpu)),
          .ratio = median(ratio),
          .ratio_low = quantile(ratio, 0.25),
          .ratio_high = quantile(ratio, 0.75),
          .cpu_ratio = median(ratios(turns, first, &exec::RunTime::cpu)),
          .waiting = typical > 0 ? std::max(1 - own / typical, 0.0) : 0};
}

}  // namespace

std::vector<Latency> latencies(const std::vector<Turns>& models) {
  std::vector<Latency> all;
  for (const auto& turns : models) {
    auto latency = latency_of(turns, models.front());
    const double first = all.empty() ? latency.median : all.front().median;
    // Faster in turns and slower over all runs, or the other way round: neither shows that the models differ.
    if ((latency.median - first) * (latency.ratio - 1) < 0) {
      latency.ratio = 1;
      latency.ratio_low = std::min(latency.ratio_low, 1.0);
      latency.ratio_high = std::max(latency.ratio_high, 1.0);
    }
    all.push_back(latency);
  }
  return all;
}

std::string speed_words(double ratio) {
  constexpr double kSame = 0.005;  // what two digits show
  if (!(ratio > 0) || std::abs(ratio - 1) < kSame) return "as fast";
  return ratio < 1 ? fmt::format("{:.2f}x faster", 1 / ratio) : fmt::format("{:.2f}x slower", ratio);
}

std::string busy_note(const std::vector<Latency>& all) {
  double waiting = 0;
  for (const auto& latency : all) {
    if (latency.is_doubtful()) waiting = std::max(waiting, latency.waiting);
  }
  if (waiting == 0) return "";
  return fmt::format(
      "the machine was busy, so latencies mean nothing: runs waited for a processor {:.0f} % of their time",
      100 * waiting);
}

double seconds_of_pairs(const std::filesystem::path& file) {
  constexpr double kSeconds = 2.5, kNodes = 6000;
  try {
    const auto model = onnx::read_model(file);
    const auto& nodes = model.graph.nodes;
    const double share = static_cast<double>(std::count_if(nodes.begin(), nodes.end(), graph::is_q_or_dq)) / kNodes;
    return kSeconds * share * share;
  } catch (const Error&) {
    return 0;
  }
}

std::vector<std::vector<data::Array>> first_samples(data::SampleSource& source, std::size_t count,
                                                    std::uint64_t most_bytes) {
  std::vector<std::vector<data::Array>> samples;
  source.rewind();
  std::uint64_t all = 0, last = 0;
  while (samples.size() < count && (samples.empty() || last <= most_bytes - std::min(all, most_bytes))) {
    auto sample = source.next();
    if (!sample) break;
    last = bytes_of(sample->inputs);
    all += last;
    samples.push_back(std::move(sample->inputs));
  }
  return samples;
}

namespace {

constexpr double kLeastSeconds = 0.2, kMostSeconds = 5, kShareOfRun = 0.03;
constexpr double kTolerable = 2.5;             // seconds in all,
constexpr double kTolerableShare = 0.1;        // or this share of the run, where models are slow
constexpr std::uint64_t kMostBytes = 8 << 20;  // of samples, which stay in memory
constexpr std::size_t kTurnsOfOne = 4;         // of models that are opened for them
constexpr double kOpenings = 3;                // of each of these
constexpr double kBytesASecond = 600e6;        // that are read and laid out for kernels, about

// Of slow models: each runs once warm, or each time that it opens, and is timed in each turn.
double least_seconds(const LatencyRequest& request) {
  if (!request.one_open) return 2 * static_cast<double>(1 + request.turns) * request.sample_seconds;
  return 2 * (kOpenings + kTurnsOfOne) * request.sample_seconds +
         kOpenings * static_cast<double>(request.model_bytes) / kBytesASecond;
}

double seconds_to_take(const LatencyRequest& request) {
  return std::clamp(kShareOfRun * request.run_seconds, kLeastSeconds, kMostSeconds);
}

std::string too_costly(const LatencyRequest& request, std::span<const std::filesystem::path> quantized) {
  if (request.memory > request.memory_budget) {
    return fmt::format("running the larger model would take about {}, and the memory budget is {}",
                       format_size(request.memory), format_size(request.memory_budget));
  }
  double loading = 0;
  for (const auto& model : quantized) loading += (request.one_open ? kOpenings : 1) * seconds_of_pairs(model);
  const double most = std::max(kTolerable, kTolerableShare * request.run_seconds);
  if (loading >= kSlowToLoad && loading + least_seconds(request) > most)
    return fmt::format("loading that many pairs takes about {:.1f} s; detent bench takes the time", loading);
  if (least_seconds(request) > most)
    return request.one_open
               ? fmt::format("opening both models would take about {:.1f} s; detent bench takes the time",
                             least_seconds(request))
               : fmt::format("one run takes about {:.1f} s; detent bench takes the time", request.sample_seconds);
  return "";
}

using Samples = std::vector<std::vector<data::Array>>;

std::vector<Latency> latencies_on(const exec::Runtime& runtime, const LatencyRequest& request,
                                  std::span<const std::filesystem::path> quantized, const Samples& samples,
                                  double seconds) {
  exec::SessionOptions options{exec::SessionMode::deployed, request.threads, request.stop, true};
  const auto opener = [&](const std::filesystem::path& model) {
    return [&runtime, &options, &model] { return exec::Session::of_file(runtime, model, options); };
  };
  std::vector<Samples> of_quantized;
  for (const auto& model : quantized) {
    auto& own = of_quantized.emplace_back();
    const auto specs = input_specs(onnx::read_model(model));
    for (const auto& sample : samples) own.push_back(with_cache_of(sample, specs));
  }
  std::vector<exec::Timed> models{{opener(request.float_model), "the float model", samples}};
  for (std::size_t m = 0; m < quantized.size(); ++m)
    models.push_back({opener(quantized[m]), "the quantized model", of_quantized[m]});
  return latencies(exec::time_interleaved(models, {.seconds = seconds,
                                                   .least_rounds = request.one_open ? kTurnsOfOne : request.turns,
                                                   .one_open = request.one_open}));
}

std::vector<LatencyChange> timed(const exec::Runtime& runtime, const LatencyRequest& request,
                                 std::span<const std::filesystem::path> quantized) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  LatencyChange common;
  common.synthetic = request.source == nullptr;
  Samples samples;
  if (common.synthetic) {
    const auto specs = input_specs(onnx::read_model(quantized.front()));
    samples.push_back(data::synthetic_inputs(specs, {}, {}, {.cached = 0}));
  } else {
    samples = first_samples(*request.source, request.samples, kMostBytes);
  }
  common.samples = samples.size();
  common.threads = static_cast<int>(thread_count(request.threads));
  const double spent = std::chrono::duration<double>(Clock::now() - start).count();
  const auto all = latencies_on(runtime, request, quantized, samples, seconds_to_take(request) - spent);
  std::vector<LatencyChange> changes(quantized.size(), common);
  for (std::size_t m = 0; m < quantized.size(); ++m) {
    changes[m].before = all.front();
    changes[m].after = all[m + 1];
  }
  return changes;
}

std::vector<std::string> notes_on_one_token(const exec::Runtime& runtime, const LatencyRequest& request,
                                            std::span<const std::filesystem::path> quantized) {
  if (request.one_open) return {};
  std::vector models{request.float_model};
  models.insert(models.end(), quantized.begin(), quantized.end());
  const auto all =
      latencies_of_one_token(runtime, models, {exec::SessionMode::deployed, request.threads, request.stop, true},
                             {.seconds = seconds_to_take(request) / 2, .least_rounds = request.turns});
  std::vector<std::string> notes;
  for (std::size_t m = 1; m < all.size(); ++m)
    notes.push_back(fmt::format("one token with {} in the cache takes {:.3g} ms, and in float {:.3g} ms: {}",
                                kOneToken.cached, 1e3 * all[m].median, 1e3 * all.front().median,
                                speed_words(all[m].ratio)));
  return notes;
}

}  // namespace

std::vector<Latency> latencies_of_one_token(const exec::Runtime& runtime, std::span<const std::filesystem::path> models,
                                            const exec::SessionOptions& options, const exec::TimingOptions& timing) {
  std::vector<Samples> samples;
  std::vector<exec::Timed> timed;
  for (const auto& model : models) {
    const auto specs = input_specs(onnx::read_model(model));
    if (!data::is_decoder(specs)) return {};
    samples.push_back({data::synthetic_inputs(specs, {}, {}, kOneToken)});
  }
  for (std::size_t m = 0; m < models.size(); ++m)
    timed.push_back({[&, m] { return exec::Session::of_file(runtime, models[m], options); }, "the model", samples[m]});
  try {
    return latencies(exec::time_interleaved(timed, timing));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    return {};  // made-up inputs need not be what the model can take
  }
}

std::string slower_note(const LatencyChange& change) {
  constexpr double kNoise = 1.03;
  const auto& after = change.after;
  if (!change.of_target || change.before.is_doubtful() || after.is_doubtful()) return "";
  if (std::min(after.ratio, after.cpu_ratio) < kNoise || after.ratio_low <= 1) return "";
  return fmt::format(
      "the quantized model is {} than the float model on this machine; detent bench --by-operator shows where",
      speed_words(after.ratio));
}

MeasuredLatencies measure_latencies(const exec::Runtime& runtime, const LatencyRequest& request,
                                    std::span<const std::filesystem::path> quantized) {
  const auto without = [](const std::string& why) {
    return MeasuredLatencies{{}, {fmt::format("latency was not measured: {}", why)}};
  };
  if (const auto why = too_costly(request, quantized); !why.empty()) return without(why);
  try {
    MeasuredLatencies measured{timed(runtime, request, quantized), {}};
    std::vector<Latency> all{measured.changes.front().before};
    for (const auto& change : measured.changes) all.push_back(change.after);
    if (auto note = busy_note(all); !note.empty()) measured.notes.push_back(std::move(note));
    for (auto& note : notes_on_one_token(runtime, request, quantized)) measured.notes.push_back(std::move(note));
    return measured;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    const char* hint = request.source == nullptr ? " (synthetic inputs, because there are no samples)" : "";
    return without(fmt::format("{}{}", e.what(), hint));
  }
}

}  // namespace detent::run
