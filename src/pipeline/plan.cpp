// What a run would do and take: everything that comes before the first inference.
#include "detent/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "calibration/device_observers.h"
#include "config/derived.h"
#include "config/family.h"
#include "config/validate.h"
#include "data/sample.h"
#include "exec/session.h"
#include "graph/transformer.h"
#include "onnx/model.h"
#include "pipeline/check_model.h"
#include "pipeline/plan_formats.h"
#include "planning/calibration.h"
#include "profile/machine.h"
#include "quantization/assignment.h"
#include "quantization/formats.h"
#include "quantization/placement/placement.h"
#include "quantization/ranges.h"
#include "remedies/stage_memory.h"
#include "remedies/weight_tuning.h"
#include "run/calibration_device.h"
#include "run/deadline.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/model/automatic_target.h"
#include "run/model/choose_by_speed.h"
#include "run/model/float_types_16_bit.h"
#include "run/model/prepare.h"
#include "run/model/proposals.h"
#include "run/records/quantize_result.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/cuda_driver.h"
#include "solve/layers/device_memory.h"
#include "solve/sweep/cost.h"
#include "solve/sweep/tuned_layer.h"

namespace detent {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

// Integers of the constants that get quantized, the others as they are, and the graph with its pairs.
std::uint64_t output_bytes(const onnx::Model& model, const quantization::Placement& placement,
                           const QuantConfig& config) {
  constexpr std::uint64_t kPair = 400;  // two nodes, a scale and a zero point
  std::uint64_t bytes = kPair * placement.marks.size();
  std::map<std::string, std::uint64_t> stored;
  for (const auto& tensor : model.graph.initializers) stored[tensor.name] = tensor.data.size();
  for (const auto& mark : placement.marks) {
    if (!mark.is_constant) continue;
    const auto type = quantization::type_of(mark, config);
    stored[mark.value] /= 32 / static_cast<std::uint64_t>(onnx::bits_of(quantization::data_type(type)));
  }
  for (const auto& [name, size] : stored) bytes += size;
  for (const auto& node : model.graph.nodes) bytes += 64 + node.name().size();
  return bytes;
}

void count_nodes(const onnx::Model& model, const quantization::Placement& placement, Plan& plan) {
  std::unordered_set<std::string> marked;
  for (const auto& mark : placement.marks) marked.insert(mark.value);
  const auto counts = run::count_nodes(model, placement, [&](const auto& value) { return marked.contains(value); });
  plan.nodes_quantized = counts.quantized;
  plan.nodes_in_float = counts.in_float;
}

// A guess: the share of the machine's peak that convolutions and products of middling size reach, and a nanosecond for
// each observed element and thread.
constexpr double kReached = 0.45;

// All samples once through the model.
double seconds_of_inference(const Plan& plan, const profile::MachinePeaks& machine) {
  return static_cast<double>(plan.flops) / (kReached * machine.flops_per_second) * static_cast<double>(plan.files);
}

double seconds_for(const Plan& plan, const profile::MachinePeaks& machine) {
  constexpr double kObserved = 1e-9;
  return seconds_of_inference(plan, machine) +
         kObserved * static_cast<double>(plan.observed_elements) / machine.threads * static_cast<double>(plan.files);
}

// Inferences of all samples that measuring takes. Runs of the whole model are: all samples for the extremes of
// channels; the float model and about five drafts on those that are judged; groups of values, of gates and of weights
// on a few; the values that are scaled, together. Trials of single values take one run for twelve. See
// remedies::Evaluator. A run in which values are rounded takes about twice as long as an inference (measured: 1.9
// to 2.4 times).
double inferences_of_measuring(const Plan& plan, std::size_t values) {
  constexpr double kTrial = 2.2, kNear = 12;
  constexpr double kTrialsOfRanges = 100;  // of single values, beside one for each value
  const auto samples = static_cast<double>(std::max<std::size_t>(plan.files, 1));
  const double judged = std::max(samples / 4, std::min(samples, 8.0));
  const double few = std::clamp(samples / 16, 1.0, 4.0), fewer = std::clamp(samples / 32, 1.0, 4.0);
  const double near = (static_cast<double>(values) * fewer + kTrialsOfRanges * few) / kNear;
  const double together = 2 * std::clamp(samples / 8, 1.0, 4.0);
  return kTrial * (samples + 6 * judged + 10 * few + 8 * std::min(judged, 2.0) + together + near) / samples;
}

void add_cost(const planning::CalibrationCost& cost, Plan& plan) {
  plan.macs = cost.work.macs;
  plan.flops = cost.work.flops;
  plan.observed_elements = cost.observed_elements;
  for (const auto& part : cost.memory) {
    if (part.bytes > 0) plan.memory.push_back({part.what, part.bytes});
  }
  plan.peak_memory = cost.peak_memory();
}

// How the model will be cut to keep to the budget.
void add_sweep(const run::Prepared& prepared, const quantization::Placement& placement, const graph::ValueTypes& types,
               const planning::Circumstances& circumstances, const planning::Budget& budget, Plan& plan) {
  plan.memory_budget = budget.memory;
  plan.disk_budget = budget.disk;
  const auto& model = prepared.model;
  const auto sweep = planning::plan_sweep(model, types, placement.to_observe(), circumstances,
                                          std::max<std::size_t>(plan.files, 1), budget);
  std::vector<int> ends = sweep.cuts;
  ends.push_back(static_cast<int>(model.graph.nodes.size()));
  int begin = 0;
  for (const int end : ends) {
    plan.segments.push_back({model.graph.nodes[static_cast<std::size_t>(begin)].id(),
                             model.graph.nodes[static_cast<std::size_t>(end - 1)].id(),
                             static_cast<std::size_t>(end - begin)});
    begin = end;
  }
  if (sweep.cuts.empty()) return;
  plan.waiting_bytes = sweep.spool_bytes;
  plan.waiting_on_disk = sweep.disk;
  plan.work_bytes += sweep.disk;
  plan.peak_memory = sweep.memory;
  plan.memory = {{"largest segment", sweep.memory - std::min({sweep.memory, sweep.spool_bytes, sweep.spool.records})},
                 {"tensors spooled between segments", std::min(sweep.spool_bytes, sweep.spool.records)}};
}

void add_finetune(const onnx::Model& model, const graph::ValueTypes& types, const FinetuneConfig& config,
                  const DeviceConfig& device, std::size_t threads, double rate, Plan& plan) {
  const auto costs = solve::layer_costs(model, types, config, std::max<std::size_t>(plan.files, 1), threads);
  if (costs.empty() && plan.finetune.only_if_needed) return;
  double flops = 0;
  for (const auto& cost : costs) {
    flops += cost.flops;
    plan.finetune.streamed += cost.streamed ? 1 : 0;
  }
  const auto& heaviest = solve::heaviest(costs);
  plan.finetune.layers = costs.size();
  plan.finetune.heaviest = heaviest.name;
  plan.finetune.heaviest_bytes = heaviest.bytes;
  if (rate > 0) plan.finetune.seconds = flops / rate;
  for (const auto& cost : costs) {
    if (device.is_cpu()) break;
    const auto need = solve::device_need(cost.geometry, cost.input_shape, cost.streamed, config, device.precision,
                                         device.cuda.size());
    plan.device.layers.push_back({cost.name, cost.streamed, need.peak()});
  }
}

// A budget that is given needs no device to be known.
std::uint64_t device_budget(const DeviceConfig& device) {
  if (device.memory_budget) return *device.memory_budget;
  try {
    return shim::cuda_budget(device.cuda);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::device) throw;
    throw device_error(e.what(), "give --set device-memory-budget, since a plan for a known budget needs no device");
  }
}

void add_device_memory(const QuantizeOptions& options, const planning::Circumstances& circumstances, Plan& plan) {
  if (options.device.is_cpu()) return;
  plan.device.devices = options.device.cuda.size();
  plan.device.budget = device_budget(options.device);
  if (!options.statistics) {
    plan.device.calibration_counters =
        calibration::DeviceObservers::counter_bytes(circumstances.observed, circumstances.histograms);
  }
}

void add_times(const profile::MachinePeaks& machine, Plan& plan) {
  if (machine.flops_per_second <= 0) return;
  plan.calibration_seconds = seconds_for(plan, machine);
  plan.measuring_seconds = plan.measuring_inferences * seconds_of_inference(plan, machine);
}

// With what the target will make of the model.
std::vector<std::string> notes_of(const run::Prepared& prepared, const quantization::Placement& placement,
                                  const QuantizeOptions& options, const exec::Runtime& runtime,
                                  std::vector<std::string> of_choice) {
  auto notes = prepared.notes;
  notes.insert(notes.end(), of_choice.begin(), of_choice.end());
  for (auto& line : pipeline::target_notes(options, prepared.model, placement, runtime).lines)
    notes.push_back(std::move(line));
  return notes;
}

}  // namespace

bool PlannedDevice::fits() const noexcept {
  return calibration_counters <= budget &&
         std::all_of(layers.begin(), layers.end(), [&](const auto& layer) { return layer.bytes <= layer_budget(); });
}

std::uint64_t PlannedDevice::peak() const noexcept {
  std::uint64_t bytes = calibration_counters;
  for (const auto& layer : layers) bytes = std::max(bytes, layer.bytes);
  return bytes;
}

namespace {

// As the run does before it calibrates: what this machine runs faster in float stays so.
void choose_by_speed(const QuantizeOptions& options, const exec::Runtime& runtime, data::SampleSource* source,
                     const TempDir& work, run::Prepared& prepared, quantization::Placement& placement, Plan& plan) {
  if (!config::chooses_by_speed(options)) return;
  auto choice = run::choose_by_speed(prepared, placement, options, runtime, source, work.path(), work.path());
  for (auto& note : choice.notes) plan.notes.push_back(std::move(note));
}

// What the run will have in integers if measuring changes nothing; gates get there only by measuring.
void count_nodes(run::Prepared prepared, const QuantizeOptions& options, Plan& plan) {
  plan.nodes_may_change = config::may_measure_accuracy(options) && config::has_samples(options) &&
                          options.accuracy.sensitivity != SensitivityMode::report;
  count_nodes(prepared.model, run::place_qdq_pairs(prepared, options.config), plan);
  plan.nodes_with_gates = plan.nodes_quantized;
  prepared.integer_gates.clear();
  count_nodes(prepared.model, run::place_qdq_pairs(prepared, options.config), plan);
}

// Without a budget that was given, the run leaves nothing out.
void add_stages(const remedies::StageMemory& memory, bool has_budget, Plan& plan) {
  plan.stages = {{"calibration", plan.peak_memory}};
  const std::pair<const char*, std::uint64_t> more[] = {
      {"measuring accuracy", memory.measuring}, {"tuning weights", memory.tuning}, {"latency", memory.timing}};
  for (const auto& [what, bytes] : more) {
    if (bytes == 0) continue;
    const bool left_out = has_budget && bytes > plan.memory_budget;
    plan.stages.push_back({left_out ? fmt::format("{}: left out", what) : what, bytes});
    if (!left_out) plan.peak_memory = std::max(plan.peak_memory, bytes);
  }
}

Plan plan_within_time(const QuantizeOptions& options) {
  const quantization::RangeOptions ranges{options.method, options.overrides, 1};
  Plan result;
  const TempDir work(options.resources.work_dir.value_or(""));
  profile::Profiler silent;
  auto original = onnx::read_model(run::model_file(options.model));
  const graph::UnfoldLimits limits{options.resources.memory_budget, options.stop};
  result.transformer = graph::find_transformer(original, limits);
  const exec::Runtime runtime(options.runtime, options.resources.sample_time_limit);
  if (const auto own = run::with_kept_floats(original, options, runtime)) return plan_within_time(*own);
  auto prepared = run::prepare(std::move(original), options.config, runtime, work.path(), silent, limits);
  const auto specs = run::input_specs(prepared.model);
  const auto source = config::has_samples(options) ? run::open_samples(options, specs) : nullptr;
  auto placement = run::place_qdq_pairs(prepared, options.config);
  choose_by_speed(options, runtime, source.get(), work, prepared, placement, result);
  count_nodes(prepared, options, result);
  result.tensors_observed = placement.to_observe().size();
  result.work_bytes = profile::directory_size(work.path());
  result.output_bytes = output_bytes(prepared.model, placement, options.config);
  result.notes = notes_of(prepared, placement, options, runtime, std::move(result.notes));

  run::FirstSample first;
  planning::Circumstances circumstances{result.tensors_observed, quantization::needs_histograms(ranges),
                                        thread_count(options.threads), static_cast<std::size_t>(options.workers), 0};
  if (source) {
    result.files = source->file_count();
    first = run::first_sample(*source, specs);
    circumstances.sample_bytes = first.bytes;
  }
  add_device_memory(options, circumstances, result);
  const auto& shapes = first.shapes;
  for (const auto& [name, shape] : shapes) result.inputs.emplace_back(name, shape_text(shape));
  const auto types = shapes.empty() ? prepared.types : exec::infer_value_types(runtime, prepared.model, shapes);
  const auto cost = planning::calibration_cost(prepared.model, types, placement.to_observe(), circumstances);
  if (!cost) {
    result.notes.emplace_back(shapes.empty()
                                  ? "memory and work depend on dynamic axes: give --calibration-data to know them"
                                  : "memory and work are not known: some shapes depend on values");
    return result;
  }
  add_cost(*cost, result);
  add_sweep(prepared, placement, types, circumstances, run::budget_of(options.resources, work.path()), result);
  const auto stages = remedies::stage_memory(
      prepared, types, placement, options, {first.bytes, std::max<std::size_t>(result.files, 1)}, result.memory_budget);
  remedies::refuse_over_budget(options, stages);
  add_stages(stages, options.resources.memory_budget.has_value(), result);
  const auto machine = profile::measure_machine(static_cast<int>(circumstances.threads), work.path());
  if (config::may_measure_accuracy(options) && config::has_samples(options))
    result.measuring_inferences = inferences_of_measuring(result, placement.marks.size());
  result.finetune.only_if_needed = config::may_tune(options);
  if (tunes(options.finetune.rounding) || result.finetune.only_if_needed) {
    const auto config = result.finetune.only_if_needed ? remedies::automatic_gptq(options.finetune) : options.finetune;
    add_finetune(prepared.model, types, config, options.device, circumstances.threads,
                 kReached * machine.flops_per_second, result);
    if (!options.device.is_cpu()) result.notes.emplace_back("times are those of the CPU");
  }
  add_times(machine, result);
  return result;
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
    if (planned.files > 0) all.files = planned.files;
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

// What follows from measuring, or has no plan.
void refuse_unplanned(const QuantizeOptions& options) {
  if (config::searches_formats(options))
    throw usage_error(fmt::format("{} searches formats, and which it finds is not known before they are measured",
                                  options.max_latency ? "--max-latency" : "--max-size without --weights-only"),
                      "plan one format, as with --format int8; detent search --time-limit bounds the search");
  const auto result = config::result_of(options);
  if (result == config::kMixed)
    throw usage_error("--node-formats: there is no plan for several formats in one model",
                      "plan them one by one, as with --format int8 and --format q4");
  if (result == config::kCache)
    throw usage_error("--kv-cache: there is no plan for a run that changes the cache alone",
                      "leave it out, or plan it beside --weights-only");
}

}  // namespace

Plan plan(const QuantizeOptions& options) {
  if (auto named = run::with_named_target(options)) return plan(*named);
  refuse_unplanned(options);
  config::validate(options, config::kPlan);
  if (!options.family.empty()) return plan_family(options);
  if (pipeline::is_of_format(options)) return run::within_time(options, pipeline::plan_of_format);
  return run::within_time(options, plan_within_time);
}

}  // namespace detent
