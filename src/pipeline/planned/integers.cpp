// What the stages of integers with scales from samples would do and take.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "calibration/device_observers.h"
#include "config/derived.h"
#include "data/sample.h"
#include "graph/traits.h"
#include "pipeline/check_model.h"
#include "pipeline/planned/predictions.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/integers.h"
#include "pipeline/stages/open.h"
#include "planning/segments.h"
#include "quantization/emit/stored_weights.h"
#include "quantization/formats.h"
#include "quantization/placement/placement.h"
#include "remedies/weight_tuning.h"
#include "run/model/proposals.h"
#include "run/records/quantize_result.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/cuda_driver.h"
#include "solve/layers/device_memory.h"
#include "solve/sweep/cost.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::pipeline {
namespace {

// The share of the machine's peak that products reach, the more the larger they are for each thread (measured on
// ResNet-18 and ResNet-50 of two sizes each, RRDB and BERT: 0.22 of 14 million operations, 0.45 of 28, 0.61 to 0.72 of
// 150 and more); and a nanosecond for each observed element and thread.
constexpr double kReached = 0.72, kHalfReached = 2e7;  // operations of a product
// The same of summing up and solving, of operations that solve::LayerCost counts: GPTQ saves some of these (measured on
// both ResNets and BERT: 0.7 to 1.6), and iterations do much beside products (0.3).
constexpr double kReachedByGptq = 1.0, kReachedByIterating = 0.3;
constexpr double kObserved = 1e-9;
// Bytes of the statistics of a value as ranks send them (measured on ResNet-18).
constexpr double kRangeSent = 95, kHistogramSent = 5100;

const run::Prepared& prepared_of(const Run& run) { return run.integers->draft.prepared; }
const quantization::Placement& placement_of(const Run& run) { return run.integers->draft.assignment.placement; }

const onnx::Model& model_of(const Run& run) {
  if (run.integers) return prepared_of(run).model;
  if (run.blocks) return run.blocks->draft().model;
  return run.recipe.result == config::kCache ? run.model : run.prepared.model;
}

bool measures(const Run& run) { return config::may_measure_accuracy(run.options) && run.recipe.has_samples; }

// All samples once through the model.
double seconds_of_inference(const Forecast& forecast) {
  const double reached = kReached * forecast.machine.flops_per_second;
  const double small = kHalfReached * static_cast<double>(forecast.circumstances.threads);  // for each product
  const double flops = static_cast<double>(forecast.plan.flops) + small * static_cast<double>(forecast.products);
  return flops / reached * static_cast<double>(forecast.plan.samples);
}

// Inferences of all samples that measuring takes. Runs of the whole model are: all samples for the extremes of
// channels; the float model and about five drafts on those that are judged; groups of values, of gates and of weights
// on a few; the values that are scaled, together. Trials of single values take one run for twelve. See
// remedies::Evaluator. A run in which values are rounded takes about twice as long as an inference (measured: 1.9
// to 2.4 times).
double inferences_of_measuring(const Plan& plan, std::size_t values) {
  constexpr double kTrial = 2.2, kNear = 12;
  constexpr double kTrialsOfRanges = 100;  // of single values, beside one for each value
  const auto samples = static_cast<double>(std::max<std::size_t>(plan.samples, 1));
  const double judged = std::max(samples / 4, std::min(samples, 8.0));
  const double few = std::clamp(samples / 16, 1.0, 4.0), fewer = std::clamp(samples / 32, 1.0, 4.0);
  const double near = (static_cast<double>(values) * fewer + kTrialsOfRanges * few) / kNear;
  const double together = 2 * std::clamp(samples / 8, 1.0, 4.0);
  return kTrial * (samples + 6 * judged + 10 * few + 8 * std::min(judged, 2.0) + together + near) / samples;
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

// Without a budget that was given, the run leaves nothing out.
void add_stage(const Run& run, std::string what, std::uint64_t bytes, Plan& plan) {
  if (bytes == 0) return;
  const bool left_out = run.options.resources.memory_budget && bytes > plan.memory_budget;
  if (left_out) what += ": left out";
  plan.stages.push_back({std::move(what), bytes});
  if (!left_out) plan.peak_memory = std::max(plan.peak_memory, bytes);
}

std::uint64_t within_budget(const Run& run, std::uint64_t bytes) {
  return std::min(bytes, run.options.resources.memory_budget.value_or(bytes));
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
void add_sweep(const Run& run, const Forecast& forecast, Plan& plan) {
  const auto budget = run::budget_of(run.options.resources, run.work->path());
  plan.memory_budget = budget.memory;
  plan.disk_budget = budget.disk;
  const auto& model = prepared_of(run).model;
  const auto sweep = planning::plan_sweep(model, *forecast.types, placement_of(run).to_observe(),
                                          forecast.circumstances, std::max<std::size_t>(plan.samples, 1), budget);
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

// Of tuning in several ranks. Measured on ResNet-50: three fifths of summing up and solving are done by each of them.
void add_share_of_tuning(const std::vector<solve::LayerCost>& costs, const FinetuneConfig& config,
                         const Forecast& forecast, Plan& plan) {
  constexpr double kByEach = 0.6, kRowsOfPiece = 64;
  double bytes = 0, flops = 0, pieces = 0;
  for (const auto& cost : costs) {
    bytes += solve::exchanged_bytes(cost, config, std::max<std::size_t>(plan.samples, 1));
    flops += cost.flops;
    pieces += cost.flops * std::ceil(static_cast<double>(cost.geometry.outputs) / kRowsOfPiece);
  }
  plan.shares.push_back({.what = "both models on the samples",
                         .shared_seconds = 2 * seconds_of_inference(forecast),
                         .parts = static_cast<double>(plan.samples)});
  plan.shares.push_back({.what = "sums and solving",
                         .shared_seconds = (1 - kByEach) * plan.finetune.seconds,
                         .own_seconds = kByEach * plan.finetune.seconds,
                         .parts = flops > 0 ? pieces / flops : 1,
                         .exchanged_bytes = bytes});
}

void add_finetune(const onnx::Model& model, const FinetuneConfig& config, const DeviceConfig& device,
                  const Forecast& forecast, Plan& plan) {
  const auto costs = solve::layer_costs(model, *forecast.types, config, std::max<std::size_t>(plan.samples, 1),
                                        forecast.circumstances.threads);
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
  const bool iterates = config.rounding != WeightSolver::gptq;
  const double rate = (iterates ? kReachedByIterating : kReachedByGptq) * forecast.machine.flops_per_second;
  if (rate > 0) {
    plan.finetune.seconds = flops / rate;
    add_share_of_tuning(costs, config, forecast, plan);
  }
  for (const auto& cost : costs) {
    if (device.is_cpu()) break;
    const auto need = solve::device_need(cost.geometry, cost.input_shape, cost.streamed, config, device.precision,
                                         device.cuda.size());
    plan.device.layers.push_back({cost.name, cost.streamed, need.peak()});
  }
}

// Integers of the constants that get quantized, the others as they are, and the graph with its pairs.
void add_output(const run::Prepared& prepared, const quantization::Placement& placement, const QuantConfig& config,
                Forecast& forecast) {
  const auto& model = prepared.model;
  std::map<std::string, const quantization::Mark*> quantized;
  for (const auto& mark : placement.marks) {
    if (mark.is_constant) quantized[mark.value] = &mark;
  }
  std::uint64_t bytes = kPairBytes * placement.marks.size();
  for (const auto& tensor : model.graph.initializers) {
    const auto found = quantized.find(tensor.name);
    const std::uint64_t size = tensor.data.size();
    if (found == quantized.end()) {
      bytes += size;
      if (tensor.type == onnx::DataType::float32) forecast.float_bytes += size;
      continue;
    }
    const auto source = prepared.transposed.find(tensor.name);
    if (source != prepared.transposed.end() && quantized.contains(source->second)) continue;  // stored once
    const auto type = quantization::type_of(*found->second, config);
    bytes += size / (32 / static_cast<std::uint64_t>(onnx::bits_of(quantization::data_type(type))));
  }
  forecast.plan.output_bytes = bytes + graph_bytes(model);
}

// Products that compute in float and whose weights will be of 8 bits, if measuring speaks for it.
std::size_t take_off_products(const Run& run, const run::Prepared& prepared, const quantization::Placement& placement,
                              Plan& plan) {
  if (!config::tries_stored_weights(run.options)) return 0;
  std::set<std::string> in_float = quantization::products_to_store(prepared.model, run.options.config);
  for (std::size_t n = 0; n < placement.selected.size(); ++n) {
    const auto& id = prepared.model.graph.nodes[n].id();
    if (placement.selected[n] || prepared.keeps_in_float(id)) in_float.erase(id);
  }
  std::set<std::string> weights;
  for (const auto& node : prepared.model.graph.nodes) {
    if (in_float.contains(node.id())) weights.insert(node.inputs()[graph::kWeightInput]);
  }
  for (const auto& mark : placement.marks) weights.erase(mark.value);  // counted as integers for other readers
  plan.output_bytes -= saved_by_8_bits(prepared.model, weights);
  return in_float.size();
}

// Weights of recurrent layers are of 8 bits in either form, if measuring speaks for it.
void take_off_recurrent(const Run& run, const onnx::Model& model, Plan& plan) {
  if (!config::tries_stored_weights(run.options) || !config::tries_recurrent(run.options.config)) return;
  std::set<std::string> weights;
  for (const auto n : quantization::layers_to_store(model, run.options.config)) {
    const auto& inputs = model.graph.nodes[n].inputs();
    weights.insert({inputs[1], inputs[2]});
  }
  plan.output_bytes -= saved_by_8_bits(model, weights);
}

// What the run will have in integers if measuring changes nothing; gates get there only by measuring.
void add_nodes(const Run& run, Plan& plan) {
  const auto& options = run.options;
  plan.nodes_may_change = measures(run) && options.accuracy.sensitivity != SensitivityMode::report;
  plan.nodes_with_gates = run::count_nodes(prepared_of(run).model, placement_of(run)).quantized;
  auto prepared = prepared_of(run);
  prepared.integer_gates.clear();
  const auto counts = run::count_nodes(prepared.model, run::place_qdq_pairs(prepared, options.config));
  plan.nodes_quantized = counts.quantized;
  plan.nodes_in_float = counts.in_float;
}

}  // namespace

void open_without_output(Run& run, Forecast&) {
  auto resources = run.options.resources;
  resources.resume = false;
  run.work.emplace(resources, nlohmann::json{{"output", nullptr}, {"rank", nullptr}});
  if (run.recipe.result != config::kBlocks) run.load_runtime();
}

void look_at_samples(Run& run, Forecast& forecast) {
  if (!run.recipe.has_samples || forecast.plan.samples > 0) return;
  const auto specs = run::input_specs(model_of(run));
  const auto source = run.open_samples(specs);
  forecast.plan.samples = source->sample_count();
  auto first = run::first_sample(*source, specs);
  forecast.shapes = std::move(first.shapes);
  forecast.sample_bytes = first.bytes;
  for (const auto& [name, shape] : forecast.shapes)
    forecast.plan.inputs.emplace_back(name, fmt::format("{}", fmt::join(shape, "x")));
}

graph::ValueTypes types_of_samples(const Run& run, const run::Prepared& prepared, const Forecast& forecast) {
  if (forecast.shapes.empty()) return prepared.types;
  return exec::infer_value_types(*run.runtime, prepared.model, forecast.shapes);
}

void predict_calibration(Run& run, Forecast& forecast) {
  look_at_samples(run, forecast);
  const auto& options = run.options;
  auto& plan = forecast.plan;
  const auto& prepared = prepared_of(run);
  const auto& placement = placement_of(run);
  forecast.circumstances = {placement.to_observe().size(), quantization::needs_histograms(run::range_options(options)),
                            thread_count(options.threads), static_cast<std::size_t>(options.workers),
                            forecast.sample_bytes};
  plan.tensors_observed = forecast.circumstances.observed;
  add_device_memory(options, forecast.circumstances, plan);
  auto types = types_of_samples(run, prepared, forecast);
  const auto cost = planning::calibration_cost(prepared.model, types, placement.to_observe(), forecast.circumstances);
  if (!cost) {
    run.result.notes.emplace_back(forecast.shapes.empty()
                                      ? "memory and work depend on dynamic axes: give --calibration-data to know them"
                                      : "memory and work are not known: some shapes depend on values");
    return;
  }
  forecast.types = std::move(types);
  forecast.products = std::count_if(prepared.model.graph.nodes.begin(), prepared.model.graph.nodes.end(),
                                    [](const auto& node) { return graph::is_product(node); });
  add_cost(*cost, plan);
  add_sweep(run, forecast, plan);
  plan.stages = {{"calibration", plan.peak_memory}};
  forecast.memory =
      remedies::stage_memory(prepared, *forecast.types, placement, options,
                             {forecast.sample_bytes, std::max<std::size_t>(plan.samples, 1)}, plan.memory_budget);
  forecast.machine = profile::measure_machine(static_cast<int>(forecast.circumstances.threads), run.work->path());
  if (forecast.machine.flops_per_second <= 0) return;
  const double observing = kObserved * static_cast<double>(plan.observed_elements) / forecast.machine.threads;
  plan.calibration_seconds = seconds_of_inference(forecast) + observing * static_cast<double>(plan.samples);
  const double sent = forecast.circumstances.histograms ? kHistogramSent : kRangeSent;
  plan.shares.push_back({.what = "calibration",
                         .shared_seconds = plan.calibration_seconds,
                         .parts = static_cast<double>(plan.samples),
                         .gathered_bytes = sent * static_cast<double>(plan.tensors_observed)});
}

void predict_measuring(Run& run, Forecast& forecast) {
  if (!forecast.types) return;
  auto& plan = forecast.plan;
  add_stage(run, "measuring accuracy", forecast.memory.measuring, plan);
  if (!measures(run)) return;
  plan.measuring_inferences = inferences_of_measuring(plan, placement_of(run).marks.size());
  if (forecast.machine.flops_per_second <= 0) return;
  plan.measuring_seconds = plan.measuring_inferences * seconds_of_inference(forecast);
  plan.shares.push_back({.what = "measuring accuracy",
                         .shared_seconds = plan.measuring_seconds,
                         .parts = static_cast<double>(placement_of(run).marks.size())});
}

void predict_integers(Run& run, Forecast& forecast) {
  const auto& options = run.options;
  auto& plan = forecast.plan;
  add_nodes(run, plan);
  add_output(prepared_of(run), placement_of(run), options.config, forecast);
  take_off_recurrent(run, prepared_of(run).model, plan);
  const auto products = take_off_products(run, prepared_of(run), placement_of(run), plan);
  plan.nodes_quantized += products;
  plan.nodes_with_gates += products;
  plan.nodes_in_float -= products;
  plan.finetune.only_if_needed = config::may_tune(options);
  if (!forecast.types) return;
  add_stage(run, "tuning weights", forecast.memory.tuning, plan);
  if (!tunes(options.finetune.rounding) && !plan.finetune.only_if_needed) return;
  const auto config = plan.finetune.only_if_needed ? remedies::automatic_gptq(options.finetune) : options.finetune;
  add_finetune(prepared_of(run).model, config, options.device, forecast, plan);
  if (!options.device.is_cpu()) run.result.notes.emplace_back("times are those of the CPU");
}

void predict_proof(Run& run, Forecast& forecast) {
  if (!run.integers) return;
  // Under a budget sessions of the proof are opened so that they take less.
  add_stage(run, "proof of the written file", within_budget(run, forecast.memory.proving), forecast.plan);
  run.note(target_notes(run.options, prepared_of(run).model, placement_of(run), *run.runtime).lines);
}

// Left out under a budget that has no room for it.
void predict_choosing_again(Run& run, Forecast& forecast) {
  add_stage(run, "layers computed otherwise", within_budget(run, forecast.memory.searching), forecast.plan);
}

void predict_timing(Run& run, Forecast& forecast) {
  if (forecast.types) add_stage(run, "latency", forecast.memory.timing, forecast.plan);
}

}  // namespace detent::pipeline
