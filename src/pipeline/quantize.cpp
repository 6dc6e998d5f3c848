// Which way a model goes: what the options ask for decides, and what the model is.
#include "detent/quantize.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/failure.h"
#include "base/file.h"
#include "config/derived.h"
#include "config/presets.h"
#include "config/validate.h"
#include "data/replay.h"
#include "pipeline/block_floats.h"
#include "pipeline/blocks_in_16_bits.h"
#include "pipeline/convert_floats.h"
#include "pipeline/quantize_cache.h"
#include "pipeline/quantize_dynamic.h"
#include "pipeline/quantize_family.h"
#include "pipeline/quantize_integers.h"
#include "pipeline/quantize_weights.h"
#include "run/automatic_target.h"
#include "run/deadline.h"
#include "run/model_folder.h"
#include "run/outcome.h"
#include "run/outputs.h"
#include "run/run_report.h"
#include "shim/cuda_driver.h"
#include "shim/ranks.h"

namespace detent {
namespace {

QuantizeResult quantize_folder(const QuantizeOptions& options) {
  run::FolderResult folder(options);
  auto result = quantize(folder.options());
  folder.finish(result.notes);
  return result;
}

QuantizeResult quantize_as_asked(const QuantizeOptions& options) {
  if (options.weights_only.enabled && options.config.float_type != FloatType::keep)
    return pipeline::quantize_weights_in_16_bits(options);
  if (options.weights_only.enabled) return pipeline::quantize_weights(options);
  if (options.config.activations == Activations::dynamic) return pipeline::quantize_dynamic(options);
  if (config::changes_cache_alone(options)) return pipeline::quantize_cache(options);
  shim::require_cuda(options.device.cuda);
  if (options.config.block_float != BlockFloat::none) return pipeline::convert_to_block_floats(options);
  if (!config::preset(options.config).quantizes) return pipeline::convert_floats(options);
  return pipeline::quantize_integers(options);
}

QuantizeResult quantize_within_time(const QuantizeOptions& options) {
  auto result = quantize_as_asked(options);
  result.outcome = run::outcome_of(result);
  return result;
}

// Samples that pass once are read as often as a list of them is: the same model comes of both.
QuantizeResult quantize_kept(const QuantizeOptions& options) {
  const TempDir folder(options.resources.work_dir.value_or(""));
  data::ReplayStream kept(*options.samples, folder.path(), options.resources.disk_budget);
  auto again = options;
  again.samples = &kept;
  return quantize(again);
}

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options) {
  if (options.samples != nullptr && !options.samples->can_rewind()) return quantize_kept(options);
  if (auto named = run::with_named_target(options)) return quantize(*named);
  std::error_code failed;
  if (!options.family.empty())
    return run::within_time(options, [](const auto& limited) { return pipeline::quantize_family(limited); });
  if (std::filesystem::is_directory(options.model, failed)) return quantize_folder(options);
  if (is_of_machine(failed.value()))
    throw failed_call(failed.value(), fmt::format("cannot open model '{}'", options.model.string()),
                      ErrorKind::bad_input);
  config::validate(options);
  if (shim::Ranks::join().size() > 1) {
    throw usage_error("quantize runs in one process, but MPI started several",
                      "calibrate with mpirun, then quantize --statistics without it");
  }
  run::check_apart(run::written_files(options), options.calibration_data, options.statistics);
  run::check_report_paths(options.report, options.trace);
  return run::within_time(options, quantize_within_time);
}

}  // namespace detent
