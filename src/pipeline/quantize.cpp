// The story of static quantization, from file to file.
#include "detent/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "accuracy/responses.h"
#include "base/bytes.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/heap.h"
#include "base/parallel.h"
#include "calibrate/methods.h"
#include "calibrate/statistics_file.h"
#include "data/replay.h"
#include "data/sample.h"
#include "exec/session.h"
#include "onnx/write.h"
#include "pipeline/automatic_gptq.h"
#include "pipeline/equalize.h"
#include "pipeline/quantize_options.h"
#include "pipeline/refine.h"
#include "profile/profiler.h"
#include "quantize/formats.h"
#include "quantize/insert.h"
#include "quantize/params.h"
#include "quantize/placement.h"
#include "quantize/ranges.h"
#include "run/calibration_device.h"
#include "run/model_fingerprint.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/run_report.h"
#include "run/samples.h"
#include "run/sweep_setup.h"
#include "shim/cuda_driver.h"
#include "shim/ranks.h"
#include "store/open_device.h"
#include "tuning/cost.h"
#include "tuning/finetune.h"
#include "tuning/tuned_layer.h"

namespace detent {
namespace {

using profile::Step;

constexpr std::size_t kCompared = 4;  // samples that both models run on for a report, and that measuring may read again

// Each model may come with a data file beside it.
std::vector<std::filesystem::path> written_files(const QuantizeOptions& options) {
  std::vector<std::filesystem::path> files{options.output, options.output.string() + ".data"};
  if (options.prepared_output) {
    files.push_back(*options.prepared_output);
    files.emplace_back(options.prepared_output->string() + ".data");
  }
  for (const auto& path : {options.profile, options.report, options.trace}) {
    if (path) files.push_back(*path);
  }
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
  if (source != nullptr && run::fingerprint_of(*source) != statistics.data) {
    throw bad_input(
        fmt::format("{} were taken from other samples than {}", where,
                    options.calibration_data ? "'" + options.calibration_data->string() + "'" : "those given"),
        "calibrate again; --samples and --batch-size count as well");
  }
  return statistics;
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
                        const std::map<std::string, std::string>& sources, QuantizeResult& result) {
  for (const auto& mark : placement.marks) {
    const auto found = params.find(mark.value);
    if (mark.is_constant || found == params.end()) continue;
    const auto& p = found->second.channels.front();
    const auto source = sources.find(found->second.source);
    result.activations[mark.value] = {p.scale, p.zero_point, found->second.range.min, found->second.range.max,
                                      source == sources.end() ? "" : source->second};
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

// One run of quantize(): the stages in their order, and what they hand on.
class Run {
 public:
  explicit Run(const QuantizeOptions& options)
      : options_(options),
        run_profiler_(options.profiler, options.profile),
        profiler_(run_profiler_.profiler()),
        runtime_(options.runtime),
        reports_(options.report || options.trace),
        range_options_(pipeline::range_options(options)) {}

  QuantizeResult run() {
    pre_process();
    auto ranges = calibrate();
    if (measures_accuracy()) {
      equalize(ranges);
      refine(ranges);
    }
    insert_pairs(ranges);
    if (tunes(options_.finetune.rounding)) {
      const auto scope = profiler_.scope(Step::fast_finetune);
      finetune(options_.finetune, true);
    } else if (wants_tuned_weights()) {
      tune_weights();
    } else if (!options_.device.is_cpu() && options_.statistics) {
      result_.notes.emplace_back("nothing ran on the device: the statistics were there, and nothing is fine-tuned");
    }
    if (result_.accuracy) say_what_is_left();
    write();
    if (reports_) compare_models();
    work_->finish();
    run_profiler_.finish();
    if (reports_) run::write_reports(report_, report_request(), run_profiler_);
    result_.stages = run_profiler_.stage_reports();
    result_.peak_memory = profiler_.peak_memory();
    return std::move(result_);
  }

 private:
  void pre_process() {
    const auto scope = profiler_.scope(Step::pre_process);
    auto original = onnx::read_model(options_.model);
    profiler_.checkpoint(Step::model_loaded);
    run::check_output(options_.output, original);
    result_.model_bytes_before = size_on_disk(original);
    if (options_.statistics) identity_ = run::fingerprint_of(original);
    work_.emplace(options_.resources, run_identity(original));
    profiler_.watch_directory(work_->path());
    // What cannot be is better known before hours of work than after them.
    if (options_.device.gds == GdsMode::on && tunes(options_.finetune.rounding))
      store::open_cuda_storage(options_.device.cuda.front(), GdsMode::on, work_->path());
    append(result_.notes, work_->notes());
    prepared_ = run::prepare(std::move(original), quantization::needed_opset(options_.config), runtime_,
                             work_->scratch(), profiler_);
    placement_ = run::place(prepared_, options_.config);
    extremes_ = quantization::scan_weights(prepared_.model, placement_, options_.allow_nonfinite);
    append(result_.notes, prepared_.notes);
    append(result_.notes, placement_.notes);
    if (pipeline::has_samples(options_)) {
      source_ = run::open_samples(options_.calibration_data.value_or(""), samples(), run::input_specs(prepared_.model),
                                  {options_.max_samples, options_.batch_size});
    }
    if (options_.prepared_output) {
      run::check_output(*options_.prepared_output, prepared_.model);
      onnx::write_model(prepared_.model, *options_.prepared_output, {options_.external_data_threshold});
    }
    if (reports_ && source_) {
      const planning::Circumstances circumstances{placement_.to_observe().size(), true, thread_count(options_.threads),
                                                  static_cast<std::size_t>(options_.workers), 0};
      run::describe_layers(prepared_, placement_, runtime_, *source_, circumstances, report_);
    }
  }

  // Of a stream that passes once, as many samples are kept as are read again.
  SampleStream* samples() {
    const bool again = reports_ || pipeline::may_measure_accuracy(options_);
    if (options_.samples == nullptr || options_.samples->can_rewind() || !again) return options_.samples;
    if (replay_) return &*replay_;
    std::int64_t rows = 1;  // that may have to be joined for one run of the model
    for (const auto& input : run::input_specs(prepared_.model)) {
      if (input.shape && !input.shape->empty()) rows = std::max(rows, input.shape->front());
    }
    return &replay_.emplace(*options_.samples, kCompared * static_cast<std::size_t>(rows), work_->scratch());
  }

  calibration::Ranges calibrate() {
    const auto scope = profiler_.scope(Step::calibration);
    report_.collect_start = profiler_.now();
    auto statistics = options_.statistics ? saved_statistics(options_, identity_, source_.get()) : new_statistics();
    result_.samples = statistics.samples;
    if (source_) append(result_.notes, source_->notes());
    if (!options_.statistics) report_.samples_run = statistics.samples;
    if (options_.config.preset == Preset::balanced)
      range_options_.responses = accuracy::responses(prepared_.model, prepared_.types, placement_, runtime_);
    auto ranges = quantization::find_ranges(placement_, statistics, options_.config, range_options_);
    if (pipeline::may_measure_accuracy(options_) && options_.accuracy.sensitivity == SensitivityMode::automatic &&
        source_) {
      for (const auto method : pipeline::other_methods(options_, statistics)) {
        auto other = range_options_;
        other.method.method = method;
        other_ranges_.emplace_back(method, quantization::find_ranges(placement_, statistics, options_.config, other));
      }
    }
    if (options_.accuracy.fallback == AccuracyFallback::int16) {
      QuantConfig wide = options_.config;
      wide.activation_type = quantization::widened(wide.activation_type);
      wide_ranges_ = quantization::find_ranges(placement_, statistics, wide, range_options_);
    }
    range_sources_ = quantization::range_sources(placement_, range_options_);
    if (reports_) report_.statistics = std::move(statistics);
    return ranges;
  }

  calibration::Statistics new_statistics() {
    run::CollectOptions collect{.histograms = needs_histograms(),
                                .votes = quantization::needs_votes(options_.config, range_options_),
                                .allow_nonfinite = options_.allow_nonfinite,
                                .threads = options_.threads,
                                .workers = options_.workers,
                                .keep_result = tunes(options_.finetune.rounding) || pipeline::may_tune(options_),
                                .progress = options_.progress,
                                .stop = options_.stop};
    report_.recording.directory = work_->scratch();
    if (reports_) collect.recording = &report_.recording;
    run::DeviceCalibration device(options_.device, placement_.to_observe().size(), collect.histograms, work_->scratch(),
                                  activity());
    device.lend(collect);
    auto statistics = run::collect_within(options_.resources, *work_, prepared_, placement_, runtime_, *source_,
                                          collect, result_.notes);
    append(result_.notes, device.notes());
    if (device.use() != nullptr) report_.device = run::RunReport::Device{options_.device, *device.use(), {}};
    return statistics;
  }

  bool measures_accuracy() {
    if (!pipeline::may_measure_accuracy(options_)) return false;
    if (!source_)
      result_.notes.emplace_back("what rounding does to the results was not measured: there are no samples");
    return source_ != nullptr;
  }

  bool may_equalize() const {
    const auto& wanted = options_.accuracy;
    const bool acts = wanted.target || wanted.sensitivity == SensitivityMode::automatic;
    return acts && wanted.equalize == EqualizeMode::automatic;
  }

  quantization::Params params_of(const quantization::Placement& placement, const calibration::Ranges& ranges) const {
    std::vector<std::string> said_later;
    return quantization::compute_all(prepared_.model, placement, ranges, extremes_, options_.config, said_later);
  }

  void equalize(calibration::Ranges& ranges) {
    if (!may_equalize()) return;
    const auto scope = profiler_.scope(run::kSensitivityStage);
    std::vector<calibration::Ranges> all{ranges};
    for (const auto& [method, other] : other_ranges_) all.push_back(other);
    auto done = pipeline::equalize(
        prepared_, placement_, runtime_, *source_,
        {.config = options_.config,
         .resources = options_.resources,
         .directory = work_->path(),
         .weights = work_->scratch(),
         .samples = replay_ ? kCompared : static_cast<std::size_t>(result_.samples),
         .threads = options_.threads,
         .ranges = std::move(all),
         .params_of = [this](const auto& placement, const auto& of) { return params_of(placement, of); },
         .progress = options_.progress,
         .stop = options_.stop});
    if (done.values.empty()) return;
    placement_ = run::place(prepared_, options_.config);
    extremes_ = quantization::scan_weights(prepared_.model, placement_, options_.allow_nonfinite);
    for (std::size_t i = 0; i < done.scaled.size(); ++i) {
      const auto& [name, range, is_kept] = done.scaled[i];
      ranges[name] = range;
      const auto source = range_sources_.find(done.values[i].value);
      if (!is_kept) {
        range_sources_[name] = calibration::method_name(CalibrationMethod::minmax);
      } else if (source != range_sources_.end()) {
        range_sources_[name] = source->second;
      }
    }
    equalized_ = std::move(done.values);
  }

  void refine(calibration::Ranges& ranges) {
    const auto scope = profiler_.scope(run::kSensitivityStage);
    if (!options_.device.is_cpu())
      result_.notes.emplace_back("what rounding does to the results was measured on the CPU");
    const auto write = [&](const quantization::Placement& placement, const quantization::Params& params,
                           const std::filesystem::path& path) {
      onnx::Model model = prepared_.model;
      std::vector<std::string> said_later;
      quantization::insert(model, placement, params, options_.config, said_later);
      onnx::write_model(model, path, {options_.external_data_threshold});
    };
    auto refined = pipeline::refine(
        prepared_, placement_, runtime_, *source_,
        {.config = options_.config,
         .accuracy = options_.accuracy,
         .resources = options_.resources,
         .directory = work_->path(),
         .model = options_.model,
         .samples = result_.samples,
         .readable = replay_ ? kCompared : 0,
         .threads = options_.threads,
         .ranges = std::move(ranges),
         .other_ranges = std::move(other_ranges_),
         .wide_ranges = std::move(wide_ranges_),
         .params_of = [this](const auto& placement, const auto& of) { return params_of(placement, of); },
         .write = write,
         .progress = options_.progress,
         .stop = options_.stop});
    placement_ = std::move(refined.placement);
    ranges = std::move(refined.ranges);
    for (const auto& mark : placement_.marks) {
      if (!mark.is_constant && !mark.shares)
        range_sources_.try_emplace(mark.value, calibration::method_name(range_options_.method.method));
    }
    for (const auto& choice : refined.result.methods) range_sources_[choice.value] = choice.method;
    result_.accuracy = std::move(refined.result);
    result_.accuracy->equalized = std::move(equalized_);
    worst_left_ = std::move(refined.worst);
  }

  bool needs_histograms() const { return reports_ || quantization::needs_histograms(range_options_); }

  nlohmann::json run_identity(const onnx::Model& model) const {
    return run::run_identity({.model = model,
                              .output = options_.output,
                              .calibration_data = options_.calibration_data,
                              .config = options_.config,
                              .histograms = needs_histograms(),
                              .votes = quantization::needs_votes(options_.config, range_options_),
                              .allow_nonfinite = options_.allow_nonfinite,
                              .max_samples = options_.max_samples,
                              .batch_size = options_.batch_size,
                              .threads = options_.threads,
                              .spool_bfloat16 = options_.resources.spool_bfloat16,
                              .device = options_.statistics ? DeviceConfig() : options_.device,
                              .finetune = pipeline::tuning_identity(options_)});
  }

  void insert_pairs(const calibration::Ranges& ranges) {
    const auto scope = profiler_.scope(Step::quantization_static);
    note_saturation(options_.config, result_.notes);
    params_ = quantization::compute_all(prepared_.model, placement_, ranges, extremes_, options_.config, result_.notes);
    count_nodes(prepared_.model, placement_, params_, result_);
    record_activations(placement_, params_, range_sources_, result_);
    quantized_ = prepared_.model;
    quantization::insert(quantized_, placement_, params_, options_.config, result_.notes);
  }

  void finetune(FinetuneConfig config, bool asked_for) {
    if (!options_.device.is_cpu() && !report_.device) report_.device = run::RunReport::Device{options_.device, {}, {}};
    trim_heap();  // of what measuring and calibration have left
    const auto types = run::static_types(prepared_.types, prepared_.model, runtime_, *source_);
    if (config.only_heaviest_layer) config.nodes = {heaviest_layer(types)};
    const auto memory =
        tuning::share_memory(run::budget_of(options_.resources, work_->path()).memory, asked_for, prepared_.model,
                             types, quantized_, source_->file_count(), config, thread_count(options_.threads));
    const auto spool = run::make_spool(options_.resources, memory.spool, work_->path());
    result_.layers = tuning::finetune(prepared_.model, prepared_.types, quantized_, runtime_, *source_,
                                      {.config = config,
                                       .device = options_.device,
                                       .threads = options_.threads,
                                       .spool = *spool,
                                       .state_seconds = state_seconds(),
                                       .memory = memory,
                                       .directory = work_->path(),
                                       .progress = options_.progress,
                                       .solved = [this](const auto& layer) { put_down(layer); },
                                       .activity = activity(),
                                       .stop = options_.stop},
                                      result_.notes);
  }

  bool wants_tuned_weights() const {
    std::vector<std::string> said_later;
    return result_.accuracy && pipeline::may_tune(options_) &&
           pipeline::wants_tuned_weights(*result_.accuracy, result_.samples) &&
           !tuning::find_layers(prepared_.model, quantized_, pipeline::automatic_gptq(options_.finetune), said_later)
                .empty();
  }

  void tune_weights() {
    const auto scope = profiler_.scope(Step::fast_finetune);
    const auto nearest = quantized_;
    const auto config = pipeline::automatic_gptq(options_.finetune);
    try {
      finetune(config, false);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::resource) throw;
      throw resource_error(fmt::format("tuning weights, which make much of the error: {}", e.what()),
                           fmt::format("{}, and --finetune nearest leaves it out", e.hint()));
    }
    pipeline::judge_tuned_weights(
        prepared_, {placement_, params_, quantized_, config, result_.samples}, runtime_, *source_,
        {options_.resources, work_->path(), options_.threads, options_.progress, options_.stop}, *result_.accuracy);
    if (result_.accuracy->tuned->kept) return;
    quantized_ = nearest;
    result_.layers.clear();
  }

  void say_what_is_left() {
    auto note = pipeline::what_is_left(*result_.accuracy, options_.accuracy, worst_left_);
    if (!note.empty()) result_.notes.push_back(std::move(note));
  }

  // Timing what devices do costs a little: only for those who want to see it.
  profile::DeviceActivity* activity() { return reports_ ? &profiler_.device() : nullptr; }

  std::optional<double> state_seconds() const {
    const auto& resources = options_.resources;
    return resources.resume ? std::make_optional(resources.checkpoint_seconds) : std::nullopt;
  }

  void put_down(const LayerTuning& layer) {
    profiler_.checkpoint(fmt::format("{}: {} {:.4g} -> {:.4g}", profile::step_name(Step::fast_finetune), layer.name,
                                     layer.error_before, layer.error_after));
    if (options_.layer_tuned) options_.layer_tuned(layer);
  }

  std::string heaviest_layer(const graph::ValueTypes& types) {
    const auto costs = tuning::layer_costs(prepared_.model, types, options_.finetune, source_->file_count(),
                                           thread_count(options_.threads));
    const auto& cost = tuning::heaviest(costs);
    result_.notes.push_back(
        fmt::format("only the heaviest layer was tuned: '{}', which takes about {} beside its samples", cost.name,
                    format_size(cost.bytes)));
    return cost.name;
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    quantized_.set_producer("detent", DETENT_VERSION);
    if (options_.stop.stop_requested()) throw interrupted();
    const auto written = onnx::write_model(quantized_, options_.output, {options_.external_data_threshold});
    result_.model_bytes_after = written.model_bytes + written.data_bytes;
  }

  run::ReportRequest report_request() const {
    return {options_.report, options_.trace, options_.model,   options_.command,
            result_.notes,   &result_,       options_.threads, work_->scratch()};
  }

  // A few samples tell which layers lose most.
  void compare_models() {
    if (!pipeline::has_samples(options_)) return;
    if (samples() != nullptr) samples()->rewind();
    const auto scope = profiler_.scope(run::kComparisonStage);
    report_.comparison = compare({.float_model = options_.model,
                                  .quantized_model = options_.output,
                                  .calibration_data = options_.calibration_data.value_or(""),
                                  .samples = samples(),
                                  .max_samples = kCompared,
                                  .batch_size = options_.batch_size,
                                  .threads = options_.threads,
                                  .runtime = options_.runtime,
                                  .progress = {},
                                  .stop = options_.stop});
  }

  const QuantizeOptions& options_;
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  std::optional<run::RunDirectory> work_;
  exec::Runtime runtime_;
  bool reports_;
  quantization::RangeOptions range_options_;
  QuantizeResult result_;
  run::RunReport report_;

  Fingerprint identity_;
  run::Prepared prepared_;
  onnx::Model quantized_;
  quantization::Placement placement_;
  quantization::WeightExtremes extremes_;
  quantization::Params params_;
  std::map<std::string, std::string> range_sources_;
  std::vector<EqualizedValue> equalized_;
  std::vector<FallbackNode> worst_left_;
  std::vector<std::pair<CalibrationMethod, calibration::Ranges>> other_ranges_;
  calibration::Ranges wide_ranges_;
  std::optional<data::ReplayStream> replay_;
  std::unique_ptr<data::SampleSource> source_;
};

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options) {
  pipeline::check_options(options);
  if (shim::Ranks::join().size() > 1) {
    throw usage_error("quantize is the work of one process, and MPI started several",
                      "calibrate with mpirun, then quantize --statistics without it");
  }
  run::check_apart(written_files(options), options.calibration_data, options.statistics);
  run::check_report_paths(options.report, options.trace);
  shim::require_cuda(options.device.cuda);
  return Run(options).run();
}

}  // namespace detent
