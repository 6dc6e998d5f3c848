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

#include "detent/error.h"
#include "detent/latency.h"
#include "detent/options.h"
#include "detent/stage_report.h"
#include "detent/transformer.h"

namespace detent {

struct FamilyMember;

using QuantizeOptions = Options;

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
  std::vector<std::string> sample_names;       // the first 1,000, with the rows of parts: "a.npz[4:5]"
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
  /// Changes to the graph ("graph: …"), and every deviation from what was asked for.
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
