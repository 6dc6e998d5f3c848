#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/paths.h"
#include "config/enum_names.h"
#include "config/formats.h"
#include "config/presets.h"
#include "config/targets.h"

namespace detent::config {
namespace {

std::string bounds_text(const Bounds& b) {
  const bool bounded = std::isfinite(b.max);
  if (b.above) return bounded ? fmt::format("above {} and at most {}", b.min, b.max) : fmt::format("above {}", b.min);
  return bounded ? fmt::format("between {} and {}", b.min, b.max) : fmt::format("at least {}", b.min);
}

void check(const Option& option, double value) {
  const Bounds& b = option.bounds;
  if ((b.above ? value > b.min : value >= b.min) && value <= b.max) return;
  const bool sign = b.min == 0 && !b.above && !std::isfinite(b.max);
  throw usage_error(fmt::format("{} must {}", option.spelled(), sign ? "not be negative" : "be " + bounds_text(b)));
}

// Numbers against the bounds in their rows.
void check_bounds(const Options& given, Command command) {
  for (const auto& option : options()) {
    if ((option.commands & command) == 0 || !option.of_library() || option.bounds.min == Bounds().min) continue;
    std::visit(Overloaded{[&]<class T>(const T* value) {
                            if constexpr (std::is_arithmetic_v<T>) check(option, static_cast<double>(*value));
                          },
                          [&](const std::optional<double>* value) {
                            if (*value) check(option, **value);
                          },
                          [&](const std::vector<double>* values) {
                            if (values->empty()) throw usage_error(fmt::format("{} is empty", option.spelled()));
                            for (const double v : *values) check(option, v);
                          },
                          [&](const std::pair<double, double>* pair) {
                            check(option, pair->first);
                            check(option, pair->second);
                          },
                          [](const Choice&) {}, [](const Choices&) {}},
               read_only(option, given));
  }
}

void check_range(const TensorOverride& entry) {
  const auto [min, max] = *entry.range;
  if (std::isfinite(min) && std::isfinite(max) && min <= max) return;
  throw usage_error(fmt::format("--set tensor-range: {} to {} is not a range for '{}'", min, max, entry.tensor),
                    "give NAME=MIN,MAX with finite MIN <= MAX");
}

// Facts of single options that the bounds of their rows cannot state.
void check_values(const QuantizeOptions& options) {
  (void)preset(options.config);
  check_format(options);
  for (const auto& entry : options.node_formats) (void)parse_node_format(entry);
  for (const auto& entry : options.overrides) {
    if (entry.range) check_range(entry);
  }
}

// Its members are looked at one by one.
void check_family(const QuantizeOptions& options) {
  const QuantizeOptions none;
  for (const auto& option : config::options()) {
    const auto said = options_set_by_member();
    const bool may_be_preset = option.at.path == "config.preset" || option.at.path == "config.weight_type";
    if (may_be_preset || std::find(said.begin(), said.end(), option.at.path) == said.end()) continue;
    if (text_of(read_only(option, options), option.form) != text_of(read_only(option, none), option.form))
      throw refused_beside_family(option);
  }
  bool any_16_bits = false;
  for (const auto* member : family_of(options)) {
    const auto of_member = options_of(*member, options);
    any_16_bits = any_16_bits || writes_16_bits(of_member.config);
    if (!member->format.empty()) validate(of_member);
  }
  if (!any_16_bits && !options.config.keep_io_types)
    throw usage_error("--set no-keep-io-types needs --float 16, bf16 or 32: no member of --family changes a type",
                      "leave it out");
}

// What says how nodes are quantized is what the search is to find out.
void check_searched(const QuantizeOptions& options) {
  constexpr std::string_view kMayBeSaid[] = {
      "weights_only.max_size", "accuracy.target", "accuracy.metric", "accuracy.command", "kernel_table",
      "calibration_data",      "samples",         "max_samples",     "batch_size",       "input_values"};
  const auto limit = options.max_latency ? "--max-latency" : "--max-size without --weights-only";
  QuantizeOptions none;
  none.config = preset_config("balanced");
  resolve(none, {});
  const auto is_searched = [&](const Option& option) {
    const bool may_be_said =
        std::find(std::begin(kMayBeSaid), std::end(kMayBeSaid), option.at.path) != std::end(kMayBeSaid);
    if (may_be_said || (option.commands & kQuantize) == 0) return false;
    if (!option.of_library() || (option.affects == Affects::nothing && option.at.path != "format")) return false;
    return text_of(read_only(option, options), option.form) != text_of(read_only(option, none), option.form);
  };
  for (const auto& option : config::options()) {
    if (!is_searched(option)) continue;
    // Without having been given they follow from the method.
    const auto name = option.at.path == "accuracy.other_methods" ? "--method" : name_as_given(option, options);
    throw usage_error(
        fmt::format("{} does not go with {}, which searches for the best format of each node", name, limit),
        "leave out one of them");
  }
  if (!has_samples(options))
    throw usage_error(fmt::format("{} needs samples, on which models are measured", limit), "give --calibration-data");
}

void check_calibration(const Options& options) {
  check_conflicts(options, kCalibrate);
  if (options.method.most_common && !options.histograms)
    throw usage_error("--set most-common needs histograms", "leave out --no-histogram");
}

void check_search(const Options& options) {
  if (!has_samples(options))
    throw usage_error("search needs samples, on which models are measured", "give --calibration-data");
  for (const auto& name : options.formats) (void)node_format(name, "--formats");
  const auto& accuracy = options.accuracy;
  const bool has_score = !accuracy.command.empty() || accuracy.score;
  if ((accuracy.metric == AccuracyMetric::command) != has_score)
    throw usage_error("--accuracy-metric command and --accuracy-command go together");
  if (options.machines.has_value() != options.requests.has_value())
    throw usage_error("--machines and --requests go together",
                      "say how many requests a second the machines must serve");
  if (options.machines && options.threads > 1)
    throw usage_error("--machines: each thread of a machine computes a request alone", "leave out --threads");
}

}  // namespace

void validate(const Options& options, Command command) {
  check_bounds(options, command);
  if (command == kCalibrate) return check_calibration(options);
  if (command == kSearch) return check_search(options);
  if (command == kBench && options.models.empty()) throw usage_error("there is no model to time", "name one or more");
  if ((command & (kQuantize | kPlan)) == 0) return;
  if (searches_formats(options)) check_searched(options);
  if (!options.family.empty()) return check_family(options);
  check_values(options);
  check_conflicts(options, command);
}

nlohmann::json identity(const Options& options, Affects what, Command command) {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& option : config::options()) {
    if (option.affects != what || (option.commands & command) == 0 || !option.of_library()) continue;
    const auto member = read_only(option, options);
    all[option.spelled()] = option.identity == nullptr ? json_of(member) : option.identity(member);
  }
  return all;
}

nlohmann::json run_identity(const QuantizeOptions& options) {
  auto all = identity(options, Affects::statistics);
  all["--finetune"] = word_of(enum_names<WeightSolver>(), static_cast<int>(WeightSolver::nearest));
  if (tunes(options.finetune.solver) || may_tune(options)) all.update(identity(options, Affects::integers));
  return all;
}

namespace {

constexpr unsigned kNotBlocks = kAnyResult & ~kBlocks;
// What is made from ranges of samples, or by changing types alone.
constexpr unsigned kStatic = kIntegers | kBlockFloats | kFloat16 | kFloat32;
constexpr unsigned kCalibrating = kQuantize | kPlan | kCalibrate;

// Said of more than one kind of result.
constexpr std::string_view kOtherPreset = "give another preset, or quantize --float 16, bf16 or 32, or --kv-cache";
constexpr std::string_view kOtherForm = "leave out --set weights-form, or give --set weights-form=qdq";

bool always(const Options&) { return true; }

// Types.
bool is_4_bit(QuantType type) { return type == QuantType::int4 || type == QuantType::uint4; }
bool weights_are_floats(const Options& o) { return is_float(o.config.weight_type); }
bool activations_are_floats(const Options& o) { return is_float(o.config.activation_type); }
bool any_is_float(const Options& o) { return weights_are_floats(o) || activations_are_floats(o); }
bool one_is_float(const Options& o) { return weights_are_floats(o) != activations_are_floats(o); }
bool any_is_float4(const Options& o) {
  return o.config.weight_type == QuantType::float4e2m1 || o.config.activation_type == QuantType::float4e2m1;
}
bool weights_have_4_bits(const Options& o) { return is_4_bit(o.config.weight_type); }
bool activations_have_4_bits(const Options& o) { return is_4_bit(o.config.activation_type); }
bool weights_not_of_8_bits(const Options& o) {
  return o.config.weight_type != QuantType::int8 && o.config.weight_type != QuantType::uint8;
}
bool range_is_reduced(const Options& o) { return o.config.weight_range == WeightRange::reduced; }
bool writes_qoperators(const Options& o) { return o.config.quant_format == QuantFormat::qoperator; }
bool quantizes_to_qoperators(const Options& o) { return writes_qoperators(o) && preset(o.config).quantizes; }
bool becomes_16_bits(const Options& o) { return writes_16_bits(o.config); }
bool becomes_float32(const Options& o) { return o.config.float_type == FloatType::float32; }
bool keeps_float_type(const Options& o) { return o.config.float_type == FloatType::keep; }
bool changes_float_type(const Options& o) { return !keeps_float_type(o); }
bool changes_io_types(const Options& o) { return !o.config.keep_io_types; }
bool has_block_floats(const Options& o) { return o.config.block_float != BlockFloat::none; }
bool is_dynamic(const Options& o) { return o.config.activations == Activations::dynamic; }
bool powers_of_two(const Options& o) { return o.config.power_of_two_scale; }
bool not_symmetric_powers_of_two(const Options& o) { return !(powers_of_two(o) && o.config.activation_symmetric); }

// Presets and targets.
bool quantizes(const Options& o) { return preset(o.config).quantizes; }
bool quantizes_nothing(const Options& o) { return !quantizes(o); }
bool has_preset_of_floats(const Options& o) { return o.config.preset == "floats"; }
bool preset_is_of_integers(const Options& o) { return o.config.preset == "balanced"; }
bool weights_are_integers(const Options& o) { return !is_float(o.config.weight_type); }
bool preset_measures(const Options& o) { return preset(o.config).measures_accuracy; }
bool preset_does_not_measure(const Options& o) { return !preset_measures(o); }
bool is_no_preset_of_formats(const Options& o) { return preset_measures(o) || quantizes_nothing(o); }
bool is_not_for_ort_cpu(const Options& o) { return !target(o.config).is_ort_cpu; }

// Samples.
bool has_no_samples(const Options& o) { return !has_samples(o); }
bool has_statistics(const Options& o) { return o.statistics.has_value(); }
// A model that is not there is told when it is opened: a name that is mistyped has to be known first.
bool has_nothing_to_calibrate(const Options& o) {
  return has_no_samples(o) && !has_statistics(o) && (o.model.empty() || paths::exists(o.model));
}
bool allows_nonfinite(const Options& o) { return o.allow_nonfinite; }
bool calibrates(const Options& o) { return quantizes(o) && !has_block_floats(o); }
bool calibrates_and_finetunes(const Options& o) { return calibrates(o) && tunes(o.finetune.solver); }

// Accuracy.
bool has_accuracy_target(const Options& o) { return o.accuracy.target.has_value(); }
bool measures(const Options& o) { return has_accuracy_target(o) || o.accuracy.sensitivity == SensitivityMode::report; }
bool falls_back_to_other_types(const Options& o) { return o.accuracy.fallback != AccuracyFallback::float32; }
bool scores_by_command(const Options& o) { return o.accuracy.metric == AccuracyMetric::command; }
bool has_score(const Options& o) { return !o.accuracy.command.empty() || o.accuracy.score; }
bool metric_and_score_differ(const Options& o) { return scores_by_command(o) != has_score(o); }
bool target_is_no_share(const Options& o) {
  const auto& a = o.accuracy;
  return a.target && a.metric != AccuracyMetric::sqnr && !(*a.target > 0 && *a.target <= 1);
}

// Methods.
bool bins_below_levels(const Options& o) { return o.method.entropy_bins < o.method.entropy_levels; }
bool takes_most_common(const Options& o) { return o.method.most_common; }
bool weighs_integers(const Options& o) {
  const auto fits = [](CalibrationMethod m) {
    return m == CalibrationMethod::minmax || m == CalibrationMethod::percentile;
  };
  return !fits(o.method.method) || std::any_of(o.overrides.begin(), o.overrides.end(),
                                               [&](const auto& entry) { return entry.method && !fits(*entry.method); });
}

// Fine-tuning.
bool finetunes(const Options& o) { return tunes(o.finetune.solver); }
bool finetunes_by_gptq(const Options& o) { return o.finetune.solver == WeightSolver::gptq; }
bool tunes_in_gram_form(const Options& o) { return finetunes(o) && o.finetune.form == FinetuneForm::gram; }
bool mixes_inputs(const Options& o) { return o.finetune.drop_ratio < 1; }
bool streams_or_mixes(const Options& o) { return o.finetune.form == FinetuneForm::streamed || mixes_inputs(o); }

// Devices.
bool is_on_cpu(const Options& o) { return o.device.is_cpu(); }
bool is_on_gpu(const Options& o) { return !is_on_cpu(o); }
bool has_gpu_details(const Options& o) {
  const auto& device = o.device;
  return device.memory_budget || device.precision != DevicePrecision::float32 ||
         device.layout != DeviceLayout::automatic || device.gds != GdsMode::automatic || !device.pin_memory;
}
bool has_workers(const Options& o) { return o.workers > 1 && !has_statistics(o); }

// Weights in blocks.
bool scales_have_own_type(const Options& o) { return o.weights_only.scale_type != ScaleType::as_weight; }
bool blocks_are_floats(const Options& o) { return weights_are_floats(o) || scales_have_own_type(o); }
bool integers_with_other_scales(const Options& o) { return !weights_are_floats(o) && scales_have_own_type(o); }
bool scales_without_integers(const Options& o) {
  return integers_with_other_scales(o) &&
         (o.weights_only.scale_type == ScaleType::float8e4m3fn || o.weights_only.bits == WeightBits::two);
}
bool is_matmul_nbits(const Options& o) { return o.weights_only.form == WeightForm::matmul_nbits; }
bool is_asymmetric(const Options& o) { return !o.config.weight_symmetric.value_or(true); }
bool solves_blocks(const Options& o) {
  return o.weights_only.method == WeightMethod::gptq || o.weights_only.method == WeightMethod::awq;
}
bool has_max_size(const Options& o) { return o.weights_only.max_size.has_value(); }
bool chooses_bits(const Options& o) { return has_max_size(o) || has_accuracy_target(o); }
bool measures_no_sensitivity(const Options& o) { return !chooses_bits(o) || has_no_samples(o); }
bool is_sparse(const Options& o) { return o.weights_only.sparsity != WeightSparsity::none; }
bool cannot_be_sparse(const Options& o) {
  return o.weights_only.method != WeightMethod::gptq && o.weights_only.method != WeightMethod::automatic;
}
bool gives_bits_to_nodes(const Options& o) {
  return std::any_of(o.weights_only.node_bits.begin(), o.weights_only.node_bits.end(),
                     [](const auto& entry) { return !entry.ends_with("=float"); });
}
bool may_rotate(const Options& o) { return o.weights_only.rotation == Rotation::automatic; }
bool does_not_run_on_cpu(const Options& o) {
  return o.config.weight_type == QuantType::float4e2m1 || o.weights_only.scale_type == ScaleType::float8e8m0;
}
bool has_whole_channels(const Options& o) { return o.weights_only.block_size == BlockSize::channel; }

// Several formats in one model.
bool has_static_nodes(const Options& o) {
  return std::any_of(o.node_formats.begin(), o.node_formats.end(),
                     [](const auto& entry) { return is_static(parse_node_format(entry).format); });
}
bool names_format(const Options& o) { return !o.format.empty() || o.weights_only.enabled || is_dynamic(o); }

// Caches.
bool keeps_cache(const Options& o) { return o.kv_cache.type == KvCacheType::keep; }
bool changes_cache(const Options& o) { return !keeps_cache(o); }
bool cache_is_float8(const Options& o) { return o.kv_cache.type == KvCacheType::float8e4m3fn; }
bool has_cache_details(const Options& o) { return o.kv_cache.per_channel || o.kv_cache.scale_file; }
bool has_other_results(const Options& o) { return !o.weights_only.enabled && !changes_cache_alone(o); }

// Speed.
bool has_own_worth(const Options& o) { return o.size_worth != QuantizeOptions().size_worth; }
bool is_not_for_latency(const Options& o) { return o.optimize_for != OptimizeFor::latency; }

// Files.
bool writes_prepared(const Options& o) { return o.prepared_output.has_value(); }
bool reports(const Options& o) { return o.report || o.trace; }

const Conflict kConflicts[] = {
    {kAnyResult, changes_io_types, keeps_float_type,
     "--set no-keep-io-types needs --float 16, bf16 or 32: otherwise no type changes", "leave it out", kCalibrating},
    {kAnyResult, has_cache_details, keeps_cache,
     "--set kv-cache-per-channel and --set kv-cache-scales need a cache with scales",
     "give --kv-cache int8, int4 or fp8"},
    {kAnyResult, changes_cache, has_other_results,
     "--kv-cache goes with --weights-only, or with --preset none for the cache alone",
     "add one of them, and leave out --float beside --preset none"},
    {kAnyResult, changes_cache, has_no_samples, "--kv-cache needs samples, from which the scales follow",
     "give --calibration-data"},
    {kAnyResult, cache_is_float8, becomes_16_bits,
     "--kv-cache fp8 does not go with --float 16 and bf16: ONNX Runtime's CPU, which is asked for the types of the "
     "other values, has no attention with such a cache",
     "leave out --float, or give --kv-cache int8 or int4"},
    {kAnyResult, changes_cache, has_accuracy_target,
     "--accuracy-target chooses the bits of weights, and cannot judge --kv-cache", "leave out one of them"},
    {kIntegers, has_own_worth, is_not_for_latency,
     "--set size-worth weighs size against latency, and --optimize-for asks for accuracy or size alone",
     "leave out one of them"},
    {kCache, always, is_on_gpu, "--kv-cache runs on the CPU", "leave out --device"},
    {kCache, always, writes_prepared, "--set prepared-output: --kv-cache takes the float model as it is",
     "leave it out"},

    // Weights in blocks: what concerns activations, or is about products of integers.
    {kBlocks, always, is_not_for_ort_cpu,
     "--target {target}: --weights-only writes for ONNX Runtime's CPU, and does not follow other targets",
     "leave out --target, or leave out --weights-only"},
    {kBlocks, always, finetunes, "--finetune solves for int8 layers; weights in blocks have methods of their own",
     "give --set weights-method instead"},
    {kBlocks, always, has_statistics, "--statistics are of activations, and --weights-only leaves these in float",
     "give --calibration-data, or nothing"},
    {kBlocks, has_accuracy_target, has_max_size, "--max-size and --accuracy-target both choose the bits of weights",
     "give one of them"},
    {kBlocks, has_accuracy_target, is_sparse, "--set sparsity=2:4 and --accuracy-target do not go together",
     "leave out one of them"},
    {kBlocks, has_accuracy_target, has_no_samples, "--accuracy-target needs samples, on which the model is measured",
     "give --calibration-data"},
    {kBlocks, measures_no_sensitivity, is_on_gpu, "--weights-only solves weights on the CPU",
     "leave out --device; with --max-size or --accuracy-target, and samples, sensitivities are measured there"},
    {kBlocks, always, writes_prepared, "--set prepared-output: --weights-only takes the float model as it is",
     "leave it out"},
    {kBlocks, always, allows_nonfinite,
     "--set allow-nonfinite applies to activations; weights in blocks must be finite", "leave it out"},
    {kBlocks, reports, changes_float_type,
     "--report and --set trace: --weights-only with --float makes its result in two runs",
     "leave them out; --profile and --json have both"},
    {kBlocks, solves_blocks, has_no_samples, "--set weights-method={weights-method} needs samples",
     "give --calibration-data"},

    // Several formats in one model.
    {kMixed, always, names_format, "--node-formats sets the format of each node, and another option that of all nodes",
     "leave out one of them"},
    {kMixed, always, is_not_for_ort_cpu, "--target {target}: --node-formats is written for ONNX Runtime's CPU",
     "leave out --target, or --node-formats"},
    {kMixed, always, preset_does_not_measure, "--node-formats goes with --preset balanced, not {preset}",
     "leave out --preset"},
    {kMixed, has_static_nodes, has_no_samples, "--node-formats: int8 and a16w8 need samples",
     "give --calibration-data, or int8-dynamic, q8, q4 or q2"},
    {kMixed, always, has_statistics, "--statistics belong to one format, and --node-formats has several",
     "give --calibration-data"},
    {kMixed, always, finetunes, "--finetune does not go with --node-formats", "leave it out"},
    {kMixed, always, has_accuracy_target,
     "--accuracy-target chooses what falls back, and --node-formats sets the format of each node",
     "leave out one of them, or let detent search choose"},
    {kMixed, always, becomes_16_bits, "--node-formats leaves other nodes in float32", "leave out --float"},
    {kMixed, always, is_on_gpu, "--node-formats runs on the CPU", "leave out --device"},

    // Activations whose scales are found while they run.
    {kDynamic, always, weights_not_of_8_bits, "--activations dynamic has integer weights of 8 bits",
     "give --weight-type int8 or uint8"},
    {kFloat16 | kFloat32, is_dynamic, quantizes_nothing, "--activations dynamic quantizes, and --preset none does not",
     "leave out one of them"},
    {kDynamic, always, becomes_16_bits, "--activations dynamic finds scales in float32",
     "leave out --float, or give --float 32"},
    {kDynamic, always, finetunes, "--finetune solves for layers with activations from samples",
     "leave out --activations dynamic"},

    // Types of weights and activations.
    {kNotBlocks, always, any_is_float4, "float4e2m1 is for weights in blocks",
     "add --weights-only, or give float8e4m3fn"},
    {kNotBlocks, always, one_is_float,
     "--activation-type {activation-type} and --weight-type {weight-type} do not go together",
     "give floating-point types for both, or --weights-only for weights alone"},
    {kNotBlocks, any_is_float, preset_is_of_integers,
     "--preset {preset} measures integers, and --weight-type {weight-type} is no integer type",
     "give --preset floats or plain, or leave it out"},
    {kNotBlocks, has_preset_of_floats, weights_are_integers, "--preset floats is for floats of 8 bits",
     "give --format fp8, or another preset"},
    {kNotBlocks, any_is_float, falls_back_to_other_types, "--accuracy-fallback int16 is for integers",
     "leave it out: what 8-bit floats do harm to stays in float32"},
    {kNotBlocks, any_is_float, writes_qoperators, "--quant-format qoperator has no operators on 8-bit floats",
     "leave it out"},
    {kNotBlocks, any_is_float, range_is_reduced, "--set weight-range=reduced needs integer weights", "leave it out"},
    {kNotBlocks, always, activations_have_4_bits, "--activation-type: 4-bit types are for weights only",
     "choose from: int8, int16, uint8, uint16"},
    {kNotBlocks, weights_have_4_bits, range_is_reduced, "--set weight-range=reduced does not go with 4-bit weights",
     "leave it out: it is for 8-bit layers"},
    {kStatic, becomes_16_bits, quantizes_to_qoperators,
     "--quant-format qoperator: operators on integers have scales of float32", "give --float 32"},
    {kStatic, quantizes_nothing, keeps_float_type, "--preset none quantizes nothing", kOtherPreset, kCalibrating},
    {kStatic, always, quantizes_nothing, "--preset none quantizes nothing", kOtherPreset, kCalibrate},

    // Floats with common exponents.
    {kBlockFloats, always, becomes_16_bits, "--set block-float and --float are both the format of all numbers",
     "leave out one of them"},
    {kBlockFloats | kCache, has_block_floats, is_no_preset_of_formats,
     "--set block-float does not go with --preset {preset}", "leave out --preset, or give plain"},
    {kBlockFloats, always, finetunes, "--finetune looks for integers, and --set block-float makes none",
     "leave it out"},
    {kBlockFloats, always, is_on_gpu, "--set block-float runs on the CPU", "leave out --device"},

    // Methods and fine-tuning.
    {kStatic, always, bins_below_levels, "--set entropy-bins must be at least --set entropy-levels", ""},
    {kStatic, takes_most_common, not_symmetric_powers_of_two,
     "--set most-common chooses between power-of-two scales of symmetric activations",
     "add --set power-of-two-scale --set activation-symmetric"},
    {kStatic, activations_are_floats, weighs_integers,
     "floating-point types take ranges by minmax or percentile; the other methods weigh integers",
     "give --method minmax or percentile"},
    {kStatic, finetunes_by_gptq, streams_or_mixes, "--finetune gptq works in the Gram form",
     "leave out --set finetune-form=streamed and --set drop-ratio"},
    {kStatic, tunes_in_gram_form, mixes_inputs, "--set finetune-form=gram cannot mix inputs of both models",
     "leave out --set drop-ratio"},
    {kStatic, weights_are_floats, finetunes, "--finetune looks for integers, and the weights become floats",
     "leave it out"},

    // Devices.
    {kAnyResult, has_gpu_details, is_on_cpu,
     "--set device-memory-budget, --set device-precision, --set device-layout, --set gds and --set no-pin-memory are "
     "for GPUs",
     "give --device cuda:0, or leave them out", kCalibrating},
    {kAnyResult, is_on_gpu, has_workers, "--workers is for the CPU; a GPU calibrates one sample at a time",
     "leave out --workers", kCalibrating},

    // Weights in blocks that are floats, or have scales of a type of their own: found from each block's weights alone.
    {kBlocks, weights_are_floats, is_matmul_nbits,
     "MatMulNBits has integers with scales of the weight's type, and no --weight-type of floats", kOtherForm},
    {kBlocks, scales_have_own_type, is_matmul_nbits,
     "MatMulNBits has integers with scales of the weight's type, and no --set scale-type", kOtherForm},
    {kBlocks, always, scales_without_integers,
     "there is no standard form of this --set scale-type with integers of these --bits",
     "give --set scale-type=float8e8m0 with --bits 4 or 8, or --weight-type float4e2m1"},
    {kBlocks, integers_with_other_scales, is_asymmetric, "--set scale-type=float8e8m0 has no zero points",
     "leave out --set weight-asymmetric"},
    {kBlocks, blocks_are_floats, solves_blocks,
     "floats, and scales with --set scale-type, take --set weights-method=nearest or search",
     "give one of them, or auto"},
    {kBlocks, blocks_are_floats, chooses_bits,
     "--max-size and --accuracy-target choose bits of integers, and floats and --set scale-type leave no choice",
     "leave out one of them"},
    {kBlocks, blocks_are_floats, is_sparse, "--set sparsity does not go with floats and with --set scale-type",
     "leave out one of them"},
    {kBlocks, weights_are_floats, gives_bits_to_nodes,
     "--set node-bits: bits are of integers, and --weight-type is a floating-point type", "give NODE=float alone"},

    // What is not in blocks may become floats of 16 bits.
    {kBlocks, always, becomes_float32, "--weights-only leaves activations as they are",
     "leave out --float, or give --float 16"},
    {kBlocks, becomes_16_bits, blocks_are_floats,
     "--weights-only with --float 16 or bf16 is for integers with scales of the weight's type",
     "leave out --weight-type and --set scale-type, or --float"},
    {kBlocks, becomes_16_bits, has_accuracy_target,
     "--accuracy-target measures the model with weights in blocks in float32", "leave out --float, or the target"},

    // Weights in blocks: zeros, rotation.
    {kBlocks, is_sparse, has_max_size,
     "--set sparsity=2:4 and --max-size do not go together: zeros make no file smaller",
     "give bits with --bits and --set node-bits"},
    {kBlocks, is_sparse, has_no_samples, "--set sparsity=2:4 needs samples, to find the weights that it can drop",
     "give --calibration-data"},
    {kBlocks, is_sparse, cannot_be_sparse, "--set sparsity=2:4 goes with --set weights-method=gptq or auto",
     "give one of them"},
    {kBlocks, may_rotate, has_no_samples, "--set rotation=auto needs samples, on which both ways are measured",
     "give --calibration-data, or --set rotation=on"},
    {kBlocks, may_rotate, chooses_bits, "--set rotation=auto and a search for bits do not go together",
     "give --set rotation=on or off"},
    {kBlocks, may_rotate, does_not_run_on_cpu,
     "--set rotation=auto measures both ways, and ONNX Runtime's CPU does not run this format",
     "give --set rotation=on or off"},
    {kBlocks, is_matmul_nbits, has_whole_channels,
     "MatMulNBits has scales for blocks of 16 to 256 weights, not for whole channels",
     "give --block-size 256, or --set weights-form=qdq"},

    // Accuracy. A plan tells of a run before there are samples.
    {kStatic | kBlocks, always, metric_and_score_differ, "--accuracy-metric command and --accuracy-command go together",
     ""},
    {kStatic | kBlocks, always, target_is_no_share, "--accuracy-target: {accuracy-target} is not above 0 and at most 1",
     "a cosine, or a share of the float model's score; for decibels give --accuracy-metric sqnr"},
    {kStatic, calibrates, has_nothing_to_calibrate, "there is nothing to calibrate with",
     "give --calibration-data or --statistics", kQuantize},
    {kStatic, calibrates_and_finetunes, has_no_samples, "--finetune needs samples", "give --calibration-data",
     kQuantize},
    {kStatic, measures, preset_does_not_measure,
     "--accuracy-target and --set sensitivity=report choose what stays in float, which --preset {preset} has fixed",
     "give --preset balanced", kQuantize},
    {kStatic, measures, has_no_samples, "measuring accuracy needs samples",
     "give --calibration-data beside --statistics", kQuantize},
    {kStatic, falls_back_to_other_types, preset_does_not_measure,
     "--accuracy-fallback needs measurements, and --preset {preset} makes none", "give --preset balanced", kQuantize},
};

// "--preset {preset}" with what the options have.
std::string with_values(std::string_view text, const QuantizeOptions& options) {
  std::string filled;
  for (std::size_t at = 0; at < text.size();) {
    const auto open = text.find('{', at);
    filled += text.substr(at, open - at);
    if (open == std::string_view::npos) break;
    const auto close = text.find('}', open);
    const auto* option = find(text.substr(open + 1, close - open - 1), kQuantize);
    filled += text_of(read_only(*option, options), option->form);
    at = close + 1;
  }
  return filled;
}

}  // namespace

std::span<const Conflict> conflicts() { return kConflicts; }

void check_conflicts(const QuantizeOptions& options, unsigned command) {
  const unsigned result = result_of(options);
  for (const auto& row : kConflicts) {
    if ((row.results & result) == 0 || (row.commands & command) == 0) continue;
    if (row.first(options) && row.second(options))
      throw usage_error(with_values(row.why, options), std::string(row.hint));
  }
}

namespace {

using nlohmann::json;

json names_of(unsigned some) {
  json names = json::array();
  for (const auto& [command, name] : kCommands) {
    if ((some & command) != 0) names.push_back(name);
  }
  return names;
}

const char* word(Affects affects) {
  switch (affects) {
    case Affects::undeclared: return "undeclared";
    case Affects::nothing: return "nothing";
    case Affects::statistics: return "statistics";
    case Affects::integers: return "integers";
  }
  return "";
}

}  // namespace

json schema_json() {
  json rows = json::array();
  for (const auto& option : options()) {
    const Member member = any_member(option);
    rows.push_back({{"name", option.name},
                    {"path", option.at.path},
                    {"commands", names_of(option.commands)},
                    {"required", names_of(option.required)},
                    {"of_library", option.of_library()},
                    {"affects", word(option.affects)},
                    {"group", option.group},
                    {"help", option.help},
                    {"full_help", full_help(option)},
                    {"default", default_of(option)},
                    {"value", json_of(member)},
                    {"type", type_of(member, option.form)},
                    {"words", words_of(option)},
                    {"label", option.label},
                    {"only", option.only},
                    {"off", option.off},
                    {"off_help", option.off_help},
                    {"letter", option.letter},
                    {"usual", names_of(option.usual)},
                    {"detail", option.detail}});
  }
  json presets = json::array();
  for (const auto& p : config::presets()) presets.push_back({{"name", p.name}, {"help", p.help}});
  json conflicts = json::array();
  for (const auto& row : config::conflicts()) conflicts.push_back({{"why", row.why}, {"hint", row.hint}});
  return {{"options", std::move(rows)}, {"presets", std::move(presets)}, {"conflicts", std::move(conflicts)}};
}

}  // namespace detent::config
