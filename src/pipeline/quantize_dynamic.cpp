#include "pipeline/quantize_dynamic.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "config/identity.h"
#include "config/wanted.h"
#include "exec/session.h"
#include "graph/rewrite.h"
#include "graph/transformer.h"
#include "onnx/write.h"
#include "pipeline/deployed.h"
#include "profile/profiler.h"
#include "quantization/dynamic.h"
#include "quantization/emit/dynamic.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/samples.h"

namespace detent::pipeline {
namespace {

using profile::Step;

constexpr std::int64_t kOpsetOfDynamicQuantizeLinear = 11;

class DynamicRun {
 public:
  explicit DynamicRun(const QuantizeOptions& options)
      : options_(options),
        run_profiler_(options.profiler, options.profile),
        profiler_(run_profiler_.profiler()),
        runtime_(options.runtime, options.resources.sample_time_limit) {}

  QuantizeResult run() {
    prepare();
    quantize();
    write();
    if (options_.bench) time_models(options_, inputs_, runtime_, profiler_, result_);
    if (config::has_samples(options_)) compare_models(options_, work_->path(), profiler_, result_);
    if (result_.accuracy) result_.samples = result_.accuracy->samples;
    work_->finish();
    run_profiler_.finish();
    result_.stages = run_profiler_.stage_reports();
    result_.peak_memory = profiler_.peak_memory();
    return std::move(result_);
  }

 private:
  void prepare() {
    const auto scope = profiler_.scope(Step::pre_process);
    auto original = onnx::read_model(options_.model);
    profiler_.checkpoint(Step::model_loaded);
    run::check_output(options_.output, original, options_.external_data_suffix);
    result_.model_bytes_before = run::size_on_disk(original);
    result_.transformer = graph::find_transformer(original);
    work_.emplace(options_.resources, run::run_identity({.model = original,
                                                         .output = options_.output,
                                                         .calibration_data = options_.calibration_data,
                                                         .options = config::run_identity(options_)}));
    append(work_->notes());
    prepared_ = run::prepare(std::move(original), options_.config, runtime_, work_->scratch(), profiler_);
    append(prepared_.notes);
    auto& model = prepared_.model;
    if (model.opset() < kOpsetOfDynamicQuantizeLinear) append(graph::upgrade_opset(model, prepared_.types));
    inputs_ = run::input_specs(model);
    if (!options_.prepared_output) return;
    run::check_output(*options_.prepared_output, model);
    onnx::write_model(model, *options_.prepared_output, {options_.external_data_threshold});
  }

  void quantize() {
    const auto scope = profiler_.scope(Step::quantization_dynamic);
    auto placement = quantization::place_dynamic(prepared_.model, options_.config);
    append(placement.notes);
    result_.nodes_quantized = placement.nodes.size();
    result_.nodes_in_float = placement.in_float;
    quantization::Proposals proposals;
    proposals.constants = quantization::scan_weights(prepared_.model, placement.weights, options_.allow_nonfinite);
    append(placement.weights.notes);
    const auto assignment = quantization::assign(prepared_.model, placement.weights, proposals, options_.config);
    append(assignment.notes);
    emitted_ = quantization::emit_dynamic(std::move(prepared_.model), placement, assignment.values);
    result_.notes.emplace_back(
        "an activation has one scale for its whole batch, so what shares a batch with large values loses precision; "
        "--weights-only with 8 bits does not depend on the batch");
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    run::write_output(emitted_, options_, result_);
  }

  void append(const std::vector<std::string>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  const QuantizeOptions& options_;
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  exec::Runtime runtime_;
  std::optional<run::RunDirectory> work_;
  run::Prepared prepared_;
  std::vector<data::InputSpec> inputs_;
  onnx::Model emitted_;
  QuantizeResult result_;
};

}  // namespace

QuantizeResult quantize_dynamic(const QuantizeOptions& options) { return DynamicRun(options).run(); }

}  // namespace detent::pipeline
