#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "detent/quantize.h"

namespace detent::cli {
namespace {

QuantType parse_type(const std::string& option, const std::string& text) {
  static const std::map<std::string, QuantType> kTypes{{"int8", QuantType::int8},
                                                       {"uint8", QuantType::uint8},
                                                       {"int16", QuantType::int16},
                                                       {"uint16", QuantType::uint16}};
  const auto found = kTypes.find(text);
  if (found == kTypes.end()) {
    throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not a type", option, text),
                "choose int8, uint8, int16 or uint16");
  }
  return found->second;
}

struct Arguments {
  QuantizeOptions options;
  std::string external_threshold;
  bool json = false;
};

nlohmann::json to_json(const QuantizeOptions& options, const QuantizeResult& r) {
  nlohmann::json out{{"output", options.output.string()},
                     {"samples", r.samples},
                     {"model_bytes_before", r.model_bytes_before},
                     {"model_bytes_after", r.model_bytes_after},
                     {"nodes_quantized", r.nodes_quantized},
                     {"nodes_in_float", r.nodes_in_float},
                     {"notes", r.notes},
                     {"peak_memory_bytes", r.peak_memory}};
  for (const auto& s : r.stages)
    out["stages"].push_back({{"name", s.name}, {"seconds", s.seconds}, {"peak_memory_bytes", s.peak_memory}});
  for (const auto& [name, p] : r.activations) {
    out["activations"][name] = {
        {"scale", p.scale}, {"zero_point", p.zero_point}, {"min", p.range_min}, {"max", p.range_max}};
  }
  return out;
}

void print_summary(const QuantizeOptions& options, const QuantizeResult& r) {
  for (const auto& note : r.notes) fmt::print("note: {}\n", note);
  for (const auto& s : r.stages)
    fmt::print("{:<24} {:>7.2f} s   peak {:>9}\n", s.name, s.seconds, format_size(s.peak_memory));
  fmt::print("{}: {} nodes quantized, {} left in float; {} -> {} ({:.2f}x smaller); {} samples; peak memory {}\n",
             options.output.string(), r.nodes_quantized, r.nodes_in_float, format_size(r.model_bytes_before),
             format_size(r.model_bytes_after),
             static_cast<double>(r.model_bytes_before) / static_cast<double>(r.model_bytes_after), r.samples,
             format_size(r.peak_memory));
}

void add_config(CLI::App& command, Arguments& args) {
  auto& config = args.options.config;
  const auto type = [&](const std::string& name, QuantType& into, const char* help) {
    command
        .add_option_function<std::string>(
            name, [name, &into](const std::string& text) { into = parse_type(name, text); }, help)
        ->option_text("TYPE")
        ->group("Format");
  };
  type("--activation-type", config.activation_type, "int8, uint8, int16 or uint16 (default uint8)");
  type("--weight-type", config.weight_type, "int8, uint8, int16 or uint16 (default int8)");
  const auto either = [&](const char* on, const char* on_help, const char* off, const char* off_help,
                          const std::function<void(bool)>& set) {
    command
        .add_flag_callback(
            on, [set] { set(true); }, on_help)
        ->group("Format");
    command
        .add_flag_callback(
            off, [set] { set(false); }, off_help)
        ->group("Format");
  };
  either("--activation-symmetric", "zero point in the middle of the activation type", "--activation-asymmetric",
         "zero point where the range asks for it (default)", [&config](bool on) { config.activation_symmetric = on; });
  either("--weight-symmetric", "zero point in the middle (default for int8 and int16)", "--weight-asymmetric",
         "default for uint8 and uint16; per-channel weights are always symmetric",
         [&config](bool on) { config.weight_symmetric = on; });
  either("--per-channel", "one scale per output channel of a weight (default)", "--per-tensor", "one scale per weight",
         [&config](bool on) { config.per_channel = on; });
  command.add_flag("--reduce-range", config.reduce_range, "weights use 7 bits, for x86 CPUs without VNNI")
      ->group("Format");
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help) {
    command.add_option(name, into, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->option_text("A,B,…")
        ->group("Selection");
  };
  list("--op-types", config.op_types, "quantize only these operator types");
  list("--exclude-op-types", config.exclude_op_types, "leave these operator types in float");
  list("--nodes", config.nodes, "quantize only these nodes; '^…' is a regular expression over the whole name");
  list("--exclude-nodes", config.exclude_nodes, "leave these nodes in float; '^…' is a regular expression");
}

void run(const Arguments& args, std::stop_token stop) {
  QuantizeOptions options = args.options;
  options.stop = std::move(stop);
  if (!args.external_threshold.empty()) options.external_data_threshold = parse_size(args.external_threshold);
  ProgressLine progress;
  options.progress = [&](const std::string& stage, std::uint64_t done, std::uint64_t total) {
    progress.update(stage, done, total);
  };
  const auto result = quantize(options);
  progress.finish();
  if (args.json) {
    fmt::print("{}\n", to_json(options, result).dump(2));
  } else {
    print_summary(options, result);
  }
}

}  // namespace

void add_quantize(CLI::App& app, std::stop_token stop) {
  auto* command =
      app.add_subcommand("quantize", "Write a quantized model: float model and calibration samples in, Q/DQ model out");
  auto args = std::make_shared<Arguments>();
  auto& options = args->options;
  command->add_option("MODEL", options.model, "float ONNX model")->required()->option_text(" ");
  command->add_option("-o,--output", options.output, "quantized model to write")->required()->option_text("FILE");
  command
      ->add_option("--calibration-data", options.calibration_data,
                   "directory of .npy, .npz or test_data_set_*/input_N.pb, or one .npy or .npz file")
      ->required()
      ->option_text("PATH");
  command->add_option("--method", options.method, "calibration method: minmax")
      ->option_text("NAME")
      ->group("Calibration");
  command->add_option("--samples", options.max_samples, "use at most this many samples")
      ->check(not_negative)
      ->option_text("N")
      ->group("Calibration");
  command->add_option("--batch-size", options.batch_size, "split the files' arrays into batches of this many rows")
      ->option_text("N")
      ->group("Calibration");
  command->add_flag("--histogram", options.histogram, "keep a histogram of each tensor beside its extremes")
      ->group("Calibration");
  command
      ->add_flag("--allow-nonfinite", options.allow_nonfinite, "leave NaN and infinite values out instead of stopping")
      ->group("Calibration");
  add_config(*command, *args);
  command->add_option("--threads", options.threads, "threads of the runtime (default: one per core)")
      ->option_text("N")
      ->group("Running");
  command->add_option("--work-dir", options.work_dir, "where working files go (default: $TMPDIR or /tmp)")
      ->option_text("DIR")
      ->group("Running");
  command
      ->add_option("--runtime", options.runtime,
                   "ONNX Runtime's library (default: $DETENT_ONNXRUNTIME, beside detent, the system's)")
      ->option_text("FILE")
      ->group("Running");
  command
      ->add_option("--external-data-threshold", args->external_threshold,
                   "put tensors of this size and more into OUTPUT.data (default: only when the model would pass 2 GiB)")
      ->option_text("SIZE")
      ->group("Output");
  command->add_option("--prepared-output", options.prepared_output, "also write the float model as it was calibrated")
      ->option_text("FILE")
      ->group("Output");
  command->add_option("--profile", options.profile, "write a profile (YAML) while running")
      ->option_text("FILE")
      ->group("Output");
  command->add_flag("--json", args->json, "print the result as JSON")->group("Output");
  command->callback([args, stop] { run(*args, stop); });
}

}  // namespace detent::cli
