// Groups of options that several subcommands have in common, spelled and explained in one place.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "detent/config.h"
#include "detent/quantize.h"

namespace detent::cli {

/// Which samples are used and how. References to where the values go.
struct Sampling {
  std::size_t& max_samples;
  std::int64_t& batch_size;
  bool& allow_nonfinite;
};
void add_sampling(CLI::App& command, Sampling into);

/// Adds --preset. What the preset asks for is set once the command line has been read, where no option says otherwise:
/// the format and the method are those of `config` and, where the command has them, `method`.
void add_preset(CLI::App& command, QuantConfig& config, MethodConfig* method = nullptr);

/// How the range of an activation follows from its statistics.
void add_method(CLI::App& command, MethodConfig& method, std::vector<TensorOverride>& overrides);

/// What integers are made.
void add_format(CLI::App& command, QuantConfig& config);

/// What is quantized, and so observed.
void add_selection(CLI::App& command, QuantConfig& config);

/// What is measured of accuracy, and what for.
void add_accuracy(CLI::App& command, AccuracyConfig& config);

struct Running {
  int& threads;
  int& workers;
  std::optional<std::filesystem::path>& runtime;
};
void add_running(CLI::App& command, Running into);

/// Fine-tuning of weights.
void add_finetune(CLI::App& command, FinetuneConfig& config);

/// GPUs.
void add_device(CLI::App& command, DeviceConfig& device);

/// Memory, disk, and going on after an interruption.
void add_resources(CLI::App& command, Resources& resources);

/// What tells where time and memory went.
struct Profiling {
  std::optional<std::filesystem::path>& profile;
  std::optional<std::filesystem::path>& report;
  std::optional<std::filesystem::path>& trace;
};
void add_profiling(CLI::App& command, Profiling into);

/// All that decides what quantize() makes of a model.
void add_quantization(CLI::App& command, QuantizeOptions& options);

}  // namespace detent::cli
