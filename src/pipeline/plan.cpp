// What a run would do and take: its stages tell, before any sample runs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "calibration/device_observers.h"
#include "config/enum_names.h"
#include "config/formats.h"
#include "config/presets.h"
#include "config/validate.h"
#include "data/sample.h"
#include "detent/plan.h"
#include "graph/execution.h"
#include "graph/patterns.h"
#include "graph/traits.h"
#include "graph/transformer.h"
#include "onnx/model.h"
#include "pipeline/check.h"
#include "pipeline/stages.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/floats.h"
#include "pipeline/stages/formats.h"
#include "pipeline/stages/integers.h"
#include "pipeline/stages/open_and_deploy.h"
#include "planning/segments.h"
#include "quantization/emit/dynamic.h"
#include "quantization/floats/float_placement.h"
#include "quantization/formats.h"
#include "quantization/placement/placement.h"
#include "remedies/weight_tuning.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/model/format_choice.h"
#include "run/model/proposals.h"
#include "run/model/target_runtime.h"
#include "run/records/run_report.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/cuda_driver.h"
#include "solve/layers/layer_solver.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/tuned_layer.h"

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
  plan.nodes_quantized = run.result.nodes_quantized;
  plan.nodes_in_float = run.result.nodes_in_float;
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
  return run::within_time(options, plan_stages, run::hint_to_resume(options.resources));
}

}  // namespace detent

namespace detent::pipeline {

// What the stages of integers with scales from samples would do and take.

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

// Inferences of all samples that measuring takes. Runs of the whole model are: up to 64 samples for the extremes of
// channels; the float model and about five drafts on those that are judged; groups of values, of gates and of weights
// on a few; scaled values together. Trials of single values take one run for twelve. See remedies::Evaluator. A run in
// which values are rounded takes about twice as long as an inference (measured: 1.9 to 2.4 times).
double inferences_of_measuring(const Plan& plan, std::size_t values) {
  constexpr double kTrial = 2.2, kNear = 12;
  constexpr double kTrialsOfRanges = 100;  // of single values, beside one for each value
  const auto samples = static_cast<double>(std::max<std::size_t>(plan.samples, 1));
  const double judged = std::max(std::min(samples / 4, 32.0), std::min(samples, 8.0));
  const double few = std::clamp(samples / 16, 1.0, 4.0), fewer = std::clamp(samples / 32, 1.0, 4.0);
  const double near = (static_cast<double>(values) * fewer + kTrialsOfRanges * few) / kNear;
  const double together = 2 * std::clamp(samples / 8, 1.0, 4.0);
  return kTrial * (std::min(samples, 64.0) + 6 * judged + 10 * few + 8 * std::min(judged, 2.0) + together + near) /
         samples;
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
void add_stage(const Run& run, std::string what, std::uint64_t bytes, Plan& plan, bool only_if_needed = false) {
  if (bytes == 0) return;
  const bool left_out = run.options.resources.memory_budget && bytes > plan.memory_budget;
  if (left_out) what += ": left out";
  plan.stages.push_back({std::move(what), bytes});
  if (!left_out && !only_if_needed) plan.peak_memory = std::max(plan.peak_memory, bytes);
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
  const bool iterates = config.solver != WeightSolver::gptq;
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
    const auto axis = static_cast<std::size_t>(found->second->granularity.axis);
    // Scales of the channels, and of the bias that is added to them; zero points of both.
    if (!found->second->granularity.is_tensor() && axis < tensor.dims.size())
      bytes += 13 * static_cast<std::uint64_t>(tensor.dims[axis]);
  }
  forecast.plan.output_bytes = bytes + graph_bytes(model);
}

// Products that compute in float and whose weights will be of 8 bits, if measuring speaks for it.
std::size_t take_off_products(const Run& run, const run::Prepared& prepared, const quantization::Placement& placement,
                              Plan& plan) {
  if (!config::tries_stored_weights(run.options)) return 0;
  auto in_float = quantization::products_to_store(prepared.model, run.options.config, prepared.transposed);
  for (std::size_t n = 0; n < placement.selected.size(); ++n) {
    const auto& id = prepared.model.graph.nodes[n].id();
    if (placement.selected[n] || prepared.keeps_in_float(id)) in_float.erase(id);
  }
  in_float = quantization::products_in_float(prepared.model, in_float, prepared.transposed);
  auto weights = quantization::weights_of(prepared.model, in_float);
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
void add_nodes(Run& run, Plan& plan) {
  const auto& options = run.options;
  plan.nodes_may_change = measures(run) && options.accuracy.sensitivity != SensitivityMode::report;
  auto placement = placement_of(run);
  run::count_nodes(prepared_of(run).model, placement);
  plan.nodes_with_gates = placement.quantized;
  auto prepared = prepared_of(run);
  prepared.integer_gates.clear();
  placement = run::place_qdq_pairs(prepared, options.config);
  run::count_nodes(prepared.model, placement);
  run.result.nodes_quantized = placement.quantized;
  run.result.nodes_in_float = placement.in_float;
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
  run.result.nodes_quantized += products;
  plan.nodes_with_gates += products;
  run.result.nodes_in_float -= products;
  plan.finetune.only_if_needed = config::may_tune(options);
  if (!forecast.types) return;
  add_stage(run, "tuning weights", forecast.memory.tuning, plan, plan.finetune.only_if_needed);
  if (!tunes(options.finetune.solver) && !plan.finetune.only_if_needed) return;
  const auto config = plan.finetune.only_if_needed ? remedies::automatic_gptq(options.finetune) : options.finetune;
  add_finetune(prepared_of(run).model, config, options.device, forecast, plan);
  plan.work_bytes += solve::planned_files(plan.memory_budget, forecast.memory.tuning, !plan.finetune.only_if_needed,
                                          prepared_of(run).model, *forecast.types, placement_of(run).selected,
                                          std::max<std::size_t>(plan.samples, 1), config);
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
  add_stage(run, "layers computed differently", within_budget(run, forecast.memory.searching), forecast.plan, true);
}

void predict_timing(Run& run, Forecast& forecast) {
  if (forecast.types) add_stage(run, "latency", forecast.memory.timing, forecast.plan);
}

// What the stages of all other formats would make.

namespace {

// Integers, scales, and zero points where they are stored.
std::uint64_t stored_bytes(const quantization::BlockTensor& tensor) {
  const auto values = static_cast<std::uint64_t>(tensor.rows * tensor.columns);
  const auto blocks = static_cast<std::uint64_t>(tensor.format.blocks_of(tensor.rows) * tensor.columns);
  const std::uint64_t scale = tensor.format.scales == ScaleType::as_weight ? *onnx::byte_count(tensor.type, 1) : 1;
  const auto bits = static_cast<std::uint64_t>(tensor.format.bits);
  return values * bits / 8 + blocks * scale + (tensor.format.symmetric ? 0 : blocks * bits / 8);
}

// Of 32 bits of a weight. Blocks: a scale of 32 bits for each 32 weights.
std::uint64_t bits_as(config::NodeFormat format) {
  if (format == config::NodeFormat::fp32) return 32;
  const int bits = config::block_bits(format);
  return bits == 0 ? 8 : static_cast<std::uint64_t>(bits) + 1;
}

// Of the nodes that get integers with scales from samples.
std::uint64_t pair_bytes(const Run& run, const run::NodesByFormat& nodes) {
  if (nodes.fixed.empty()) return 0;
  auto config = run.options.config;
  for (const auto* others : {&nodes.in_float, &nodes.blocks, &nodes.dynamic})
    config.exclude_nodes.insert(config.exclude_nodes.end(), others->begin(), others->end());
  return kPairBytes * run::place_qdq_pairs(run.prepared, config).marks.size();
}

}  // namespace

std::uint64_t graph_bytes(const onnx::Model& model) {
  constexpr std::uint64_t kFields = 4, kAttributeBytes = 20;
  std::uint64_t bytes = 0;
  for (const auto& node : model.graph.nodes) {
    bytes += kFields + node.name().size() + node.op_type().size() + kAttributeBytes * node.attributes().size();
    for (const auto& value : node.inputs()) bytes += kFields + value.size();
    for (const auto& value : node.outputs()) bytes += kFields + value.size();
  }
  return bytes;
}

std::uint64_t bytes_as_it_is(const onnx::Model& model) { return graph_bytes(model) + graph::constant_bytes(model); }

std::uint64_t saved_by_8_bits(const onnx::Model& model, const std::set<std::string>& constants) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) {
    if (!constants.contains(tensor.name) || tensor.dims.empty()) continue;
    const auto channels = static_cast<std::uint64_t>(std::max(tensor.dims.front(), tensor.dims.back()));
    const auto added = kPairBytes + sizeof(float) * channels;  // a scale each, a Cast and a Mul
    bytes += tensor.data.size() / 4 * 3 - std::min(tensor.data.size() / 4 * 3, added);
  }
  return bytes;
}

void predict_choice_of_bits(Run&, Forecast& forecast) { forecast.plan.nodes_may_change = true; }

void predict_blocks(Run& run, Forecast& forecast) {
  const auto& model = run.blocks->draft().model;
  const auto& placement = run.blocks->draft().placement;
  auto& plan = forecast.plan;
  std::uint64_t rest = graph::constant_bytes(model), stored = 0;
  for (const auto& tensor : placement.tensors) {
    const std::uint64_t whole = model.graph.initializers[tensor.initializer].data.size();
    stored += stored_bytes(tensor);
    if (!tensor.stays) rest -= std::min(whole, rest);
  }
  forecast.float_bytes = rest;  // nearly all of it
  plan.output_bytes = graph_bytes(model) + stored + rest;
  if (run.options.kv_cache.type != KvCacheType::keep) predict_cache(run, forecast);
}

void predict_form(Run& run, Forecast& forecast) {
  const auto& model = run.prepared.model;
  const auto& form = form_of(run);
  const auto placement = form.place(run);
  run::record(placement, run.result);
  forecast.plan.output_bytes = bytes_as_it_is(model);
  if (!form.has_integers) return;
  std::set<std::string> quantized;
  for (const auto& mark : placement.marks) quantized.insert(mark.value);
  for (const auto& node : model.graph.nodes) {
    if (placement.stored.contains(node.id())) quantized.insert(node.inputs().begin() + 1, node.inputs().end());
  }
  forecast.plan.output_bytes -= saved_by_8_bits(model, quantized);
}

void predict_cache(Run& run, Forecast& forecast) {
  const auto& model = run.blocks ? run.blocks->draft().model : run.model;
  (void)run::quantizable_caches(model, run.options.kv_cache.type);  // throws where the cache cannot be quantized
  run.result.notes.emplace_back("memory and time of the samples for the cache's scales are not counted");
  if (run.blocks) return;
  forecast.plan.transformer = graph::find_transformer(model, graph::ValueTypes());
  forecast.plan.output_bytes = bytes_as_it_is(model);
}

void predict_mixture(Run& run, Forecast& forecast) {
  const auto& prepared = run.prepared;
  auto& plan = forecast.plan;
  const auto possible = run::possible_formats(prepared, run.options.config);
  const auto formats = run::given_formats(prepared, possible, run.options.node_formats);
  std::map<std::string_view, std::uint64_t> bits;  // of constants; those of several formats are stored for each
  for (std::size_t n = 0; n < formats.size(); ++n) {
    if (formats[n] != config::NodeFormat::fp32) ++run.result.nodes_quantized;
    if (formats[n] == config::NodeFormat::fp32 && !possible[n].empty()) ++run.result.nodes_in_float;
    for (const auto& input : prepared.model.graph.nodes[n].inputs()) {
      auto& most = bits[input];
      most = std::max(most, bits_as(formats[n]));
    }
  }
  plan.output_bytes = graph_bytes(prepared.model) + pair_bytes(run, run::nodes_by_format(prepared, possible, formats));
  for (const auto& tensor : prepared.model.graph.initializers) {
    const bool can_shrink = tensor.type == onnx::DataType::float32 && tensor.dims.size() > 1;
    const auto found = bits.find(tensor.name);
    plan.output_bytes += tensor.data.size() * (can_shrink && found != bits.end() ? found->second : 32) / 32;
  }
}

void predict_floats(Run& run, Forecast& forecast) {
  auto& plan = forecast.plan;
  if (run.recipe.lowers_rest) {
    plan.output_bytes -= forecast.float_bytes / 2;
    return;
  }
  const auto& model = run.prepared.model;
  plan.output_bytes = bytes_as_it_is(model);
  if (run.floats->config.float_type == FloatType::float32) return;
  const auto placed =
      quantization::place_floats(model, types_of_samples(run, run.prepared, forecast), run.floats->facts);
  run.note(placed.notes);
  FloatConversion floats{.nodes = placed.quantized, .nodes_kept = placed.in_float};
  plan.nodes_may_change = run.recipe.has_samples;
  std::set<std::string_view> in_float32;  // constants
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (placed.selected[n]) continue;
    for (const auto& name : model.graph.nodes[n].inputs()) in_float32.insert(name);
  }
  std::uint64_t before = 0, halved = 0;
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.type != onnx::DataType::float32) continue;
    before += tensor.data.size();
    if (!in_float32.contains(tensor.name)) halved += tensor.data.size();
  }
  plan.output_bytes -= halved / 2;
  floats.constants = before > 0 ? static_cast<double>(halved) / 2 / static_cast<double>(before) : 0;
  plan.floats = floats;
}

}  // namespace detent::pipeline
