// quantize(): from the options as they were given to the recipes that they stand for.
#include "detent/quantize.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/paths.h"
#include "config/derived.h"
#include "config/presets.h"
#include "config/targets.h"
#include "config/validate.h"
#include "data/replay.h"
#include "pipeline/quantize_family.h"
#include "pipeline/quantize_within_limits.h"
#include "pipeline/stages.h"
#include "quantization/formats.h"
#include "run/comparison/outcome.h"
#include "run/deadline.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/model/automatic_target.h"
#include "run/records/run_report.h"
#include "run/shared_run.h"
#include "shim/cuda_driver.h"
#include "shim/ranks.h"

namespace detent {
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
  // A name that is mistyped is what has to be known first.
  if (!options.model.empty() && !paths::exists(options.model))
    throw bad_input(fmt::format("cannot open model '{}': No such file or directory", options.model.string()));
  config::validate(options);
  run::check_apart(run::written_files(options), options.calibration_data, options.statistics);
  run::check_apart(run::written_files(options), {}, options.kernel_table);
  run::check_report_paths(options.report, options.trace);
  return run::within_time(options, [](const QuantizeOptions& limited) {
    shim::require_cuda(limited.device.cuda);
    auto result = pipeline::run_stages(limited);
    result.outcome = run::outcome_of(result);
    tell_of_this_cpu(limited, result);
    return result;
  });
}

QuantizeResult quantize_folder(const QuantizeOptions& options) {
  run::FolderResult folder(options);
  auto result = quantize_file(folder.options());
  folder.finish(result.notes);
  return result;
}

QuantizeResult quantize_as_given(const QuantizeOptions& given) {
  auto options = given;
  const KeptSamples kept(options);
  if (config::searches_formats(options)) return pipeline::quantize_within_limits(options);
  run::name_target(options);
  if (!options.family.empty())
    return run::within_time(options, [](const auto& limited) { return pipeline::quantize_family(limited); });
  return paths::is_folder(options.model) ? quantize_folder(options) : quantize_file(options);
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
