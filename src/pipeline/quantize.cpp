// The story of static quantization, from file to file.
#include "detent/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "calibrate/observers.h"
#include "data/sample.h"
#include "exec/emit.h"
#include "exec/session.h"
#include "graph/index.h"
#include "graph/rewrite.h"
#include "onnx/write.h"
#include "pipeline/prepare.h"
#include "profile/profiler.h"
#include "quantize/insert.h"
#include "quantize/params.h"
#include "quantize/placement.h"

namespace detent {
namespace {

using profile::Step;

void check_options(const QuantizeOptions& options) {
  if (options.method != "minmax") {
    throw usage_error(fmt::format("unknown calibration method '{}'", options.method), "the method there is: minmax");
  }
  if (options.threads < 0) throw usage_error("--threads must not be negative");
  if (options.batch_size < 0) throw usage_error("--batch-size must not be negative");
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

// Q/DQ came with opset 10, their per-axis form with 13.
std::int64_t needed_opset(const QuantConfig& config) { return config.per_channel ? 13 : 10; }

std::vector<calibration::Observed> observed_values(const onnx::Model& model, const quantization::Placement& placement) {
  const graph::Index index(model);
  std::vector<calibration::Observed> observed;
  for (const auto& value : placement.to_observe()) {
    const int producer = index.producer(value);
    observed.push_back({value, producer == graph::kNone
                                   ? "graph input"
                                   : "made by " + model.graph.nodes[static_cast<std::size_t>(producer)].label()});
  }
  return observed;
}

// Runs every sample through the model with observers in place.
calibration::Statistics calibrate(const onnx::Model& model, const quantization::Placement& placement,
                                  const exec::Runtime& runtime, data::SampleSource& source,
                                  const QuantizeOptions& options) {
  const auto threads = options.threads > 0 ? static_cast<std::size_t>(options.threads)
                                           : std::max(1U, std::thread::hardware_concurrency());
  calibration::Observers observers(observed_values(model, placement),
                                   {options.histogram, options.allow_nonfinite, threads});
  const std::string where = fmt::format("model '{}'", model.path.string());
  exec::Session session(runtime, exec::emit(model, {placement.to_observe(), {}, {}}), where,
                        {exec::Tuning::lean, options.threads, options.stop}, &observers);
  std::uint64_t done = 0;
  while (auto sample = source.next()) {
    observers.begin_sample(sample->origin);
    session.run(sample->inputs, fmt::format("{}, sample '{}'", where, sample->origin));
    ++done;
    if (options.progress) options.progress("calibrate", done, source.file_count());
  }
  if (done == 0) throw bad_input(fmt::format("'{}' holds no calibration samples", options.calibration_data.string()));
  return observers.statistics();
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
  pipeline::check_apart(written_files(options), options.calibration_data);
  QuantizeResult result;
  profile::Profiler profiler(options.profile);
  const TempDir work(options.work_dir.value_or(""));
  profiler.watch_directory(work.path());

  auto pre_process = std::make_optional(profiler.scope(Step::pre_process));
  auto original = onnx::read_model(options.model);
  profiler.checkpoint(Step::model_loaded);
  pipeline::check_output(options.output, original);
  result.model_bytes_before = size_on_disk(original);
  const exec::Runtime runtime(options.runtime);
  auto prepared = pipeline::prepare(std::move(original), needed_opset(options.config), runtime, work.path(), profiler);
  onnx::Model& model = prepared.model;
  auto placement = quantization::place(model, prepared.types, options.config);
  const auto extremes = quantization::scan_weights(model, placement, options.allow_nonfinite);
  const auto source = data::open_samples(options.calibration_data, pipeline::input_specs(model),
                                         {options.max_samples, options.batch_size});
  if (options.prepared_output) {
    pipeline::check_output(*options.prepared_output, model);
    onnx::write_model(model, *options.prepared_output, {options.external_data_threshold});
  }
  pre_process.reset();

  calibration::Ranges ranges;
  {
    const auto scope = profiler.scope(Step::calibration);
    const auto statistics = calibrate(model, placement, runtime, *source, options);
    result.samples = statistics.samples;
    ranges = calibration::minmax_ranges(statistics);
  }
  append(result.notes, prepared.notes);
  append(result.notes, placement.notes);
  append(result.notes, source->notes());
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
