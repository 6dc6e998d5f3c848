#include "cli/options.h"

#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "cli/commands.h"
#include "detent/error.h"

namespace detent::cli {
namespace {

const std::map<std::string, Preset> kPresets{{"balanced", Preset::balanced}, {"plain", Preset::plain}};
const std::map<std::string, QuantType> kTypes{{"int8", QuantType::int8},   {"uint8", QuantType::uint8},
                                              {"int16", QuantType::int16}, {"uint16", QuantType::uint16},
                                              {"int4", QuantType::int4},   {"uint4", QuantType::uint4}};
const std::map<std::string, CalibrationMethod> kMethods{
    {"minmax", CalibrationMethod::minmax},
    {"percentile", CalibrationMethod::percentile},
    {"layerwise-percentile", CalibrationMethod::layerwise_percentile},
    {"mse", CalibrationMethod::mse},
    {"entropy", CalibrationMethod::entropy}};
const std::map<std::string, ErrorMetric> kMetrics{{"mae", ErrorMetric::mae}, {"mse", ErrorMetric::mse}};

const std::map<std::string, MemoryLevel> kMemoryLevels{
    {"0", MemoryLevel::memory}, {"1", MemoryLevel::budget}, {"2", MemoryLevel::disk}};
const std::map<std::string, SpoolAccess> kAccesses{{"auto", SpoolAccess::automatic},
                                                   {"buffered", SpoolAccess::buffered},
                                                   {"direct", SpoolAccess::direct},
                                                   {"uring", SpoolAccess::uring}};

const std::map<std::string, Rounding> kRoundings{{"auto", Rounding::automatic},
                                                 {"nearest", Rounding::nearest},
                                                 {"adaround", Rounding::adaround},
                                                 {"adaquant", Rounding::adaquant},
                                                 {"gptq", Rounding::gptq}};
const std::map<std::string, FinetuneForm> kForms{
    {"auto", FinetuneForm::automatic}, {"gram", FinetuneForm::gram}, {"streamed", FinetuneForm::streamed}};

const std::map<std::string, DevicePrecision> kPrecisions{
    {"float32", DevicePrecision::float32}, {"tf32", DevicePrecision::tf32}, {"bfloat16", DevicePrecision::bfloat16}};
const std::map<std::string, GdsMode> kGdsModes{
    {"auto", GdsMode::automatic}, {"on", GdsMode::on}, {"off", GdsMode::off}};
const std::map<std::string, DeviceLayout> kLayouts{
    {"auto", DeviceLayout::automatic}, {"nchw", DeviceLayout::nchw}, {"nhwc", DeviceLayout::nhwc}};

const std::map<std::string, SensitivityMode> kSensitivities{
    {"auto", SensitivityMode::automatic}, {"off", SensitivityMode::off}, {"report", SensitivityMode::report}};
const std::map<std::string, EqualizeMode> kEqualizes{{"auto", EqualizeMode::automatic}, {"off", EqualizeMode::off}};
const std::map<std::string, AccuracyFallback> kFallbacks{{"float32", AccuracyFallback::float32},
                                                         {"int16", AccuracyFallback::int16}};
const std::map<std::string, AccuracyMetric> kAccuracyMetrics{
    {"cosine", AccuracyMetric::cosine}, {"sqnr", AccuracyMetric::sqnr}, {"command", AccuracyMetric::command}};

// One of a few words, or a usage error that lists them.
template <class T>
T choose(const std::string& option, const std::string& text, const std::map<std::string, T>& choices) {
  const auto found = choices.find(text);
  if (found != choices.end()) return found->second;
  std::string all;
  for (const auto& [word, value] : choices) all += (all.empty() ? "" : ", ") + word;
  throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not one of its values", option, text), "choose from: " + all);
}

template <class T>
void choice(CLI::App& command, const std::string& name, T& into, const std::map<std::string, T>& choices,
            const char* group, const char* label, const std::string& help) {
  command
      .add_option_function<std::string>(
          name, [name, &into, &choices](const std::string& text) { into = choose(name, text, choices); }, help)
      ->option_text(label)
      ->group(group);
}

void list(CLI::App& command, const char* name, std::vector<std::string>& into, const char* help) {
  command.add_option(name, into, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("A,B,…")
      ->group("Selection");
}

void either(CLI::App& command, const char* on, const char* on_help, const char* off, const char* off_help,
            const std::function<void(bool)>& set) {
  command
      .add_flag_callback(
          on, [set] { set(true); }, on_help)
      ->group("Format");
  command
      .add_flag_callback(
          off, [set] { set(false); }, off_help)
      ->group("Format");
}

// "NAME=VALUE"; the name may hold '=' signs, the value does not.
std::pair<std::string, std::string> split(const std::string& option, const std::string& text) {
  const auto at = text.rfind('=');
  if (at != std::string::npos && at > 0 && at + 1 < text.size()) return {text.substr(0, at), text.substr(at + 1)};
  throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not NAME=VALUE", option, text));
}

std::pair<float, float> parse_range(const std::string& option, const std::string& text) {
  float bounds[2]{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 2; ++i) {
    const auto [next, status] = std::from_chars(at, end, bounds[i]);
    const bool separated = i == 0 ? next != end && *next == ',' : next == end;
    if (status != std::errc() || !separated)
      throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not MIN,MAX", option, text));
    at = next + (i == 0 ? 1 : 0);
  }
  return {bounds[0], bounds[1]};
}

void overrides_option(CLI::App& command, const std::string& name, const char* label, const char* help,
                      const std::function<void(const std::string&)>& add) {
  command
      .add_option_function<std::vector<std::string>>(
          name,
          [add](const std::vector<std::string>& texts) {
            for (const auto& text : texts) add(text);
          },
          help)
      ->allow_extra_args(false)
      ->option_text(label)
      ->group("Method");
}

}  // namespace

void add_sampling(CLI::App& command, Sampling into) {
  command.add_option("--samples", into.max_samples, "use at most this many samples")
      ->check(not_negative)
      ->option_text("N")
      ->group("Calibration");
  command.add_option("--batch-size", into.batch_size, "split the files' arrays into batches of this many rows")
      ->option_text("N")
      ->group("Calibration");
  command.add_flag("--allow-nonfinite", into.allow_nonfinite, "leave NaN and infinite values out instead of stopping")
      ->group("Calibration");
}

void add_preset(CLI::App& command, QuantConfig& config, MethodConfig* method, AccuracyConfig* accuracy) {
  choice(command, "--preset", config.preset, kPresets, "Format", "NAME",
         "balanced (default): float where 8 bits do harm, mse ranges, uint8 weights; plain: as quantize_static, to the "
         "bit");
  command.parse_complete_callback([&command, &config, method, accuracy] {
    const auto given = [&](const char* name) {
      const auto* option = command.get_option_no_throw(name);
      return option != nullptr && option->count() > 0;
    };
    const auto wanted = preset_config(config.preset);
    if (!given("--weight-type") && !given("--reduce-range")) {
      config.weight_type = wanted.weight_type;
      if (!config.weight_symmetric) config.weight_symmetric = wanted.weight_symmetric;
    }
    if (method != nullptr && !given("--method")) method->method = preset_method(config.preset).method;
    if (accuracy != nullptr && given("--method")) accuracy->other_methods.clear();
  });
}

void add_method(CLI::App& command, MethodConfig& method, std::vector<TensorOverride>& overrides) {
  choice(command, "--method", method.method, kMethods, "Method", "NAME",
         "calibration method: minmax, percentile, layerwise-percentile, mse, entropy (default: mse, and minmax or "
         "percentile where that is measured to be better; plain: minmax)");
  command.add_flag("--average", method.average, "minmax: mean over samples of each sample's minimum and maximum")
      ->group("Method");
  command.add_option("--percentile", method.percentile, "percentile: percent of the values to keep (default 99.999)")
      ->option_text("P")
      ->group("Method");
  command.add_flag("--two-sided", method.two_sided, "percentiles: cut both tails alike, not one percentile of |x|")
      ->group("Method");
  command
      .add_option("--candidates", method.candidates,
                  "layerwise-percentile: percentiles to choose from (default 99.99,99.999,99.99999)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("P,P,…")
      ->group("Method");
  choice(command, "--metric", method.metric, kMetrics, "Method", "mae|mse",
         "layerwise-percentile: error that decides (default mae)");
  command
      .add_flag("--most-common", method.most_common,
                "mse with power-of-two scales: the scale that is best for most samples")
      ->group("Method");
  command.add_option("--entropy-bins", method.entropy_bins, "entropy: bins of the histogram of |x| (default 2048)")
      ->check(not_negative)
      ->option_text("N")
      ->group("Method");
  command.add_option("--entropy-levels", method.entropy_levels, "entropy: levels they are merged into (default 128)")
      ->check(not_negative)
      ->option_text("N")
      ->group("Method");
  overrides_option(command, "--tensor-method", "NAME=METHOD",
                   "another method for an activation ('^…': regular expression)",
                   [&overrides](const std::string& text) {
                     const auto [name, value] = split("--tensor-method", text);
                     overrides.push_back({name, choose("--tensor-method", value, kMethods), {}});
                   });
  overrides_option(command, "--tensor-range", "NAME=MIN,MAX", "the range of an activation ('^…': regular expression)",
                   [&overrides](const std::string& text) {
                     const auto [name, value] = split("--tensor-range", text);
                     overrides.push_back({name, {}, parse_range("--tensor-range", value)});
                   });
}

void add_format(CLI::App& command, QuantConfig& config) {
  choice(command, "--activation-type", config.activation_type, kTypes, "Format", "TYPE",
         "int8, uint8, int16 or uint16 (default uint8)");
  choice(command, "--weight-type", config.weight_type, kTypes, "Format", "TYPE",
         "int8, uint8 (default; plain: int8), int16, uint16, int4 or uint4");
  either(command, "--activation-symmetric", "zero point in the middle of the activation type",
         "--activation-asymmetric", "zero point where the range asks for it (default)",
         [&config](bool on) { config.activation_symmetric = on; });
  either(command, "--weight-symmetric", "zero point in the middle (default for int8, int16, int4)",
         "--weight-asymmetric", "default for uint8, uint16, uint4; per-channel weights are always symmetric",
         [&config](bool on) { config.weight_symmetric = on; });
  either(command, "--per-channel", "one scale per output channel of a weight (default)", "--per-tensor",
         "one scale per weight", [&config](bool on) { config.per_channel = on; });
  command.add_flag("--reduce-range", config.reduce_range, "weights use 7 bits, for x86 CPUs without VNNI")
      ->group("Format");
  command.add_flag("--power-of-two-scale", config.power_of_two_scale, "scales are powers of two that cover the range")
      ->group("Format");
}

void add_selection(CLI::App& command, QuantConfig& config) {
  list(command, "--op-types", config.op_types, "quantize only these operator types");
  list(command, "--exclude-op-types", config.exclude_op_types, "leave these operator types in float");
  list(command, "--nodes", config.nodes, "quantize only these nodes; '^…' is a regular expression over the whole name");
  list(command, "--exclude-nodes", config.exclude_nodes, "leave these nodes in float; '^…' is a regular expression");
  list(command, "--passthrough-op-types", config.passthrough_op_types,
       "outputs of these types take their input's statistics, as those of Reshape, Transpose and the like always do");
}

void add_accuracy(CLI::App& command, AccuracyConfig& config) {
  const char* const group = "Accuracy";
  choice(command, "--sensitivity", config.sensitivity, kSensitivities, group, "auto|off|report",
         "run with each quantized value rounded alone; auto (default): then leave in float what makes most of the "
         "error, up to a tenth of the multiplications; report: only tell");
  choice(command, "--equalize", config.equalize, kEqualizes, group, "auto|off",
         "auto (default): make the channels of a value alike where that is measured to halve its error");
  choice(command, "--accuracy-fallback", config.fallback, kFallbacks, group, "float32|int16",
         "what becomes of products that 8 bits do not serve: float (default), or activations of 16 bits, for NPUs");
  command
      .add_option("--accuracy-target", config.target,
                  "let as many products fall back as it takes to reach this value of the metric, and no more")
      ->option_text("X")
      ->group(group);
  choice(command, "--accuracy-metric", config.metric, kAccuracyMetrics, group, "NAME",
         "cosine (default) or sqnr (dB) of the worst output, or command: share of the float model's score");
  command
      .add_option("--accuracy-command", config.command,
                  "a program that is given a model's path and prints its score, the larger the better")
      ->option_text("CMD")
      ->group(group);
}

void add_running(CLI::App& command, Running into) {
  command.add_option("--threads", into.threads, "threads of the runtime (default: one per core)")
      ->option_text("N")
      ->group("Running");
  command.add_option("--workers", into.workers, "samples run at a time, sharing one copy of the weights (default 1)")
      ->option_text("N")
      ->group("Running");
  command
      .add_option("--runtime", into.runtime,
                  "ONNX Runtime's library (default: $DETENT_ONNXRUNTIME, beside detent, the system's)")
      ->option_text("FILE")
      ->group("Running");
}

void add_finetune(CLI::App& command, FinetuneConfig& config) {
  const char* const group = "Fine-tuning";
  const auto number = [&](const char* name, auto& into, const char* label, const char* help) {
    command.add_option(name, into, help)->check(not_negative)->option_text(label)->group(group);
  };
  const auto names = [&](const char* name, std::vector<std::string>& into, const char* help) {
    command.add_option(name, into, help)->delimiter(',')->allow_extra_args(false)->option_text("A,B,…")->group(group);
  };
  choice(command, "--finetune", config.rounding, kRoundings, group, "NAME",
         "find better integers for weights, layer by layer: adaround, adaquant or gptq; nearest: none; auto (default): "
         "gptq where measuring shows that it is needed and helps");
  choice(command, "--form", config.form, kForms, group, "NAME",
         "auto (default: the cheaper), gram (sums over all samples) or streamed (mini-batches of stored activations)");
  names("--finetune-op-types", config.op_types, "tune only layers of these types");
  names("--finetune-nodes", config.nodes, "tune only these nodes; '^…' is a regular expression over the whole name");
  command
      .add_flag("--only-heaviest-layer", config.only_heaviest_layer,
                "tune only the layer that takes most memory: tells the peak of the whole early")
      ->group(group);
  number("--num-iterations", config.num_iterations, "N", "steps for each layer (default 1000)");
  number("--learning-rate", config.learning_rate, "R", "default: adaround 0.1, adaquant 1e-5");
  number("--finetune-batch-size", config.batch_size, "N", "samples in a mini-batch of the streamed form (default 1)");
  command.add_flag("--early-stop", config.early_stop, "stop a layer when it gets no better")->group(group);
  number("--drop-ratio", config.drop_ratio, "P",
         "share of a layer's inputs from the quantized model, the rest from the float model (default 1)");
  number("--reg-param", config.reg_param, "L", "adaround: weight of the regularizer (default 0.01)");
  command
      .add_option_function<std::vector<double>>(
          "--beta-range",
          [&config](const std::vector<double>& values) {
            config.beta_range = {values.at(0), values.at(1)};
          },
          "adaround: exponent of the regularizer, from and to (default 20,2)")
      ->delimiter(',')
      ->expected(2)
      ->option_text("FROM,TO")
      ->group(group);
  number("--warm-start", config.warm_start, "P", "adaround: share of steps without regularizer (default 0.2)");
  command.add_flag("--update-bias", config.update_bias, "solve for the biases as well")->group(group);
  command
      .add_flag("--update-scale", config.update_scale,
                "adaquant: give weights the scales that are best for their integers")
      ->group(group);
  number("--damping", config.damping, "D",
         "gptq: share of the mean diagonal added to it, up to ten times as much for few columns (default 0.01)");
  number("--coordinate-sweeps", config.coordinate_sweeps, "N",
         "sweeps of exact coordinate descent after the method (default: gptq 0, others 2)");
  number("--num-workers", config.num_workers, "N",
         "samples read ahead from the spool while a mini-batch is worked on (default 0)");
  command.add_flag("--pin-memory", config.pin_memory, "for copies to a GPU, which always do so; refused on the CPU")
      ->group(group);
  number("--seed", config.seed, "N", "of the order of mini-batches (default 1705472343)");
}

void add_device(CLI::App& command, DeviceConfig& device) {
  const char* const group = "Devices";
  command
      .add_option_function<std::string>(
          "--device", [&device](const std::string& text) { device.cuda = parse_devices(text); },
          "where calibration and fine-tuning compute: cpu (default), cuda:N, or several as in cuda:0,cuda:1")
      ->option_text("DEVICE")
      ->group(group);
  command
      .add_option_function<std::string>(
          "--device-memory-budget", [&device](const std::string& text) { device.memory_budget = parse_size(text); },
          "memory that may be taken on each device (default: 90 % of what is free)")
      ->option_text("SIZE")
      ->group(group);
  choice(command, "--device-precision", device.precision, kPrecisions, group, "NAME",
         "what a device multiplies in: float32 (default), tf32 or bfloat16");
  choice(command, "--device-layout", device.layout, kLayouts, group, "NAME",
         "of a device's convolutions: auto (default: timed for each shape), nchw or nhwc");
  choice(
      command, "--gds", device.gds, kGdsModes, group, "auto|on|off",
      "read stored samples past the host (GPUDirect Storage): auto (default) where that is measured to be faster, on "
      "or an error, off");
}

void add_resources(CLI::App& command, Resources& resources) {
  const char* const group = "Memory and disk";
  const auto size = [&](const char* name, std::optional<std::uint64_t>& into, const char* help) {
    command
        .add_option_function<std::string>(
            name, [&into](const std::string& text) { into = parse_size(text); }, help)
        ->option_text("SIZE")
        ->group(group);
  };
  size("--memory-budget", resources.memory_budget,
       "memory that the run may take, as in 512MiB or 2GiB (default: 80 % of what is free)");
  size("--disk-budget", resources.disk_budget, "disk that working files may take (default: 90 % of what is free)");
  command.add_option("--work-dir", resources.work_dir, "where working files go (default: $TMPDIR or /tmp)")
      ->option_text("DIR")
      ->group(group);
  choice(command, "--memory-level", resources.memory_level, kMemoryLevels, group, "0|1|2",
         "where tensors wait between segments: in memory (0), as the budget allows (1, default), on disk (2)");
  command.add_option("--segments", resources.segments, "cut the model into at least so many segments, where it can be")
      ->check(not_negative)
      ->option_text("N")
      ->group(group);
  command.add_option("--prefetch", resources.prefetch, "samples read ahead from disk (default 2)")
      ->check(not_negative)
      ->option_text("N")
      ->group(group);
  choice(command, "--spool-access", resources.spool_access, kAccesses, group, "MODE",
         "auto (default: a short probe decides), buffered, direct or uring");
  command
      .add_flag("--spool-bfloat16", resources.spool_bfloat16,
                "keep waiting tensors as bfloat16: half the bytes, and other results")
      ->group(group);
  command
      .add_flag("--resume", resources.resume,
                "go on with an interrupted run for this output, and keep what is done if this one is interrupted")
      ->group(group);
  command
      .add_option("--checkpoint-seconds", resources.checkpoint_seconds,
                  "how often progress is put down (default 10; 0: at every sample)")
      ->check(not_negative)
      ->option_text("S")
      ->group(group);
}

void add_profiling(CLI::App& command, Profiling into) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    command.add_option(name, value, text)->option_text("FILE")->group("Output");
  };
  add("--profile", into.profile, "write a profile (YAML) while running");
  add("--report", into.report, "write a report (HTML): time, memory, bottleneck, layers, histograms, errors");
  add("--trace", into.trace, "write a trace of stages and layers, for Perfetto");
}

void add_quantization(CLI::App& command, QuantizeOptions& options) {
  command
      .add_option("--calibration-data", options.calibration_data,
                  "directory of .npy, .npz or test_data_set_*/input_N.pb, or one .npy or .npz file")
      ->option_text("PATH");
  command
      .add_option("--statistics", options.statistics,
                  "take these statistics (detent calibrate) instead of running the model")
      ->option_text("FILE");
  options.config = {};
  options.config.preset = Preset::balanced;
  add_preset(command, options.config, &options.method, &options.accuracy);
  add_sampling(command, {options.max_samples, options.batch_size, options.allow_nonfinite});
  add_method(command, options.method, options.overrides);
  add_format(command, options.config);
  add_selection(command, options.config);
  add_running(command, {options.threads, options.workers, options.runtime});
  add_resources(command, options.resources);
  add_accuracy(command, options.accuracy);
  add_finetune(command, options.finetune);
  add_device(command, options.device);
}

}  // namespace detent::cli
