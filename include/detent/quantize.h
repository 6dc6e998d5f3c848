// Static quantization: a float ONNX model and calibration samples in, a model with QuantizeLinear/DequantizeLinear out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/config.h"
#include "detent/device.h"
#include "detent/error.h"
#include "detent/profile.h"
#include "detent/progress.h"
#include "detent/resources.h"
#include "detent/samples.h"
#include "detent/stage_report.h"

namespace detent {

struct LayerTuning;

struct QuantizeOptions {
  std::filesystem::path model;
  std::filesystem::path output;
  /// Samples, or statistics taken from them before, or both: the statistics are then checked to be of these samples.
  std::optional<std::filesystem::path> calibration_data;
  /// Samples in memory instead of calibration_data; must outlive the run.
  SampleStream* samples = nullptr;
  std::optional<std::filesystem::path> statistics;
  QuantConfig config = preset_config(Preset::balanced);
  MethodConfig method = preset_method(Preset::balanced);
  std::vector<TensorOverride> overrides;
  AccuracyConfig accuracy;
  FinetuneConfig finetune;
  /// Where calibration (on the first of them) and fine-tuning compute.
  DeviceConfig device;
  /// Count and leave out NaN and infinite values instead of stopping at the first.
  bool allow_nonfinite = false;
  std::size_t max_samples = 0;  // 0: all
  std::int64_t batch_size = 0;  // rows per run; 0: as the files have them
  int threads = 0;              // of the runtime; 0: one per core
  int workers = 1;              // samples at a time
  /// Tensors of at least this many bytes go to a file beside the output; unset: only when the model would pass 2 GiB.
  std::optional<std::uint64_t> external_data_threshold;
  /// Also write the float model as it was calibrated, after the graph rewrites.
  std::optional<std::filesystem::path> prepared_output;
  std::optional<std::filesystem::path> profile;
  /// Takes up the stages instead of a profile of this run's own; must outlive the run.
  Profiler* profiler = nullptr;
  /// One HTML file that shows where time, memory and bytes went, and what each layer and tensor lost. With calibration
  /// data both models run on a few samples for it.
  std::optional<std::filesystem::path> report;
  /// Stages and layers in the Chrome trace format.
  std::optional<std::filesystem::path> trace;
  /// The command line, for the report.
  std::vector<std::string> command;
  /// ONNX Runtime's library; unset: searched.
  std::optional<std::filesystem::path> runtime;
  Resources resources;
  Progress progress;
  /// Told of each layer as soon as fine-tuning has solved it.
  std::function<void(const LayerTuning&)> layer_tuned;
  std::stop_token stop;
};

/// Scale and zero point given to a tensor.
struct TensorParams {
  float scale = 1;
  std::int32_t zero_point = 0;
  float range_min = 0;
  float range_max = 0;
  /// Where the range comes from: the name of a calibration method, "given" (TensorOverride::range), or "operator", as
  /// of Softmax.
  std::string method;
};

/// What fine-tuning did to a layer. Errors are mean squares over the elements of the layer's output.
struct LayerTuning {
  std::string name;
  std::string op_type;
  bool streamed = false;    // solved in mini-batches instead of the Gram form
  bool tuned = false;       // false: nearest rounding was better on the samples held back
  double error_before = 0;  // nearest rounding
  double error_after = 0;   // of what is kept
  double seconds = 0;       // of solving
};

/// What one quantized value does to the results when it alone is rounded.
struct Sensitivity {
  std::string value;
  std::string node;  // that makes it; of a weight: that reads it
  bool is_weight = false;
  double error = 0;  // mean over the outputs of the sum of squared differences over the sum of squares
};

/// A value whose channels were made alike. Errors as of Sensitivity, of the value and the weights that read it.
struct EqualizedValue {
  std::string value;
  double error_before = 0;
  double error_after = 0;
};

/// A value whose range comes from another method than that of the others. Errors as of Sensitivity.
struct MethodChoice {
  std::string value;
  std::string method;
  double error_before = 0;
  double error_after = 0;
};

/// A convolution or matrix product that 8 bits do not serve: left in float, or given activations of 16 bits.
struct FallbackNode {
  std::string node;
  double error_share = 0;  // of the error with everything in integers
  double macs_share = 0;   // of the model's multiplications
};

/// What gptq did under Rounding::automatic.
struct TunedWeights {
  double error_before = 0;  // geometric mean over outputs and samples, everything rounded, weights to the nearest
  double error_after = 0;
  bool kept = false;  // false: it was no better, and weights are rounded to the nearest
};

/// How near the results are to the float model's, measured on some of the samples.
struct AccuracyResult {
  std::size_t samples = 0;
  double sqnr_all_db = 0;       // of the worst output, with every product in integers
  double sqnr_db = 0;           // as chosen
  double cosine = 0;            // as chosen; of the worst output
  std::optional<double> score;  // of AccuracyConfig::command, as a share of the float model's
  double integer_macs = 0;      // share of the multiplications that are made on integers,
  double wide_macs = 0;         // and of all, of those that read an activation of 16 bits
  double weights_share = 0;     // of the error that rounding to the nearest leaves: what weights make
  std::optional<TunedWeights> tuned;
  std::vector<EqualizedValue> equalized;
  std::vector<MethodChoice> methods;
  std::vector<FallbackNode> float_nodes;
  std::vector<FallbackNode> wide_nodes;    // with activations of 16 bits
  std::vector<Sensitivity> sensitivities;  // worst first
};

struct QuantizeResult {
  std::uint64_t samples = 0;
  std::uint64_t model_bytes_before = 0;
  std::uint64_t model_bytes_after = 0;  // model and data file
  std::size_t nodes_quantized = 0;
  std::size_t nodes_in_float = 0;  // of the selected operator types
  /// Activations by name.
  std::map<std::string, TensorParams> activations;
  /// Unless nothing was measured.
  std::optional<AccuracyResult> accuracy;
  /// Layers in the order of the model; empty without fine-tuning.
  std::vector<LayerTuning> layers;
  /// What was done to the graph, and everything that was left out or done differently from what was asked.
  std::vector<std::string> notes;
  std::vector<StageReport> stages;
  std::uint64_t peak_memory = 0;  // bytes, the process's own high-water mark
};

/// Quantizes a model. The output appears whole or not at all. Throws Error.
QuantizeResult quantize(const QuantizeOptions& options);

}  // namespace detent
