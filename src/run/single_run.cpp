#include "run/single_run.h"

#include <nlohmann/json.hpp>

#include "config/identity.h"
#include "graph/transformer.h"
#include "onnx/write.h"
#include "run/outputs.h"

namespace detent::run {

SingleRun::SingleRun(const QuantizeOptions& options)
    : options_(options),
      run_profiler_(options.profiler, options.profile),
      profiler_(run_profiler_.profiler()),
      runtime_(options.runtime, options.resources.sample_time_limit) {}

onnx::Model SingleRun::open() {
  auto model = onnx::read_model(options_.model);
  profiler_.checkpoint(profile::Step::model_loaded);
  check_outputs(options_, model);
  result_.model_bytes_before = size_on_disk(model);
  work_.emplace(options_.resources, run_identity({.model = model,
                                                  .output = options_.output,
                                                  .calibration_data = options_.calibration_data,
                                                  .options = config::run_identity(options_)}));
  profiler_.watch_directory(work_->path());
  append(work_->notes());
  return model;
}

void SingleRun::prepare(onnx::Model model) {
  const graph::UnfoldLimits limits{options_.resources.memory_budget, options_.stop};
  result_.transformer = graph::find_transformer(model, limits);
  prepared_ = run::prepare(std::move(model), options_.config, runtime_, work_->scratch(), profiler_, limits);
}

void SingleRun::write_prepared() const {
  if (!options_.prepared_output) return;
  check_output(*options_.prepared_output, prepared_.model);
  onnx::write_model(prepared_.model, *options_.prepared_output, {options_.external_data_threshold});
}

void SingleRun::write(onnx::Model& model, std::string excuse, std::function<void(const std::filesystem::path&)> check) {
  Prover prove(options_, &runtime_);
  prove.excuse(excuse.empty() ? reason_against_proof(options_.config) : std::move(excuse));
  prove.require(std::move(check));
  write_output(model, options_, &prove, result_);
}

QuantizeResult SingleRun::finish() {
  work_->finish();
  run_profiler_.finish();
  write_reports(report_, request_of(options_, result_, work_->scratch()), run_profiler_);
  result_.stages = run_profiler_.stage_reports();
  result_.peak_memory = profiler_.peak_memory();
  return std::move(result_);
}

void SingleRun::append(const std::vector<std::string>& notes) {
  result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
}

}  // namespace detent::run
