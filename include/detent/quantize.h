// Static quantization: a float ONNX model and calibration samples in, a model with Q/DQ pairs out.
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
#include "detent/latency.h"
#include "detent/profile.h"
#include "detent/progress.h"
#include "detent/resources.h"
#include "detent/samples.h"
#include "detent/stage_report.h"
#include "detent/transformer.h"

namespace detent {

struct FamilyMember;
struct LayerTuning;

struct QuantizeOptions {
  /// A file, or a folder as onnxruntime-genai, optimum and transformers.js have them; then the output is a new folder
  /// of the same layout, with the other files in it.
  std::filesystem::path model;
  std::filesystem::path output;
  /// The name of the format that the options below make, as options_of_format() sets them; empty: they speak for
  /// themselves.
  std::string format = {};
  /// Several results of one model, by the names that transformers.js has for them: fp32, fp16, q8, int8, uint8, q4,
  /// q4f16. Each is what it is with options of its own (docs/language-models.md); the output is then a new folder, also
  /// of a file, and samples go through the model once.
  std::vector<std::string> family;
  /// The format of single nodes: "NODE=FORMAT", by name or '^' pattern, with fp32, int8, a16w8, int8-dynamic, q8, q4 or
  /// q2; of several entries for a node the last counts, and nodes without one stay in float. Not empty: one model in
  /// all these formats (docs/search.md).
  std::vector<std::string> node_formats;
  /// Samples, or statistics made from them earlier, or both; the statistics are then checked against the samples.
  std::optional<std::filesystem::path> calibration_data;
  /// Samples in memory instead of calibration_data; must outlive the run.
  SampleStream* samples = nullptr;
  std::optional<std::filesystem::path> statistics;
  QuantConfig config = preset_config("balanced");
  MethodConfig method = preset_method("balanced");
  std::vector<TensorOverride> overrides;
  AccuracyConfig accuracy;
  OptimizeFor optimize_for = OptimizeFor::latency;
  /// What all weights together are worth as integers, in percent of the model's time in float: the larger, the smaller
  /// the file and the slower the model may become. Not for OptimizeFor::accuracy and size.
  double size_worth = 2;
  /// Seconds that a sample may take on this machine, as measured. With it, or with weights_only.max_size where weights
  /// alone are not asked for, the format of each node is searched as search() does, and the model that meets them, and
  /// the accuracy target, is made. Throws resource, naming the nearest, where none does.
  std::optional<double> max_latency;
  /// How long operators take; what is missing is measured and added. Unset: a file of this machine in the user's cache.
  std::optional<std::filesystem::path> kernel_table;
  FinetuneConfig finetune;
  /// Quantizes weights alone; samples are then optional, and what concerns activations is not used.
  WeightsOnlyConfig weights_only;
  KvCacheConfig kv_cache;
  /// Devices for calibration (the first only) and fine-tuning.
  DeviceConfig device;
  /// Count and ignore NaN and infinite values instead of stopping at the first.
  bool allow_nonfinite = false;
  std::size_t max_samples = 0;  // 0: all
  std::int64_t batch_size = 0;  // rows per run; 0: as the files have them
  /// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".
  std::vector<std::string> input_values;
  int threads = 0;  // of the runtime; 0: one per core
  int workers = 1;  // samples run at a time
  /// Tensors of at least this many bytes go to a file beside the output; unset: only if the model would exceed 2 GiB.
  std::optional<std::uint64_t> external_data_threshold;
  /// The name of that file is the output's and this; empty: `OUTPUT.<16 hex digits>.data` by its contents, so that a
  /// model that stands at the output works until the new one takes its place, and its own data file goes then. With a
  /// fixed name both files are replaced one after the other.
  std::string external_data_suffix = {};
  /// Also write the float model as it was calibrated, after the graph rewrites.
  std::optional<std::filesystem::path> prepared_output;
  std::optional<std::filesystem::path> profile;
  /// Records the stages instead of a profile of this run's own; must outlive the run.
  Profiler* profiler = nullptr;
  /// An HTML file that shows where time, memory and bytes went, and the error of each layer and tensor. For it, both
  /// models run on a few samples if there are calibration data.
  std::optional<std::filesystem::path> report;
  /// Stages and layers in the Chrome trace format.
  std::optional<std::filesystem::path> trace;
  /// The command line, for the report.
  std::vector<std::string> command;
  /// Time the float and the quantized model side by side at the end, for about 3 % of the run, at least 0.2 s.
  bool bench = true;
  /// ONNX Runtime's library; unset: the usual places are searched.
  std::optional<std::filesystem::path> runtime;
  Resources resources;
  Progress progress;
  /// Called when a run knows that a stage to come takes so many times as long as it does as a rule; 0: it is left out.
  std::function<void(const std::string& stage, double times)> stage_expected;
  /// Called for each layer as soon as fine-tuning has solved it.
  std::function<void(const LayerTuning&)> layer_tuned;
  std::stop_token stop;
};

/// The options that make a format of this name: int8, int8-dynamic, uint8-dynamic, int8-qoperator, a16w8, q8, q4, q2,
/// q4f16, fp16, bf16, fp8, mxfp8, mxfp4, nvfp4, bfp16. Throws usage for another name.
QuantizeOptions options_of_format(std::string_view name);

/// Scale and zero point of a tensor.
struct TensorParams {
  float scale = 1;
  std::int32_t zero_point = 0;
  float range_min = 0;
  float range_max = 0;
  /// Where the range comes from: the name of a calibration method, "given" (TensorOverride::range), or "operator" (as
  /// for Softmax).
  std::string method;
};

/// The result of fine-tuning a layer. Errors are mean squares over the elements of the layer's output.
struct LayerTuning {
  std::string name;
  std::string op_type;
  bool streamed = false;    // solved in mini-batches, not in the Gram form
  bool tuned = false;       // false: nearest rounding was better on the held-back samples, or none was seen
  bool seen = true;         // false: no sample came to the body of an If, Loop or Scan that it stands in
  double error_before = 0;  // of nearest rounding
  double error_after = 0;   // of the rounding that is kept
  double seconds = 0;       // of solving
};

/// A weight that is stored in blocks.
struct BlockedWeight {
  std::string name;
  std::string node;     // the first that reads it
  std::string op_type;  // of that node
  int bits = 4;
  std::int64_t block_size = 32;  // 0: a whole column
  std::int64_t rows = 0;         // along which blocks lie
  std::int64_t columns = 0;
  std::string method;  // that found its integers
  double sqnr_db = 0;  // of its values; infinite if they are exact
  /// Sum of squared errors of the product over that of its results, on the samples; unset without samples.
  std::optional<double> output_error;
  /// With sparsity: what output_error would be without it.
  std::optional<double> dense_error;
  /// The exponent of AWQ that the product's inputs are scaled with; unset: they are not.
  std::optional<double> input_exponent;
};

/// What WeightsOnlyConfig::max_size or an accuracy target came to for a weight.
struct PlannedWeight {
  std::string name;
  std::string node;  // the first that reads it
  int bits = 4;      // 0: it stays in float
  std::uint64_t bytes = 0;
  double error = 0;  // that is expected; see BitsPlan
};

/// A model that was written on the way to AccuracyConfig::target, and the metric that was measured of it.
struct MeasuredSize {
  std::uint64_t size = 0;
  double value = 0;
};

/// The choice of bits under WeightsOnlyConfig::max_size, or for an accuracy target.
struct BitsPlan {
  std::uint64_t max_size = 0;  // for a target, that with which it was reached
  std::uint64_t size = 0;      // that is expected, of model and data file
  /// That is expected: with samples of the worst output, the sum of squared errors over that of squares; without, the
  /// sum of these shares over the weights themselves.
  double error = 0;
  std::vector<PlannedWeight> weights;  // in the order of the model
  std::optional<double> reached = {};  // of the metric, where there is a target
  std::vector<MeasuredSize> tried = {};
};

/// The error at the model's outputs if this value alone is rounded.
struct Sensitivity {
  std::string value;
  std::string node;  // that computes the value; for a weight, that reads it
  bool is_weight = false;
  double error = 0;  // sum of squared differences over the sum of squares, of the worst output or part of one
};

/// A value whose channel ranges were equalized. Errors as in Sensitivity, with the weights that read it rounded too.
struct EqualizedValue {
  std::string value;
  double error_before = 0;
  double error_after = 0;
};

/// A value whose range comes from another calibration method. Errors as in Sensitivity.
struct MethodChoice {
  std::string value;
  std::string method;
  double error_before = 0;
  double error_after = 0;
};

/// A convolution or matrix product that fell back: it stays in float, or got 16-bit activations.
struct FallbackNode {
  std::string node;
  double error_share = 0;  // of the error with every product in integers
  double macs_share = 0;   // of the model's multiplications
};

/// The effect of gptq under WeightSolver::automatic.
struct TunedWeights {
  double error_before = 0;  // geometric mean over outputs and samples, everything rounded, weights to the nearest
  double error_after = 0;
  bool kept = false;  // false: gptq was not better, and weights are rounded to the nearest
};

/// Neighbouring channels of an output whose values are of another size than the rest: one figure for the output does
/// not show them.
struct ChannelGroup {
  std::string output;
  std::size_t axis = 0, first = 0, last = 0;  // channels of this axis, both ends included
  double sqnr_db = 0;
};

/// How close the outputs are to the float model's, measured on some of the samples: of the written file, run by ONNX
/// Runtime with its default options, where nothing else is said.
struct AccuracyResult {
  std::size_t samples = 0;
  std::vector<std::string> sample_names;       // files, with the rows of parts: "a.npz[4:5]"; empty: the first ones
  double sqnr_db = 0;                          // of the worst output over all these samples
  std::optional<double> worst_sample_db;       // of the sample, and output, that is farthest
  double cosine = 0;                           // of the worst output
  std::vector<std::string> lost_channels;      // a sentence for channels of an output that the file leaves constant
  std::optional<ChannelGroup> worst_channels;  // unset: none is clearly worse than its output
  std::optional<double> rounded_db;            // the worst output's where devices round to the file's 16-bit floats
  std::optional<double> score;         // by AccuracyMetric::command or perplexity, as a share of the float model's
  std::optional<double> integer_macs;  // share of the multiplications that use integers; unset: not counted
  double wide_macs = 0;                // share of the multiplications that read a 16-bit activation
  double weights_share = 0;            // share of weights in the error with nearest rounding
  std::optional<TunedWeights> tuned;
  std::vector<EqualizedValue> equalized;
  std::vector<MethodChoice> methods;
  std::vector<FallbackNode> float_nodes;
  std::vector<FallbackNode> wide_nodes;    // with 16-bit activations
  std::vector<Sensitivity> sensitivities;  // worst first
};

/// The float model's latency and the result's, where both run as deployed. Ratios of `after` are to `before`.
struct LatencyChange {
  Latency before, after;
  int threads = 0;
  std::size_t samples = 0;
  bool synthetic = false;  // the samples
  bool of_target = true;   // false: the target is another device, of whose speed this says nothing
};

/// What Rotation came to. Errors as in AccuracyResult, of the model with its weights in blocks.
struct RotatedStream {
  double error_before = 0;
  double error_after = 0;
  bool kept = false;
};

/// Scales of one layer's cache: one, or one for each channel of each head.
struct KvScales {
  std::int64_t layer = 0;
  std::vector<float> keys;
  std::vector<float> values;
};

/// What became 16-bit floats.
struct FloatConversion {
  std::size_t nodes = 0;       // that compute in 16 bits
  std::size_t nodes_kept = 0;  // with float32 values, that stay
  std::size_t casts = 0;       // added
  double constants = 0;        // share of the bytes of float32 constants that were converted
};

/// Whether the written model can be put to use.
struct Outcome {
  /// yes: close to the float model, and faster or smaller. look: something should be looked at before. no: the outputs
  /// are far from the float model's.
  enum class Answer { yes, look, no };

  Answer answer = Answer::look;
  std::string headline;              // a sentence or two
  std::vector<std::string> reasons;  // for anything but yes, a sentence each
};

/// The result of quantize().
struct QuantizeResult {
  Outcome outcome;
  std::uint64_t samples = 0;
  std::uint64_t repeated_samples = 0;  // that were the same as an earlier one, where calibration ran
  std::uint64_t model_bytes_before = 0;
  std::uint64_t model_bytes_after = 0;  // model and data file
  std::size_t nodes_quantized = 0;
  std::size_t nodes_in_float = 0;  // all other products, in bodies as well, and selected nodes
  /// Operators that could compute on integers, but are faster in float on this machine; see OptimizeFor.
  std::vector<std::string> faster_in_float;
  /// Activations by name.
  std::map<std::string, TensorParams> activations;
  /// Unset if nothing was measured.
  std::optional<AccuracyResult> accuracy;
  /// Unset if it was not measured; then a note says why.
  std::optional<LatencyChange> latency;
  /// Weights in blocks, in the order of the model; empty unless weights alone were quantized.
  std::vector<BlockedWeight> weights;
  /// Unset without WeightsOnlyConfig::max_size.
  std::optional<BitsPlan> bits_plan;
  /// Unset unless rotation was tried.
  std::optional<RotatedStream> rotated;
  /// Empty unless KvCacheConfig asks for a type.
  std::vector<KvScales> kv_scales;
  /// Unset unless a 16-bit QuantConfig::float_type was asked for.
  std::optional<FloatConversion> floats;
  /// Layers in the order of the model; empty without fine-tuning.
  std::vector<LayerTuning> layers;
  /// Changes to the graph, and every deviation from what was asked for.
  std::vector<std::string> notes;
  /// What some versions of ONNX Runtime have to be told before they load the file, a sentence each.
  std::vector<std::string> conditions;
  std::vector<StageReport> stages;
  std::uint64_t peak_memory = 0;           // [bytes] the process's own high-water mark
  std::optional<Transformer> transformer;  // what the float model has of one
  /// The results of QuantizeOptions::family in its order; then sizes and samples are those of all, and what concerns a
  /// single model is told there.
  std::vector<FamilyMember> family;
  /// Of the processes that MPI started. Rank 0 alone has a result and has written the output.
  int rank = 0;
  int ranks = 1;
  std::uint64_t received_bytes = 0;  // that rank 0 got of the others
};

struct FamilyMember {
  std::string name;              // "q4"
  std::filesystem::path output;  // its file
  QuantizeResult result;
};

/// Quantizes a model. The output is written completely or not at all. Throws Error.
QuantizeResult quantize(const QuantizeOptions& options);

}  // namespace detent
