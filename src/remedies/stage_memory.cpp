#include "remedies/stage_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "base/error.h"
#include "base/parallel.h"
#include "config/derived.h"
#include "config/targets.h"
#include "graph/index.h"
#include "planning/calibration.h"
#include "planning/limits.h"
#include "planning/parts.h"
#include "planning/segments.h"
#include "remedies/fake_quantizer.h"
#include "remedies/trials.h"
#include "remedies/weight_tuning.h"
#include "run/samples/content_order.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "solve/sweep/memory.h"

namespace detent::remedies {
namespace {

// Measured: heap in pieces, sums of pairs.
constexpr std::uint64_t kTrials = std::uint64_t{12} << 20;

// Without the statistics.
planning::Circumstances of_trials(const QuantizeOptions& options, const quantization::Placement& placement,
                                  std::uint64_t sample_bytes) {
  return {placement.to_observe().size(), false, thread_count(options.threads), 1, sample_bytes};
}

// Of trials within the budget, in one piece or in segments; above the budget where they do not fit.
std::uint64_t measuring_memory(const onnx::Model& model, const graph::ValueTypes& types,
                               const quantization::Placement& placement, const QuantizeOptions& options,
                               planning::Circumstances circumstances, const SampleSizes& samples,
                               std::uint64_t budget) {
  circumstances.weights_stay = true;
  circumstances.beside =
      std::min(samples.bytes * samples.count, share_of_budget(options.resources, run::ContentOrderOptions().ahead)) +
      trial_memory(model, placement);
  const auto observed = placement.to_observe();
  const std::uint64_t in_one_piece =
      planning::calibration_cost(model, types, observed, circumstances).value().peak_memory();
  if (in_one_piece <= budget) return in_one_piece;
  planning::Budget limits;
  limits.memory = budget;
  limits.disk = options.resources.disk_budget.value_or(std::numeric_limits<std::uint64_t>::max() / 4);
  try {
    return planning::plan_sweep(model, types, observed, circumstances, samples.count, limits).memory;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::resource) throw;
    return in_one_piece;
  }
}

// The run as it stands after calibration, and a process beside it that runs one of the models. Measured on six models
// (docs/resources.md): what both have of the libraries counts once, and 10 MiB of the other process are its own.
std::uint64_t proving_memory(const planning::CalibrationCost& cost) {
  constexpr std::uint64_t kOfItsOwn = std::uint64_t{10} << 20;
  return 2 * cost.peak_memory() - planning::kProcess + kOfItsOwn;
}

// The run as it stands after tuning, which looks for the layers that the runtime computes otherwise than was measured,
// with both models beside.
std::uint64_t searching_memory(const planning::CalibrationCost& cost) {
  return 3 * cost.peak_memory() - 2 * planning::kProcess + kSearchBeside;
}

}  // namespace

void refuse_over_budget(const QuantizeOptions& options, const StageMemory& needed) {
  const auto budget = options.resources.memory_budget;
  if (!budget) return;
  if (tunes(options.finetune.rounding) && needed.tuning > *budget)
    throw planning::over_budget("fine-tuning", needed.tuning, *budget);
  if (options.accuracy.target && needed.measuring > *budget)
    throw planning::over_budget("measuring accuracy", needed.measuring, *budget);
}

std::uint64_t trial_memory(const onnx::Model& model, const quantization::Placement& placement) {
  const graph::Index index(model);
  std::uint64_t largest = 0, steps = 0;  // of rounded weights
  for (std::size_t n = 0; n < placement.selected.size(); ++n) {
    if (!placement.selected[n]) continue;
    for (const auto& input : model.graph.nodes[n].inputs()) {
      const int at = index.initializer(input);
      if (at == graph::kNone) continue;
      const std::uint64_t size = model.graph.initializers[static_cast<std::size_t>(at)].data.size();
      largest = std::max(largest, size);
      steps += size / sizeof(float);
    }
  }
  return kTrials + largest + std::min(steps, FakeQuantizer::kMostKept);
}

std::uint64_t share_of_budget(const Resources& resources, std::uint64_t without) {
  constexpr std::uint64_t kShare = 16;
  return resources.memory_budget ? std::min(without, *resources.memory_budget / kShare) : without;
}

StageMemory stage_memory(const run::Prepared& prepared, const graph::ValueTypes& types,
                         const quantization::Placement& placement, const QuantizeOptions& options,
                         const SampleSizes& samples, std::uint64_t budget) {
  StageMemory memory;
  const auto& model = prepared.model;
  const auto circumstances = of_trials(options, placement, samples.bytes);
  const auto cost = planning::calibration_cost(model, types, placement.to_observe(), circumstances);
  if (!cost) return memory;
  const bool measures = config::may_measure_accuracy(options) && config::has_samples(options);
  if (measures && !placement.marks.empty()) {
    memory.measuring = measuring_memory(model, types, placement, options, circumstances, samples, budget);
    // Whoever sets a target has assignments scored as deployed, in one piece.
    if (options.accuracy.target) memory.measuring = std::max(memory.measuring, cost->peak_memory());
    memory.proving = proving_memory(*cost);
    // See leave_inexact_in_float().
    if (config::target(options.config).is_ort_cpu && !config::writes_16_bits(options.config))
      memory.searching = searching_memory(*cost);
    if (config::may_tune(options))
      memory.tuning = solve::planned_memory(budget, false, model, types, placement.selected, samples.count,
                                            automatic_gptq(options.finetune), circumstances.threads);
  }
  if (tunes(options.finetune.rounding))
    memory.tuning = solve::planned_memory(budget, true, model, types, placement.selected, samples.count,
                                          options.finetune, circumstances.threads);
  if (options.bench && !config::writes_16_bits(options.config)) {
    memory.timing = cost->peak_memory() + planning::copied_weights(model);  // beside what calibration takes
  }
  return memory;
}

LeftOut keep_to_budget(const QuantizeOptions& options, const run::Prepared& prepared,
                       const quantization::Placement& placement, const exec::Runtime& runtime,
                       data::SampleSource& source) {
  LeftOut left;
  const auto budget = options.resources.memory_budget;
  if (!budget) return left;
  const auto first = run::first_sample(source, run::input_specs(prepared.model));
  const auto types = run::static_types(prepared.types, prepared.model, runtime, source);
  const auto needed = stage_memory(prepared, types, placement, options,
                                   {first.bytes, std::max<std::size_t>(source.sample_count(), 1)}, *budget);
  refuse_over_budget(options, needed);  // before any sample runs
  left.measuring = needed.measuring > *budget;
  left.tuning = !left.measuring && config::may_tune(options) && needed.tuning > *budget;
  left.storing = !left.measuring && config::tries_stored_weights(options) && needed.proving > *budget;
  left.timing = options.bench && needed.timing > *budget;
  if (left.measuring)
    left.notes.push_back(
        fmt::format("what roundings do to the results is not measured, and nothing is done about it: that would take "
                    "about {} of memory, and the budget is {}",
                    format_size(needed.measuring), format_size(*budget)));
  if (left.tuning)
    left.notes.push_back(
        fmt::format("weights are not tuned, whatever measuring finds: that would take about {} of "
                    "memory, and the budget is {}",
                    format_size(needed.tuning), format_size(*budget)));
  if (left.storing)
    left.notes.push_back(
        fmt::format("weights of products in float stay floats: to run the file without them would take about {} of "
                    "memory, and the budget is {}",
                    format_size(needed.proving), format_size(*budget)));
  if (left.timing)
    left.notes.push_back(
        fmt::format("latency is not measured: the float model as it is deployed would take about {} of "
                    "memory, and the budget is {}",
                    format_size(needed.timing), format_size(*budget)));
  return left;
}

}  // namespace detent::remedies
