// The story of static quantization, from file to file.
#include "detent/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "calibrate/statistics_file.h"
#include "data/sample.h"
#include "exec/session.h"
#include "onnx/write.h"
#include "pipeline/collect.h"
#include "pipeline/identity.h"
#include "pipeline/prepare.h"
#include "profile/profiler.h"
#include "quantize/insert.h"
#include "quantize/params.h"
#include "quantize/placement.h"
#include "quantize/ranges.h"
#include "shim/ranks.h"

namespace detent {
namespace {

using profile::Step;

quantization::RangeOptions range_options(const QuantizeOptions& options) {
  return {options.method, options.overrides, pipeline::thread_count(options.threads)};
}

void check_options(const QuantizeOptions& options) {
  if (options.threads < 0) throw usage_error("--threads must not be negative");
  if (options.workers < 1) throw usage_error("--workers must be at least 1");
  if (options.batch_size < 0) throw usage_error("--batch-size must not be negative");
  if (!options.calibration_data && !options.statistics)
    throw usage_error("there is nothing to calibrate with", "give --calibration-data or --statistics");
  quantization::check_method(options.config, range_options(options));
}

// Each model may come with a data file beside it.
std::vector<std::filesystem::path> written_files(const QuantizeOptions& options) {
  std::vector<std::filesystem::path> files{options.output, options.output.string() + ".data"};
  if (options.prepared_output) {
    files.push_back(*options.prepared_output);
    files.emplace_back(options.prepared_output->string() + ".data");
  }
  if (options.profile) files.push_back(*options.profile);
  return files;
}

// Statistics from a file, which must be of this model and, where they are given, of these samples.
calibration::Statistics saved_statistics(const QuantizeOptions& options, const Fingerprint& model,
                                         data::SampleSource* source) {
  auto statistics = calibration::read_statistics(*options.statistics);
  const std::string where = fmt::format("statistics '{}'", options.statistics->string());
  if (statistics.model != model) {
    throw bad_input(fmt::format("{} were taken from another model ('{}', fingerprint {}) than '{}' ({})", where,
                                statistics.model_name, statistics.model.text(), options.model.string(), model.text()),
                    "calibrate this model");
  }
  if (source != nullptr && pipeline::fingerprint_of(*source) != statistics.data) {
    throw bad_input(
        fmt::format("{} were taken from other samples than '{}'", where, options.calibration_data->string()),
        "calibrate again; --samples and --batch-size count as well");
  }
  return statistics;
}

calibration::Statistics new_statistics(const QuantizeOptions& options, const pipeline::Prepared& prepared,
                                       const quantization::Placement& placement, const exec::Runtime& runtime,
                                       data::SampleSource& source) {
  const auto ranges = range_options(options);
  return pipeline::collect(prepared, placement, runtime, source,
                           {quantization::needs_histograms(ranges), quantization::needs_votes(options.config, ranges),
                            options.allow_nonfinite, options.threads, options.workers, options.progress, options.stop});
}

void count_nodes(const onnx::Model& model, const quantization::Placement& placement, const quantization::Params& params,
                 QuantizeResult& result) {
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (!placement.selected[n]) continue;
    const auto& node = model.graph.nodes[n];
    const auto is_quantized = [&](const std::string& value) { return params.contains(value); };
    const bool fused =
        std::any_of(placement.fused.begin(), placement.fused.end(), [&](const auto& f) { return f.node == n; });
    const bool any = fused || std::any_of(node.inputs().begin(), node.inputs().end(), is_quantized);
    ++(any ? result.nodes_quantized : result.nodes_in_float);
  }
}

void record_activations(const quantization::Placement& placement, const quantization::Params& params,
                        QuantizeResult& result) {
  for (const auto& mark : placement.marks) {
    const auto found = params.find(mark.value);
    if (mark.is_constant || found == params.end()) continue;
    const auto& p = found->second.channels.front();
    result.activations[mark.value] = {p.scale, p.zero_point, found->second.range.min, found->second.range.max};
  }
}

// A word about this machine only: the model is the same wherever it is made.
void note_saturation(const QuantConfig& config, std::vector<std::string>& notes) {
  if (sums_8_bit_products_exactly() || config.reduce_range) return;
  if (config.weight_type != QuantType::int8) return;  // int8 activations are turned into uint8 inside the runtime
  notes.emplace_back(
      "this CPU has no VNNI: ONNX Runtime's products with int8 weights saturate on it and lose accuracy; for such CPUs "
      "give --weight-type uint8 or --reduce-range");
}

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::uint64_t size_on_disk(const onnx::Model& model) {
  std::uint64_t bytes = model.file->bytes().size();
  for (const auto& tensor : model.graph.initializers) bytes += tensor.is_external ? tensor.data.size() : 0;
  return bytes;
}

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options) {
  check_options(options);
  if (shim::Ranks::join().size() > 1) {
    throw usage_error("quantize is the work of one process, and MPI started several",
                      "calibrate with mpirun, then quantize --statistics without it");
  }
  pipeline::check_apart(written_files(options), options.calibration_data, options.statistics);
  QuantizeResult result;
  profile::Profiler profiler(options.profile);
  const TempDir work(options.work_dir.value_or(""));
  profiler.watch_directory(work.path());

  auto pre_process = std::make_optional(profiler.scope(Step::pre_process));
  auto original = onnx::read_model(options.model);
  profiler.checkpoint(Step::model_loaded);
  pipeline::check_output(options.output, original);
  result.model_bytes_before = size_on_disk(original);
  const auto identity = options.statistics ? pipeline::fingerprint_of(original) : Fingerprint();
  const exec::Runtime runtime(options.runtime);
  auto prepared = pipeline::prepare(std::move(original), quantization::needed_opset(options.config), runtime,
                                    work.path(), profiler);
  onnx::Model& model = prepared.model;
  auto placement = quantization::place(model, prepared.types, options.config);
  const auto extremes = quantization::scan_weights(model, placement, options.allow_nonfinite);
  std::unique_ptr<data::SampleSource> source;
  if (options.calibration_data) {
    source = data::open_samples(*options.calibration_data, pipeline::input_specs(model),
                                {options.max_samples, options.batch_size});
  }
  if (options.prepared_output) {
    pipeline::check_output(*options.prepared_output, model);
    onnx::write_model(model, *options.prepared_output, {options.external_data_threshold});
  }
  pre_process.reset();

  calibration::Ranges ranges;
  {
    const auto scope = profiler.scope(Step::calibration);
    const auto statistics = options.statistics ? saved_statistics(options, identity, source.get())
                                               : new_statistics(options, prepared, placement, runtime, *source);
    result.samples = statistics.samples;
    ranges = quantization::find_ranges(placement, statistics, options.config, range_options(options));
  }
  append(result.notes, prepared.notes);
  append(result.notes, placement.notes);
  if (source) append(result.notes, source->notes());
  note_saturation(options.config, result.notes);
  {
    const auto scope = profiler.scope(Step::quantization_static);
    const auto params = quantization::compute_all(model, placement, ranges, extremes, options.config, result.notes);
    count_nodes(model, placement, params, result);
    record_activations(placement, params, result);
    quantization::insert(model, placement, params, options.config, result.notes);
  }
  {
    const auto scope = profiler.scope(Step::post_process);
    model.set_producer("detent", DETENT_VERSION);
    if (options.stop.stop_requested()) throw interrupted();
    const auto written = onnx::write_model(model, options.output, {options.external_data_threshold});
    result.model_bytes_after = written.model_bytes + written.data_bytes;
  }
  profiler.finish();
  for (const auto& stage : profiler.stages()) result.stages.push_back({stage.name, stage.seconds, stage.peak_memory});
  result.peak_memory = profiler.peak_memory();
  return result;
}

}  // namespace detent
