#include "pipeline/deployed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "config/presets.h"
#include "config/targets.h"
#include "detent/verify.h"
#include "planning/memory.h"
#include "profile/meters.h"
#include "remedies/evaluator.h"
#include "remedies/remedies.h"
#include "run/comparison/latency.h"
#include "run/comparison/pairing.h"
#include "run/comparison/proof.h"
#include "run/files/outputs.h"
#include "run/model/finish.h"
#include "run/records/run_report.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kTimed = 4;     // samples that both models are timed on
constexpr std::size_t kCompared = 8;  // samples whose outputs are compared

constexpr std::uint64_t kLittle = std::uint64_t{8} << 20;  // that all models open may take beside the largest

// Of quantized models, which are read, and packed for kernels; those of 16-bit floats run in float32.
std::uint64_t memory_to_run(const QuantizeResult& result, std::uint64_t model_bytes) {
  return (result.floats ? 6 : 2) * model_bytes;
}

// Of both models side by side.
std::uint64_t needed_memory(const QuantizeResult& result) {
  return profile::memory_now().resident + memory_to_run(result, result.model_bytes_before + result.model_bytes_after);
}

struct TimingMemory {
  std::uint64_t model_bytes = 0;  // of all models
  std::uint64_t of_one = 0;       // of the process, with the largest of them open
  std::uint64_t of_all = 0;
};

// Measured: of the float model, convolutions lay their weights out anew, and other products pack theirs one by one.
TimingMemory memory_to_time(const QuantizeOptions& options, const std::vector<Deployed>& quantized,
                            std::uint64_t activations) {
  const auto rest = profile::memory_now().resident;
  const auto before = quantized.front().result->model_bytes_before;
  const std::uint64_t float_model =
      activations + before + before / 4 + planning::copied_weights(onnx::read_model(options.model));
  TimingMemory memory{before, rest + float_model, rest + float_model};
  for (const auto& model : quantized) {
    const auto after = model.result->model_bytes_after;
    const auto own = activations + memory_to_run(*model.result, after);
    memory.model_bytes += after;
    memory.of_one = std::max(memory.of_one, rest + own);
    memory.of_all += own;
  }
  return memory;
}

// Many where both models take little time, so that the figure is that of all samples rather than of a few.
std::size_t compared_samples(const QuantizeResult& result) {
  constexpr double kSeconds = 2;
  if (!result.latency) return kCompared;
  const double one = result.latency->before.median + result.latency->after.median;
  return std::max(kCompared, static_cast<std::size_t>(kSeconds / std::max(one, 1e-5)));
}

std::unique_ptr<data::SampleSource> open_first(const Options& options, std::vector<data::InputSpec> inputs,
                                               std::size_t count = kCompared) {
  if (options.samples != nullptr) options.samples->rewind();
  return run::open_first(options, std::move(inputs), count);
}

Options compare_options_for(const Options& options, std::size_t samples) {
  auto request = options;
  request.quantized_model = options.output;
  request.max_samples = samples;
  request.device = {};
  request.resources = {};
  request.resources.work_dir = options.resources.work_dir;
  request.resources.disk_budget = options.resources.disk_budget;
  request.resources.sample_time_limit = options.resources.sample_time_limit;
  return request;
}

}  // namespace

std::optional<Comparison> compare_layers(const QuantizeOptions& options, const exec::Runtime& runtime,
                                         std::size_t samples, QuantizeResult& result) {
  auto request = compare_options_for(options, samples);
  if (const auto budget = options.resources.memory_budget) {
    trim_heap();
    const auto needed = needed_memory(result) + 2 * runtime.peak_activation_bytes();
    if (needed > *budget) {
      result.notes.push_back(fmt::format(
          "the report compares no layers: both models side by side would take about {}, and the memory budget is {}",
          format_size(needed), format_size(*budget)));
      return std::nullopt;
    }
    request.pending_limit = std::min(request.pending_limit, *budget - needed);
  }
  return compare(request);
}

void time_models(const QuantizeOptions& options, const std::vector<data::InputSpec>& inputs,
                 const exec::Runtime& runtime, profile::Profiler& profiler, QuantizeResult& result,
                 double sample_seconds) {
  time_models(options, {{options.output, &result}}, inputs, runtime, profiler, sample_seconds);
}

void time_models(const QuantizeOptions& options, const std::vector<Deployed>& quantized,
                 const std::vector<data::InputSpec>& inputs, const exec::Runtime& runtime, profile::Profiler& profiler,
                 double sample_seconds) {
  const auto scope = profiler.scope(run::kLatencyStage);
  const auto tell = [&](std::uint64_t done) {
    if (options.progress) options.progress("latency", done, 1);
  };
  tell(0);
  std::unique_ptr<data::SampleSource> source;  // none: inputs are made up
  if (config::has_samples(options)) {
    source = open_first(options, inputs);
  }
  std::vector<std::filesystem::path> files;
  for (const auto& model : quantized) files.push_back(model.file);
  trim_heap();
  const auto memory = memory_to_time(options, quantized, 2 * runtime.peak_activation_bytes());
  // Where no samples run, or only its parts do, nothing else need open the float model.
  const auto usual = std::max(profiler.peak_memory(), run::kUnaskedBytes);
  if ((source == nullptr || options.weights_only.enabled) && !options.resources.memory_budget &&
      memory.of_one > usual) {
    for (const auto& model : quantized)
      model.result->notes.push_back(
          fmt::format("latency was not measured: with the float model open it would take about "
                      "{}; detent bench takes it",
                      format_size(memory.of_one)));
    return;
  }
  const auto budget = options.resources.memory_budget.value_or(planning::available_memory());
  auto measured = run::measure_latencies(runtime,
                                         {.float_model = options.model,
                                          .source = source.get(),
                                          .samples = kTimed,
                                          .threads = options.threads,
                                          .run_seconds = profiler.now(),
                                          .sample_seconds = sample_seconds,
                                          .model_bytes = memory.model_bytes,
                                          .memory = memory.of_one,
                                          .one_open = memory.of_all > std::min(budget, memory.of_one + kLittle),
                                          .memory_budget = budget,
                                          .stop = options.stop},
                                         files);
  for (std::size_t m = 0; m < quantized.size(); ++m) {
    auto& result = *quantized[m].result;
    if (!measured.changes.empty()) {
      result.latency = measured.changes[m];
      result.latency->of_target = config::target(options.config).is_this_machine;
      if (auto note = run::slower_note(*result.latency); !note.empty()) result.notes.push_back(std::move(note));
    }
    result.notes.insert(result.notes.end(), measured.notes.begin(), measured.notes.end());
  }
  tell(1);
}

std::optional<std::vector<data::InputSpec>> inputs_to_time(const onnx::Model& model, QuantizeResult& result) {
  try {
    return run::input_specs(model);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    result.notes.push_back(fmt::format("latency was not measured: {}", e.what()));
    return std::nullopt;
  }
}

std::string reason_against_running_cache(const run::KvCacheRun& cache, const QuantizeOptions& options,
                                         const std::filesystem::path& quantized, const exec::Runtime& runtime) {
  auto reason = cache.reason_against_running(runtime.version());
  if (reason.empty() && config::has_samples(options)) {
    const auto written = run::input_specs(onnx::read_model(quantized));
    const auto source =
        open_first(options, run::input_specs(onnx::read_model(options.model), options.config.input_shapes));
    while (const auto sample = source->next()) {
      if (!run::fills_cache(sample->inputs, written)) continue;
      reason = fmt::format("sample '{}' fills the cache with numbers of another type", sample->origin);
      break;
    }
  }
  return reason.empty() ? reason : "the quantized model was not run: " + reason;
}

run::DeployedFidelity fidelity_of(onnx::Model model, const std::filesystem::path& path, const QuantizeOptions& options,
                                  const exec::Runtime& runtime, data::SampleSource& samples) {
  model.set_producer("detent", DETENT_VERSION);
  return run::measure_candidate(model, path, options, [&](const auto& file) {
    samples.rewind();
    return run::deployed_fidelity(runtime, options.model, file, samples, std::numeric_limits<std::size_t>::max(),
                                  run::guard_options(options));
  });
}

bool is_rotated(const QuantizeOptions& options, const QuantizeResult& result) {
  return result.rotated ? result.rotated->kept : options.weights_only.rotation == Rotation::on;
}

namespace {

std::string words_of_caches(double worst_db) {
  return fmt::format("the KV cache has SQNR {:.1f} dB at the worst, which is not counted", worst_db);
}

// A decoder's user sees what it gives beside its cache, and rotation changes what heads put there. Gives back the worst
// of the caches.
std::optional<double> leave_out_caches(Comparison& comparison) {
  const auto is_cache = [](const Fidelity& output) { return run::is_cache_output(output.name); };
  if (std::all_of(comparison.outputs.begin(), comparison.outputs.end(), is_cache)) return std::nullopt;
  std::optional<double> worst_db;
  for (const auto& output : comparison.outputs) {
    if (is_cache(output)) worst_db = std::min(worst_db.value_or(output.sqnr_db), output.sqnr_db);
  }
  std::erase_if(comparison.outputs, is_cache);
  return worst_db;
}

const Fidelity& worst_of(const std::vector<Fidelity>& outputs) {
  return *std::min_element(outputs.begin(), outputs.end(),
                           [](const auto& a, const auto& b) { return a.sqnr_db < b.sqnr_db; });
}

// As its devices compute it.
void take(const Comparison& comparison, AccuracyResult& accuracy) {
  accuracy.samples = comparison.samples;
  accuracy.sample_names = comparison.sample_names;
  accuracy.sqnr_db = worst_of(comparison.outputs).sqnr_db;
  accuracy.cosine = worst_of(comparison.outputs).cosine;
  for (const auto& output : comparison.outputs) {
    const double of_sample = output.worst_sample_db.value_or(output.sqnr_db);
    accuracy.worst_sample_db = std::min(accuracy.worst_sample_db.value_or(of_sample), of_sample);
  }
}

// As the runtime computes the file.
void measure_file(const QuantizeOptions& options, QuantizeResult& result, run::FloatResults* kept = nullptr) {
  const exec::Runtime runtime(options.runtime, options.resources.sample_time_limit);
  const auto inputs = run::with_dimensions_of(run::input_specs(onnx::read_model(options.model)),
                                              run::input_specs(onnx::read_model(options.output)));
  const auto count = compared_samples(result);
  const auto source = open_first(options, inputs, count);
  const auto tell = [&](std::uint64_t done) {
    if (options.progress) options.progress("proof", done, std::max<std::uint64_t>(done, kCompared));
  };
  const auto found = run::deployed_fidelity(runtime, options.model, options.output, *source, count,
                                            run::guard_options(options), tell, kept);
  if (found.cache_db) result.notes.push_back(words_of_caches(*found.cache_db));
  for (auto& words : run::notes_on_uncompared_outputs(found)) {
    if (std::find(result.notes.begin(), result.notes.end(), words) == result.notes.end())
      result.notes.push_back(std::move(words));
  }
  if (found.outputs == 0) return;
  run::copy_fidelity(found, result.accuracy ? *result.accuracy : result.accuracy.emplace());
}

bool runs_here(const QuantizeOptions& options) {
  if (!run::reason_against_proof(options).empty()) return false;
  const exec::Runtime runtime(options.runtime, options.resources.sample_time_limit);
  return run::runs_bfloat16(runtime, options.output, run::guard_options(options));
}

// The user's model has been loaded before.
Comparison compare_made(const CompareOptions& request) {
  try {
    return compare(request);
  } catch (const exec::SessionDied& e) {
    throw device_error(fmt::format("the quantized model cannot be compared: {}", e.what()), e.hint());
  }
}

}  // namespace

void measure_on_more(const QuantizeOptions& options, QuantizeResult& result, run::FloatResults* kept) {
  const auto available = std::min<std::uint64_t>(compared_samples(result), result.samples);
  if (!result.accuracy || result.accuracy->samples == 0 || available <= result.accuracy->samples) return;
  if (run::seconds_of_pairs(options.output) >= run::kSlowToLoad) return;
  measure_file(options, result, kept);
}

void check_samples(const QuantizeOptions& options) {
  if (!config::has_samples(options)) return;
  const auto source =
      open_first(options, run::input_specs(onnx::read_model(options.model), options.config.input_shapes));
  while (source->next()) continue;
}

bool must_be_of_use(const QuantizeOptions& options) {
  return config::has_samples(options) && !config::target(options.config).is_ort_cpu;
}

void refuse_useless(const QuantizeOptions& options, const QuantizeResult& result, std::string_view kind) {
  if (!result.accuracy || result.accuracy->sqnr_db >= run::kUselessDb) return;
  throw bad_input(fmt::format("the {} of --target {} leave the worst output {:.1f} dB from the float model's", kind,
                              options.config.target, result.accuracy->sqnr_db),
                  "leave the nodes that make the error to the CPU (--exclude-nodes), or give another target");
}

std::optional<Comparison> compare_models(const QuantizeOptions& options, const std::filesystem::path& work_dir,
                                         profile::Profiler& profiler, QuantizeResult& result) {
  const auto needed = needed_memory(result);
  if (needed > run::budget_of(options.resources, work_dir).memory) {
    result.notes.push_back(fmt::format("the outputs were not compared: both models side by side would take about {}",
                                       format_size(needed)));
    return std::nullopt;
  }
  const auto scope = profiler.scope(run::kComparisonStage);
  const auto low = run::find_16_bit_floats(options.output);
  const bool is_run = runs_here(options), has_low = low.half || low.brain;
  if (is_run) measure_file(options, result);
  if (is_run && !has_low && !options.report) return std::nullopt;
  if (options.samples != nullptr) options.samples->rewind();
  auto request = compare_options_for(options, kCompared);
  request.outputs_only = !options.report;
  auto comparison = compare_made(request);
  const auto cache_db = leave_out_caches(comparison);
  if (cache_db && !is_run) result.notes.push_back(words_of_caches(*cache_db));
  if (comparison.outputs.empty()) return comparison;
  if (!is_run) {
    take(comparison, result.accuracy.emplace());
  } else if (has_low && result.accuracy) {
    result.accuracy->rounded_db = worst_of(comparison.outputs).sqnr_db;
  }
  return comparison;
}

namespace {

constexpr std::size_t kSamples = 2;
// Kernels round halves otherwise, and products of 16 bits by a step or two: that is no other result.
constexpr double kSteps = 3;
constexpr double kShare = 0.01;  // of the elements that differ by more than one step

std::string words_for(const std::vector<std::string>& nodes) {
  if (nodes.empty()) return "each layer alone computes what its integers say; small differences add up";
  constexpr std::size_t kMost = 3;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kMost, nodes.size()));
  auto text = fmt::format("the runtime computes '{}'", fmt::join(nodes.begin(), nodes.begin() + shown, "', '"));
  if (nodes.size() > kMost) text += fmt::format(" and {} more", nodes.size() - kMost);
  return text + fmt::format(" differently from {} integers", nodes.size() == 1 ? "its" : "their");
}

}  // namespace

ComputedOtherwise computed_otherwise(const QuantizeOptions& options, const onnx::Model& prepared,
                                     std::uint64_t activations) {
  trim_heap();
  const auto models =
      run::size_on_disk(onnx::read_model(options.model)) + run::size_on_disk(onnx::read_model(options.output));
  const auto needed = profile::memory_now().resident + 2 * (models + activations) + remedies::kSearchBeside;
  if (const auto budget = options.resources.memory_budget; budget && needed > *budget)
    return {{},
            fmt::format("which layer does that was not looked for, as it would take about {} of memory",
                        format_size(needed))};
  if (options.samples != nullptr) options.samples->rewind();
  auto check = options;
  check.quantized_model = options.output;
  check.config = {};  // for ONNX Runtime's CPU
  check.max_samples = kSamples;
  check.bench = false;
  check.resources = {};
  check.progress = {};
  const auto verified = verify(check);
  std::map<std::string, std::string> ids;
  for (const auto& node : prepared.graph.nodes) ids.emplace(node.label(), node.id());
  std::vector<std::string> found;
  for (const auto& layer : verified.layers) {
    const auto id = ids.find(layer.made_by);
    if (id == ids.end() || layer.max_steps < kSteps || layer.share_over_one < kShare) continue;
    if (std::find(found.begin(), found.end(), id->second) == found.end()) found.push_back(id->second);
  }
  auto words = words_for(found);
  return {std::move(found), std::move(words)};
}

}  // namespace detent::pipeline
