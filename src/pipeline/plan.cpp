// What a run would do and take: its stages tell, before any sample runs.
#include "detent/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "config/derived.h"
#include "config/family.h"
#include "config/validate.h"
#include "onnx/model.h"
#include "pipeline/planned/predictions.h"
#include "pipeline/stages.h"
#include "run/deadline.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/model/automatic_target.h"
#include "run/samples/samples.h"

namespace detent {

bool PlannedDevice::fits() const noexcept {
  return calibration_counters <= budget &&
         std::all_of(layers.begin(), layers.end(), [&](const auto& layer) { return layer.bytes <= layer_budget(); });
}

std::uint64_t PlannedDevice::peak() const noexcept {
  std::uint64_t bytes = calibration_counters;
  for (const auto& layer : layers) bytes = std::max(bytes, layer.bytes);
  return bytes;
}

double PlannedShare::received_bytes(std::size_t ranks) const noexcept {
  const auto n = static_cast<double>(std::max<std::size_t>(ranks, 1));
  return exchanged_bytes * (n - 1) / n + gathered_bytes * (n - 1);
}

double PlannedShare::seconds(std::size_t ranks, double bits_per_second) const noexcept {
  const auto n = static_cast<double>(std::max<std::size_t>(ranks, 1));
  const double sent = exchanged_bytes * (n - 1) / n;  // before or after others send as much: the two take turns
  return shared_seconds / std::min(n, std::max(parts, 1.0)) + own_seconds +
         8 * (received_bytes(ranks) + sent) / bits_per_second;
}

namespace {

Plan plan_stages(const QuantizeOptions& options) {
  const auto recipe = pipeline::recipe_of(options, config::kPlan);
  run::RunProfiler silent(nullptr, std::nullopt);
  pipeline::Run run(recipe, {}, silent);
  pipeline::Forecast forecast;
  forecast.plan.memory_budget = run::memory_for_samples(options.resources);
  for (const auto& stage : pipeline::stages()) {
    if (stage.predict != nullptr && pipeline::has(stage, recipe)) stage.predict(run, forecast);
  }
  auto plan = std::move(forecast.plan);
  if (run.work) plan.work_bytes += profile::directory_size(run.work->path());
  if (run.result.transformer) plan.transformer = run.result.transformer;
  plan.notes = std::move(run.result.notes);
  if (recipe.result != config::kIntegers)
    plan.notes.emplace_back("memory and time are predicted for integers with scales from samples, not for this format");
  return plan;
}

// A float model as it is.
Plan plan_of_copy(const QuantizeOptions& options) {
  Plan copy;
  copy.output_bytes = run::size_on_disk(onnx::read_model(run::model_file(options.model)));
  return copy;
}

Plan plan_family(const QuantizeOptions& options) {
  Plan all;
  for (const auto* member : config::family_of(options)) {
    const auto of_member = config::options_of(*member, options);
    auto planned = member->format.empty() ? plan_of_copy(of_member) : plan(of_member);
    planned.name = member->name;
    if (planned.samples > 0) all.samples = planned.samples;
    if (!planned.inputs.empty()) all.inputs = planned.inputs;
    all.peak_memory = std::max(all.peak_memory, planned.peak_memory);
    all.memory_budget = std::max(all.memory_budget, planned.memory_budget);
    all.disk_budget = std::max(all.disk_budget, planned.disk_budget);
    all.work_bytes = std::max(all.work_bytes, planned.work_bytes);
    all.output_bytes += planned.output_bytes;
    all.family.push_back(std::move(planned));
  }
  return all;
}

}  // namespace

Plan plan(const QuantizeOptions& given) {
  auto options = given;
  run::name_target(options);
  if (config::searches_formats(options))
    throw usage_error(fmt::format("{} searches formats, and which it finds is not known before they are measured",
                                  options.max_latency ? "--max-latency" : "--max-size without --weights-only"),
                      "plan one format, as with --format int8; detent search --time-limit bounds the search");
  config::validate(options, config::kPlan);
  if (!options.family.empty()) return plan_family(options);
  options.model = run::model_file(options.model);
  return run::within_time(options, plan_stages);
}

}  // namespace detent
