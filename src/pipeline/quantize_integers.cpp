#include "pipeline/quantize_integers.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/cpu.h"
#include "base/error.h"
#include "base/parallel.h"
#include "calibration/methods.h"
#include "calibration/statistics_file.h"
#include "config/derived.h"
#include "config/identity.h"
#include "config/presets.h"
#include "config/targets.h"
#include "config/validate.h"
#include "data/sample.h"
#include "exec/session.h"
#include "graph/rewrite.h"
#include "graph/transformer.h"
#include "onnx/write.h"
#include "pipeline/check_model.h"
#include "pipeline/computed_otherwise.h"
#include "pipeline/deployed.h"
#include "pipeline/integers_in_16_bits.h"
#include "profile/meters.h"
#include "profile/profiler.h"
#include "quantization/assignment.h"
#include "quantization/emit/qdq.h"
#include "quantization/formats.h"
#include "quantization/ranges.h"
#include "remedies/remedies.h"
#include "remedies/weight_tuning.h"
#include "remedies/workload.h"
#include "run/calibration_device.h"
#include "run/choose_by_speed.h"
#include "run/consumer_functions.h"
#include "run/explain.h"
#include "run/finish_integers.h"
#include "run/latency_change.h"
#include "run/low_floats.h"
#include "run/model_fingerprint.h"
#include "run/outputs.h"
#include "run/parted_joins.h"
#include "run/prepare.h"
#include "run/proof.h"
#include "run/proposals.h"
#include "run/quantize_result.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/run_report.h"
#include "run/samples.h"
#include "run/sweep_setup.h"
#include "run/unseen_bodies.h"
#include "store/open_device.h"

namespace detent::pipeline {
namespace {

using profile::Step;

constexpr std::size_t kCompared = 4;  // samples that both models run on for a report
constexpr double kOtherwise = 3;      // dB that the deployed model may lose

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// One run: the stages in their order, and what they hand on.
class Run {
 public:
  explicit Run(const QuantizeOptions& options)
      : options_(options),
        run_profiler_(options.profiler, options.profile),
        profiler_(run_profiler_.profiler()),
        runtime_(options.runtime, options.resources.sample_time_limit),
        reports_(options.report || options.trace),
        range_options_(run::range_options(options)) {}

  QuantizeResult run() {
    pre_process();
    calibrate();
    if (source_) make_lab();
    if (measures_accuracy()) improve();
    const Improved improved{draft_, result_};
    complete();
    write();
    if (is_computed_otherwise()) choose_again(improved);
    if (options_.bench && !lowers())
      time_models(options_, run::input_specs(draft_.prepared.model), runtime_, profiler_, result_, sample_seconds_);
    if (reports_) compare_models();
    work_->finish();
    run_profiler_.finish();
    run::write_reports(report_, run::request_of(options_, result_, work_->scratch()), run_profiler_);
    result_.stages = run_profiler_.stage_reports();
    result_.peak_memory = profiler_.peak_memory();
    return std::move(result_);
  }

 private:
  struct Improved {
    remedies::Draft draft;
    QuantizeResult result;
  };

  void pre_process() {
    const auto scope = profiler_.scope(Step::pre_process);
    auto original = onnx::read_model(options_.model);
    profiler_.checkpoint(Step::model_loaded);
    run::check_output(options_.output, original, options_.external_data_suffix);
    if (options_.prepared_output) run::check_output(*options_.prepared_output, original);
    result_.model_bytes_before = run::size_on_disk(original);
    keep_floats(original);
    if (options_.statistics) identity_ = run::fingerprint_of(original);
    work_.emplace(options_.resources, run_identity(original));
    profiler_.watch_directory(work_->path());
    const graph::UnfoldLimits limits{options_.resources.memory_budget, options_.stop};
    result_.transformer = graph::find_transformer(original, limits);
    // What cannot be is better known before hours of work than after them.
    if (options_.device.gds == GdsMode::on && tunes(options_.finetune.rounding))
      store::open_cuda_storage(options_.device.cuda.front(), GdsMode::on, work_->path());
    append(result_.notes, work_->notes());
    auto& prepared = draft_.prepared;
    prepared = run::prepare(std::move(original), options_.config, runtime_, work_->scratch(), profiler_, limits);
    auto& placement = draft_.assignment.placement;
    placement = run::place(prepared, options_.config);
    draft_.proposals.constants = quantization::scan_weights(prepared.model, placement, options_.allow_nonfinite);
    append(result_.notes, prepared.notes);
    append(result_.notes, placement.notes);
    if (config::has_samples(options_)) {
      source_ = run::open_samples(options_.calibration_data.value_or(""), samples(), run::input_specs(prepared.model),
                                  {.max_samples = options_.max_samples,
                                   .batch_size = options_.batch_size,
                                   .file_memory = run::memory_for_samples(options_.resources)});
    }
    if (config::chooses_by_speed(options_)) choose_by_speed();
    if (options_.prepared_output) {
      run::check_output(*options_.prepared_output, prepared.model);
      onnx::write_model(prepared.model, *options_.prepared_output, {options_.external_data_threshold});
    }
    if (reports_ && source_) {
      const planning::Circumstances circumstances{placement.to_observe().size(), true, thread_count(options_.threads),
                                                  static_cast<std::size_t>(options_.workers), 0};
      run::describe_layers(prepared, placement, runtime_, *source_, circumstances, report_);
    }
  }

  // A model of 16-bit floats keeps them, and gets scales of their type.
  void keep_floats(const onnx::Model& original) {
    auto kept =
        run::kept_floats(original, options_.config, runtime_, {options_.resources.memory_budget, options_.stop});
    if (!kept) return;
    options_.config.float_type = kept->type;
    config::validate(options_);
    in_float32_ = std::move(kept->in_float32);
    result_.notes.emplace_back(
        "the model computes in 16-bit floats, and so does what is not quantized; --float 32 gives a model whose "
        "products the runtime's CPU computes on integers");
  }

  void choose_by_speed() {
    auto& prepared = draft_.prepared;
    auto& placement = draft_.assignment.placement;
    auto choice = run::choose_by_speed(prepared, placement, options_, runtime_, source_.get(), *work_);
    prepared.in_float.insert(choice.in_float.begin(), choice.in_float.end());
    placement = run::place(prepared, options_.config);
    if (placement.marks.empty() && tunes(options_.finetune.rounding))
      throw usage_error("--finetune: this machine runs all products faster in float, so that none is quantized",
                        "give --optimize-for size");
    append(result_.notes, choice.notes);
    result_.faster_in_float = std::move(choice.in_float);
  }

  SampleStream* samples() const { return options_.samples; }

  void calibrate() {
    const auto scope = profiler_.scope(Step::calibration);
    report_.collect_start = profiler_.now();
    auto statistics =
        options_.statistics ? run::saved_statistics(options_, identity_, source_.get()) : new_statistics();
    result_.samples = statistics.samples;
    if (source_) append(result_.notes, source_->notes());
    if (!options_.statistics) report_.samples_run = statistics.samples;
    const auto& prepared = draft_.prepared;
    auto constants = std::move(draft_.proposals.constants);
    draft_.proposals = run::propose(prepared, draft_.assignment.placement, statistics, options_, runtime_);
    draft_.proposals.constants = std::move(constants);
    auto& placement = draft_.assignment.placement;
    if (!draft_.prepared.integer_gates.empty()) {
      // What was observed serves both forms. Gates are in integers only where that is measured to do no harm.
      quantization::complete_shared(placement, draft_.proposals.ranges);
      draft_.prepared.integer_gates.clear();
      placement = run::place(prepared, options_.config);
    }
    auto left = run::leave_unseen_bodies(draft_.prepared, placement, draft_.proposals.ranges);
    append(left, run::part_joins(draft_.prepared, placement, statistics, draft_.proposals, options_));
    if (!left.empty()) {
      quantization::complete_shared(placement, draft_.proposals.ranges);
      quantization::complete_shared(placement, draft_.proposals.wide);
      placement = run::place(prepared, options_.config);
    }
    append(result_.notes, left);
    draft_.assign(std::move(placement), options_.config);
    if (reports_) report_.statistics = std::move(statistics);
  }

  calibration::Statistics new_statistics() {
    const auto& placement = draft_.assignment.placement;
    run::CollectOptions collect{.histograms = needs_histograms(),
                                .votes = quantization::needs_votes(options_.config, range_options_),
                                .allow_nonfinite = options_.allow_nonfinite,
                                .workers = options_.workers,
                                .keep_result = tunes(options_.finetune.rounding) || config::may_tune(options_)};
    report_.recording.directory = work_->scratch();
    if (reports_) collect.recording = &report_.recording;
    run::DeviceCalibration device(options_.device, placement.to_observe().size(), collect.histograms, work_->scratch(),
                                  activity());
    device.lend(collect);
    const double start = profiler_.now();
    auto [statistics, notes] = run::collect_within(
        {runtime_, options_.resources, work_->path(), options_.threads, options_.progress, options_.stop}, *work_,
        draft_.prepared, placement, *source_, collect);
    if (statistics.samples > 0) sample_seconds_ = (profiler_.now() - start) / static_cast<double>(statistics.samples);
    append(result_.notes, notes);
    append(result_.notes, device.notes());
    if (device.use() != nullptr) report_.device = run::RunReport::Device{options_.device, *device.use(), {}};
    return statistics;
  }

  bool measures_accuracy() {
    if (!config::may_measure_accuracy(options_)) return false;
    if (draft_.assignment.placement.marks.empty() && recurrent_layers() == 0) return false;  // the float model
    if (!source_) result_.notes.emplace_back("accuracy was not measured: there are no samples");
    return source_ != nullptr;
  }

  void make_lab() {
    evaluator_.emplace(remedies::TrialEnv{.options = options_,
                                          .model = draft_.prepared.model,
                                          .runtime = runtime_,
                                          .source = *source_,
                                          .profiler = profiler_,
                                          .directory = work_->path(),
                                          .weights = work_->scratch(),
                                          .samples = result_.samples,
                                          .layer_tuned = [this](const auto& layer) { checkpoint(layer); },
                                          .activity = activity()});
  }

  void improve() {
    const auto scope = profiler_.scope(run::kSensitivityStage);
    if (!options_.device.is_cpu()) result_.notes.emplace_back("accuracy was measured on the CPU");
    remedies::improve(draft_, *evaluator_);
    append(result_.notes, draft_.notes);
    draft_.notes.clear();
    measured_ = true;
  }

  bool needs_histograms() const { return reports_ || quantization::needs_histograms(range_options_); }

  nlohmann::json run_identity(const onnx::Model& model) const {
    return run::run_identity({.model = model,
                              .output = options_.output,
                              .calibration_data = options_.calibration_data,
                              .options = config::run_identity(options_),
                              .histograms = needs_histograms(),
                              .votes = quantization::needs_votes(options_.config, range_options_)});
  }

  // From what was chosen to the model as it will be written.
  void complete() {
    emit();
    tune_weights();
    if (measured_) report_accuracy();
    if (!lowers()) count_integers(draft_.emitted->model);
    const bool equalized = result_.accuracy && !result_.accuracy->equalized.empty();
    run::write_applied({equalized, !result_.layers.empty()}, draft_.emitted->model);
    append(result_.notes, run::finish_integers(draft_.prepared, options_, draft_.emitted->model));
    result_.nodes_quantized += recurrent_layers();
  }

  void emit() {
    const auto scope = profiler_.scope(Step::quantization_static);
    append(result_.notes, run::notes_for_this_machine(options_.config));
    append(result_.notes, draft_.assignment.notes);
    run::record(draft_.prepared.model, draft_.assignment, result_);
    draft_.emitted =
        quantization::emit_qdq(draft_.prepared.model, draft_.assignment, options_.config, draft_.prepared.types);
    append(result_.notes, draft_.emitted->notes);
  }

  // As asked, or where measuring speaks for it.
  void tune_weights() {
    if (tunes(options_.finetune.rounding)) {
      const auto scope = profiler_.scope(Step::fast_finetune);
      auto tuned = remedies::tune_weights(draft_, *evaluator_, options_.finetune, true);
      draft_.emitted->model = std::move(tuned.model);
      draft_.layers = std::move(tuned.layers);
      append(result_.notes, tuned.notes);
      if (measured_) remedies::check_target(draft_, *evaluator_);
    } else if (measured_ && config::may_tune(options_)) {
      remedies::improve_emitted(draft_, *evaluator_);
      append(result_.notes, draft_.notes);
    }
    if (!options_.device.is_cpu() && !report_.device && !draft_.layers.empty())
      report_.device = run::RunReport::Device{options_.device, {}, {}};
    if (!options_.device.is_cpu() && options_.statistics && draft_.layers.empty())
      result_.notes.emplace_back("nothing ran on the device: statistics were given, and nothing is fine-tuned");
    result_.layers = draft_.layers;
  }

  void report_accuracy() {
    auto note = remedies::what_is_left(draft_, options_);
    if (!note.empty()) result_.notes.push_back(std::move(note));
    result_.accuracy = std::move(draft_.result);
  }

  // Timing what devices do costs a little: only for those who want to see it.
  profile::DeviceActivity* activity() { return reports_ ? &profiler_.device() : nullptr; }

  void checkpoint(const LayerTuning& layer) {
    profiler_.checkpoint(fmt::format("{}: {} {:.4g} -> {:.4g}", profile::step_name(Step::fast_finetune), layer.name,
                                     layer.error_before, layer.error_after));
    if (options_.layer_tuned) options_.layer_tuned(layer);
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    if (lowers()) return lower();
    run::Prover prove(options_, &runtime_);
    // Small floats have no trials to choose by, but what is written can be told of.
    const bool tells = measured_ || (evaluator_ && is_float(options_.config.activation_type));
    const auto judged = tells ? std::optional(evaluator_->judging_samples()) : std::nullopt;
    if (judged) prove.judge(evaluator_->source(), judged->skipped, judged->count);
    TargetNotes told;
    // What is told of the integers is what the consumer makes of them.
    if (!config::target(options_.config).is_ort_cpu)
      prove.require([&](const auto& f) { told = target_notes(options_, f, runtime_, shapes_of_first_sample()); });
    run::write_output(draft_.emitted->model, options_, &prove, result_);
    if (prove.fidelity()) take_deployed(*prove.fidelity());
    append(result_.notes, told.lines);
    if (result_.accuracy && told.integer_macs) result_.accuracy->integer_macs = *told.integer_macs;
  }

  // Where ONNX Runtime's CPU makes floats of the integers first, it multiplies no integers.
  void count_integers(const onnx::Model& model) {
    if (!result_.accuracy || !result_.accuracy->integer_macs || !config::target(options_.config).is_ort_cpu) return;
    auto& share = result_.accuracy->integer_macs;
    share = integers_on_cpu(options_, model, runtime_, shapes_of_first_sample());
    if (share)
      *share += remedies::recurrent_macs(draft_.prepared, graph::Index(draft_.prepared.model),
                                         evaluator_->static_types(draft_), options_.config);
  }

  Shapes shapes_of_first_sample() {
    if (!measured_) return {};
    return run::first_sample(*source_, run::input_specs(draft_.emitted->model)).shapes;
  }

  // What is told of accuracy is what the written file does.
  void take_deployed(const run::DeployedFidelity& found) {
    auto& accuracy = result_.accuracy ? *result_.accuracy : result_.accuracy.emplace();
    lost_db_ = measured_ ? accuracy.sqnr_db - found.sqnr_db : 0;
    run::tell(found, accuracy);
  }

  std::size_t recurrent_layers() const { return run::recurrent_layers(draft_.prepared, options_.config).size(); }

  // Recurrent layers were chosen as deployed, and no trial has them.
  bool is_computed_otherwise() const {
    return lost_db_ > kOtherwise && config::target(options_.config).is_ort_cpu && recurrent_layers() == 0;
  }

  // Layers that the runtime computes otherwise than their integers say stay in float, where that helps and is allowed.
  void choose_again(const Improved& improved) {
    const auto scope = profiler_.scope(run::kSensitivityStage);
    const double first_db = result_.accuracy->sqnr_db;
    const auto nodes = computed_otherwise(options_, draft_.prepared.model);
    const auto told =
        fmt::format("as deployed the worst output has {:.1f} dB, where rounding each value gives {:.1f}: {}", first_db,
                    first_db + lost_db_, words_for(nodes));
    if (nodes.empty() || !remedies::acts(options_)) {
      result_.notes.push_back(told);
      return;
    }
    auto first = std::exchange(result_, improved.result);
    draft_ = improved.draft;
    remedies::leave_in_float(draft_, *evaluator_, nodes);
    complete();
    const double second_db = evaluator_->deployed(draft_.emitted->model).sqnr_db;
    if (second_db > first_db) {
      result_.notes.push_back(told + ", so that stays in float");
      return write();
    }
    result_ = std::move(first);
    result_.notes.push_back(fmt::format("{}; in float that gives {:.1f} dB", told, second_db));
  }

  bool lowers() const { return config::writes_16_bits(options_.config); }

  void lower() {
    auto again = options_;
    again.samples = samples();
    if (again.samples != nullptr) again.samples->rewind();
    write_in_16_bits(draft_.emitted->model, {again, in_float32_, work_->scratch()}, result_);
    count_integers(onnx::read_model(options_.output));
    if (options_.bench)
      result_.notes.emplace_back("latency was not measured: the runtime's CPU has no kernels of 16-bit floats");
  }

  // A few samples tell which layers lose most.
  void compare_models() {
    if (!config::has_samples(options_)) return;
    if (samples() != nullptr) samples()->rewind();
    const auto scope = profiler_.scope(run::kComparisonStage);
    report_.comparison = compare(comparison_of(options_, kCompared));
  }

  QuantizeOptions options_;
  std::unordered_set<std::string> in_float32_;  // nodes of a model of 16-bit floats
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  std::optional<run::RunDirectory> work_;
  exec::Runtime runtime_;
  bool reports_;
  quantization::RangeOptions range_options_;
  QuantizeResult result_;
  run::RunReport report_;

  Fingerprint identity_;
  std::unique_ptr<data::SampleSource> source_;
  remedies::Draft draft_;
  std::optional<remedies::Evaluator> evaluator_;
  bool measured_ = false;      // what rounding does to the results
  double sample_seconds_ = 0;  // of calibration
  double lost_db_ = 0;         // by the deployed model beside what was measured to choose it
};

}  // namespace

QuantizeResult quantize_integers(const QuantizeOptions& options) { return Run(options).run(); }

}  // namespace detent::pipeline
