// Several results of one model from one pass over the samples, in a folder.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/paths.h"
#include "base/text.h"
#include "config/formats.h"
#include "config/presets.h"
#include "config/targets.h"
#include "config/validate.h"
#include "data/source.h"
#include "detent/quantize.h"
#include "detent/search.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "onnx/write.h"
#include "pipeline/deployed.h"
#include "pipeline/stages.h"
#include "quantization/formats.h"
#include "run/comparison/outcome.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/files/run_directory.h"
#include "run/model/format_choice.h"
#include "run/model/target_runtime.h"
#include "run/records/run_report.h"
#include "run/samples/samples.h"
#include "shim/cuda_driver.h"
#include "shim/ranks.h"
#include "shim/shared_work.h"

namespace detent::pipeline {

/// What quantize() does where QuantizeOptions::family names members.
QuantizeResult quantize_family(const QuantizeOptions& options);

}  // namespace detent::pipeline

namespace detent {

// quantize(): from the options as they were given to the recipes that they stand for.

namespace {

// Samples that pass once are read as often as a list of them is: the same model comes of both.
class KeptSamples {
 public:
  explicit KeptSamples(QuantizeOptions& options) {
    if (options.samples == nullptr || options.samples->can_rewind()) return;
    folder_.emplace(options.resources.work_dir.value_or(""));
    options.samples = &stream_.emplace(*options.samples, folder_->path(), options.resources.disk_budget);
  }

 private:
  std::optional<TempDir> folder_;
  std::optional<data::ReplayStream> stream_;
};

// What is made for other devices is no faster here.
void tell_of_this_cpu(const QuantizeOptions& options, QuantizeResult& result) {
  if (!config::target(options.config).is_ort_cpu || result.nodes_quantized + (result.floats ? 1 : 0) == 0) return;
  const auto& config = options.config;
  const bool has_wide = result.floats == std::nullopt && quantization::is_16_bit(config.activation_type) &&
                        config::preset(config).quantizes && config.activations == Activations::fixed;
  if (config::writes_16_bits(config) || has_wide)
    result.outcome.reasons.push_back(fmt::format(
        "ONNX Runtime's CPU computes {} in float32: what it gains is size there, and speed on other devices.",
        has_wide ? "activations of 16 bits" : "16-bit floats"));
}

QuantizeResult quantize_file(const QuantizeOptions& options) {
  config::validate(options);
  run::check_apart(run::written_files(options), options.calibration_data, options.statistics);
  run::check_apart(run::written_files(options), {}, options.kernel_table);
  run::check_kernel_table(options.kernel_table);
  run::check_report_paths(options.report, options.trace);
  const auto run = [](const Options& limited) {
    shim::require_cuda(limited.device.cuda);
    auto result = pipeline::run_stages(limited);
    result.outcome = run::outcome_of(result);
    tell_of_this_cpu(limited, result);
    return result;
  };
  return run::within_time(options, run, run::hint_to_resume(options.resources));
}

QuantizeResult quantize_folder(const QuantizeOptions& options) {
  run::FolderResult folder(options);
  auto result = quantize_file(folder.options());
  folder.finish(result.notes);
  return result;
}

QuantizeResult quantize_alone(const QuantizeOptions& options) {
  return paths::is_folder(options.model) ? quantize_folder(options) : quantize_file(options);
}

// For a latency or a size: the format of each node is searched, then that model is made.

Options search_of(const Options& options, const std::filesystem::path& folder) {
  auto search = options;
  search.output = folder / "found";
  search.may_be_float = false;
  search.resources.work_dir = folder;
  return search;
}

// The search has looked after what they ask for.
QuantizeOptions without_limits(QuantizeOptions options) {
  options.max_latency.reset();
  options.weights_only.max_size.reset();
  options.accuracy = {};
  return options;
}

std::string note_on_choice(const SearchPoint& point, std::size_t models) {
  return fmt::format("of {}, {} meets the limits best: {:.4g} ms, {} and {:.1f} dB when it was measured beside them",
                     count_with_noun(models, "searched model"), point.name, 1e3 * point.seconds,
                     format_size(point.bytes), point.sqnr_db);
}

// Throws resource, naming the nearest model, where none meets the limits.
QuantizeResult quantize_within_limits(const QuantizeOptions& options) {
  config::validate(options);
  run::check_apart(run::written_files(options), options.calibration_data);
  const run::PrivateDirectory folder(options.resources);
  const auto found = search(search_of(options, folder.path()));
  // Rank 0 alone has points.
  const auto chosen =
      std::find_if(found.points.begin(), found.points.end(), [](const auto& point) { return !point.chosen.empty(); });
  const bool knows = chosen != found.points.end();
  auto own = without_limits(options);
  own.node_formats = shim::broadcast_names(options.resources.ranks,
                                           knows ? chosen->node_formats : std::vector<std::string>(), options.stop);
  if (own.samples != nullptr) own.samples->rewind();
  auto result = quantize_alone(own);
  if (knows) result.notes.insert(result.notes.begin(), note_on_choice(*chosen, found.points.size()));
  result.peak_memory = std::max(result.peak_memory, found.peak_memory);
  return result;
}

QuantizeResult quantize_as_given(const QuantizeOptions& given) {
  auto options = given;
  const KeptSamples kept(options);
  run::name_target(options);
  if (config::searches_formats(options)) return quantize_within_limits(options);
  if (!options.family.empty())
    return run::within_time(options, pipeline::quantize_family, run::hint_to_resume(options.resources));
  return quantize_alone(options);
}

}  // namespace

QuantizeResult quantize(const QuantizeOptions& given) {
  if (given.resources.ranks != nullptr) return quantize_as_given(given);  // a part of a run that has joined them
  auto ranks = shim::Ranks::join();
  auto options = given;
  options.resources.ranks = &ranks;
  return ranks.size() == 1 ? quantize_as_given(options) : run::run_among(ranks, options, quantize_as_given);
}

}  // namespace detent

namespace detent::pipeline {
namespace {

std::vector<run::Variant> variants_of(const std::vector<const config::FamilyRow*>& members) {
  std::vector<run::Variant> variants;
  for (const auto* member : members) variants.push_back({std::string(member->name), std::string(member->suffix)});
  return variants;
}

class Family {
 public:
  explicit Family(const QuantizeOptions& options)
      : options_(options),
        members_(config::family_of(options)),
        folder_(options, variants_of(members_)),
        run_profiler_(options.profiler, {}),
        results_(members_.size()) {
    for (std::size_t m = 0; m < members_.size(); ++m) {
      of_members_.push_back(config::options_of(*members_[m], folder_.options(m)));
      of_members_.back().bench = false;  // all together at the end
      of_members_.back().samples = options.samples;
      if (members_[m]->format.empty()) continue;
      config::validate(of_members_[m]);
      run::check_apart(run::written_files(of_members_[m]), options.calibration_data);
    }
  }

  QuantizeResult run() {
    make_all();
    if (helps()) throw run::ShareDone();
    if (options_.bench) time();
    QuantizeResult all;
    folder_.finish(all.notes);
    for (std::size_t m = 0; m < members_.size(); ++m) add(m, all);
    run_profiler_.finish();
    for (auto& stage : run_profiler_.stage_reports()) all.stages.push_back(std::move(stage));
    return all;
  }

 private:
  bool is_16_bit(std::size_t m) const { return of_members_[m].config.float_type == FloatType::float16; }
  bool helps() const { return shim::rank_of(options_.resources.ranks) != 0; }

  void make_all() {
    // Weights in blocks first: their pass over the samples serves the others.
    for (const bool blocks : {true, false}) {
      for (std::size_t m = 0; m < members_.size(); ++m) {
        if (of_members_[m].weights_only.enabled == blocks && !results_[m]) results_[m] = make(m);
      }
    }
  }

  // The ranks are together again where what rank 0 does alone of this member is done; only it gets the result.
  QuantizeResult run_shared(const QuantizeOptions& options, const SharedByRuns& shared) {
    const shim::Reunion member(options.resources.ranks);
    try {
      return run_stages(options, shared);
    } catch (const run::ShareDone&) {
      return {};
    }
  }

  QuantizeResult make(std::size_t m) {
    const auto& options = of_members_[m];
    if (options_.samples != nullptr && reads_again_) options_.samples->rewind();
    reads_again_ = true;
    if (members_[m]->format.empty()) return helps() ? QuantizeResult() : copy(options);
    if (options.weights_only.enabled) return make_blocks(m);
    return run_shared(options, {.extremes = extremes_ && !of_rotated_ ? &*extremes_ : nullptr});
  }

  // Those of float32 are the first half of those of float16.
  QuantizeResult make_blocks(std::size_t m) {
    if (!extremes_) extremes_.emplace();
    for (std::size_t other = 0; is_16_bit(m) && other < members_.size(); ++other) {
      if (other == m || !of_members_[other].weights_only.enabled) continue;
      if (!results_[other]) results_[other] = make_blocks(other);
      if (helps()) return {};
      auto first = *results_[other];
      first.stages.clear();  // told there
      return convert_blocks(of_members_[m], of_members_[other].output, std::move(first));
    }
    auto result = run_shared(of_members_[m], {.extremes = &*extremes_});
    of_rotated_ = is_rotated(of_members_[m], result);
    return result;
  }

  // A model whose weights are in blocks already.
  QuantizeResult convert_blocks(QuantizeOptions options, const std::filesystem::path& blocks, QuantizeResult result) {
    const auto original = std::exchange(options.model, blocks);
    options.weights_only = {};
    options.format.clear();
    auto& config = options.config;
    config.preset = "none";
    // These say which weights become integers.
    for (auto* names : {&config.op_types, &config.exclude_op_types, &config.nodes, &config.exclude_nodes})
      names->clear();
    options.resources.resume = false;  // what takes long is done
    if (options.samples != nullptr) options.samples->rewind();
    const auto converted = run_shared(options, {.extremes = &*extremes_, .original = original});
    result.model_bytes_after = converted.model_bytes_after;
    result.floats = converted.floats;
    result.accuracy = converted.accuracy;
    result.notes.insert(result.notes.end(), converted.notes.begin(), converted.notes.end());
    result.stages.insert(result.stages.end(), converted.stages.begin(), converted.stages.end());
    result.peak_memory = std::max(result.peak_memory, converted.peak_memory);
    return result;
  }

  static QuantizeResult copy(const QuantizeOptions& options) {
    auto model = onnx::read_model(options.model);
    QuantizeResult result;
    result.model_bytes_before = run::size_on_disk(model);
    const auto files =
        onnx::write_model(model, options.output, {options.external_data_threshold, options.external_data_suffix});
    result.model_bytes_after = files.model_bytes + files.data_bytes;
    return result;
  }

  // What computes in float32, as single runs are timed.
  void time() {
    std::vector<Deployed> models;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const bool runs =
          of_members_[m].weights_only.enabled || of_members_[m].config.activations == Activations::dynamic;
      if (runs && !is_16_bit(m)) models.push_back({of_members_[m].output, &*results_[m]});
    }
    if (models.empty()) return;
    const auto& options = of_members_.front();
    const exec::Runtime runtime(options_.runtime, options_.resources.sample_time_limit);
    time_models(options, models, run::input_specs(onnx::read_model(options.model), options.config.input_shapes),
                runtime, run_profiler_.profiler());
  }

  void add(std::size_t m, QuantizeResult& all) {
    auto& result = *results_[m];
    all.samples = std::max(all.samples, result.samples);
    all.model_bytes_before = result.model_bytes_before;
    all.model_bytes_after += result.model_bytes_after;
    all.peak_memory = std::max(all.peak_memory, result.peak_memory);
    for (const auto& stage : result.stages)
      all.stages.push_back({std::string(members_[m]->name) + ": " + stage.name, stage.seconds, stage.peak_memory});
    if (!all.transformer) all.transformer = result.transformer;
    result.transformer.reset();  // told once
    result.outcome = run::outcome_of(result);
    all.family.push_back({std::string(members_[m]->name), folder_.place(m), std::move(result)});
  }

  const QuantizeOptions& options_;
  std::vector<const config::FamilyRow*> members_;
  run::FolderResult folder_;
  run::RunProfiler run_profiler_;
  bool reads_again_ = false;
  std::vector<QuantizeOptions> of_members_;
  std::vector<std::optional<QuantizeResult>> results_;
  std::optional<calibration::Statistics> extremes_;  // of the float model's values, once known
  bool of_rotated_ = false;                          // but of a rotated one's
};

}  // namespace

QuantizeResult quantize_family(const QuantizeOptions& options) {
  config::validate(options);
  if (shim::rank_of(options.resources.ranks) == 0) return Family(options).run();
  const run::PrivateDirectory unseen(options.resources);  // the folder is rank 0's
  auto own = options;
  own.output = unseen.path() / "family";
  return Family(own).run();
}

}  // namespace detent::pipeline
