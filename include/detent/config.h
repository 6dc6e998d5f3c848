// How tensors are to be quantized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace detent {

/// Types of quantized tensors; those of 4 bits are for weights only, float4e2m1 for weights in blocks only.
enum class QuantType { int8, uint8, int16, uint16, int4, uint4, float8e4m3fn, float8e5m2, float4e2m1 };

constexpr bool is_float(QuantType type) noexcept {
  return type == QuantType::float8e4m3fn || type == QuantType::float8e5m2 || type == QuantType::float4e2m1;
}

/// The floating-point type of what is not quantized. `keep`: as the model has it. `float32`: nodes of 16-bit types are
/// brought to float32 before all else. `float16`, `bfloat16`: all nodes for which the type is safe get it.
enum class FloatType { keep, float32, float16, bfloat16 };

/// How far weights use the range of their type. `full`: all of it. `pairs`: int8 weights of integer products only as
/// far as no two of them saturate the 16 bits in which x86 CPUs before VNNI add them; others as `full`. `reduced`: 7 of
/// 8 bits everywhere, for the same CPUs.
enum class WeightRange { full, pairs, reduced };

/// How quantized nodes are written. `qdq`: as float operators between QuantizeLinear and DequantizeLinear, which every
/// runtime can read. `qoperator`: as operators on integers, as far as ONNX and ONNX Runtime have them.
enum class QuantFormat { qdq, qoperator };

/// Where scales and zero points of activations come from. `fixed`: from samples, before the model is written.
/// `dynamic`: from the values of each run, while it runs; only weights are quantized beforehand.
enum class Activations { fixed, dynamic };

/// Formats of neighbouring numbers that share an exponent, which AMD's NPUs read as operators of AMD Quark's library.
enum class BlockFloat { none, bfp16, mx4, mx6, mx9, mxfp8e5m2, mxfp8e4m3, mxfp6e3m2, mxfp6e2m3, mxfp4e2m1, mxint8 };

/// How tensors are quantized. The defaults are the preset `plain`.
struct QuantConfig {
  /// What the options start from, and what is quantized when the user names nothing. `plain`: all that ONNX Runtime's
  /// quantize_static does, bit for bit. `balanced`: products and convolutions, and the operators that pass integers
  /// from one of them to the next, as far as 8 bits are measured to be enough; the rest stays in float. `none`:
  /// nothing; it goes with a float_type.
  std::string preset = "plain";
  /// Where the model will run: types, symmetry, granularity and fixed grids that this place accelerates
  /// (docs/targets.md); "auto": the best that the ONNX Runtime that is loaded has an execution provider for. What is
  /// measured and done is the preset's.
  std::string target = "ort-cpu";
  /// Shapes that inputs with dynamic axes get for good, by input name.
  std::map<std::string, std::vector<std::int64_t>> input_shapes;
  Activations activations = Activations::fixed;
  QuantFormat quant_format = QuantFormat::qdq;
  QuantType activation_type = QuantType::uint8;
  QuantType weight_type = QuantType::int8;
  /// Zero point in the middle of the integer range, scale from the larger of |min| and |max|.
  bool activation_symmetric = false;
  /// Unset: symmetric for signed weight types.
  std::optional<bool> weight_symmetric;
  /// One scale for each output channel of a weight instead of one for the tensor.
  bool per_channel = true;
  WeightRange weight_range = WeightRange::full;
  /// Scales are powers of two: the smallest that covers the range.
  bool power_of_two_scale = false;

  /// Activations and weights are rounded to this format instead of integers.
  BlockFloat block_float = BlockFloat::none;

  FloatType float_type = FloatType::keep;
  /// Whether graph inputs and outputs keep their types where float_type changes others.
  bool keep_io_types = true;

  /// Operator types to quantize; empty: all that detent knows how to place.
  std::vector<std::string> op_types;
  std::vector<std::string> exclude_op_types;
  /// Node names, or regular expressions (ECMAScript, matched against the whole name) when they start with '^'. A node
  /// without a name goes by its first output. Empty `nodes`: all.
  std::vector<std::string> nodes;
  std::vector<std::string> exclude_nodes;
  /// Set by runs that give nodes formats of their own (QuantizeOptions::node_formats): others of the model are
  /// quantized already, and what is selected has the format that was given to it, whatever is measured.
  bool formats_given = false;
  /// Beside formats_given, the nodes whose activations get 16 bits whatever activation_type says.
  std::vector<std::string> wide_nodes;

  /// Operator types whose outputs take the statistics of their first input instead of being observed (selective
  /// calibration), beside those that only move values: Reshape, Transpose, Squeeze, Unsqueeze, Flatten, DepthToSpace,
  /// SpaceToDepth.
  std::vector<std::string> passthrough_op_types;
};

/// The format that a preset starts from. Throws usage for a name that is none.
QuantConfig preset_config(std::string_view preset);

/// How weights in blocks are written. `matmul_nbits`: operators MatMulNBits and GatherBlockQuantized of ONNX Runtime.
/// `qdq`: DequantizeLinear with a block size, of opset 21.
enum class WeightForm { matmul_nbits, qdq };

/// How the scales, zero points and integers of blocks are found. `nearest`: from the extremes of each block, with the
/// bytes of ONNX Runtime's MatMulNBitsQuantizer. `search`: those with the least error, weighted by what the samples'
/// inputs are, if there are samples. `awq`: the same with inputs scaled first, where what makes them can be scaled the
/// other way; needs samples. `gptq`: each integer also makes up for the errors of those before it; needs samples.
/// `automatic`: the best that is there, inputs scaled as well where it helps.
enum class WeightMethod { automatic, nearest, search, awq, gptq };

/// `two_of_four`: of each four neighbours along the inputs of a product two become 0, and the others make up for them.
enum class WeightSparsity { none, two_of_four };

/// The type of the scales of blocks. `as_weight`: the weight's own. `float8e8m0`: powers of two, as in the OCP
/// Microscaling formats. `float8e4m3fn`: with a float32 scale for the whole weight besides, as in NVFP4.
enum class ScaleType { as_weight, float8e8m0, float8e4m3fn };

/// Whether the residual stream of a transformer is rotated before weights become blocks, by an orthogonal matrix that
/// is folded into the weights that write and read it. `automatic`: where that is measured to help on the samples.
enum class Rotation { off, automatic, on };

/// The type of a decoder's cache of keys and values. `keep`: as the model has it.
enum class KvCacheType { keep, int8, int4, float8e4m3fn };

/// The cache of keys and values in fewer bits, with scales from the samples.
struct KvCacheConfig {
  KvCacheType type = KvCacheType::keep;
  /// One scale for each channel of each head instead of one for all keys, and one for all values, of a layer.
  bool per_channel = false;
  /// Also write the scales to this file, in the form that the model builder of onnxruntime-genai reads.
  std::optional<std::filesystem::path> scale_file = {};
};

enum class WeightBits { two = 2, four = 4, eight = 8 };
/// Neighbours along the inputs of a product that share a scale; `channel`: all of them.
enum class BlockSize { channel = 0, of16 = 16, of32 = 32, of64 = 64, of128 = 128, of256 = 256 };

/// Weights alone, in blocks; activations stay in float. Integers of `bits`, unless QuantConfig::weight_type is a
/// floating-point type. Whether blocks have zero points is QuantConfig::weight_symmetric; unset: they have, where they
/// are integers with scales of the weight's type.
struct WeightsOnlyConfig {
  bool enabled = false;
  WeightBits bits = WeightBits::four;
  BlockSize block_size = BlockSize::of32;
  ScaleType scale_type = ScaleType::as_weight;
  WeightForm form = WeightForm::matmul_nbits;
  WeightMethod method = WeightMethod::automatic;
  /// What MatMulNBits computes with: 0 up to the runtime, 1 float32, 2 float16, 3 bfloat16, 4 int8.
  int accuracy_level = 4;
  /// "NODE=2", "=4", "=8" or "=float": other bits for some nodes, by name or '^' pattern; of several the last counts.
  std::vector<std::string> node_bits;
  /// Bytes that the written model may have, with its data file. Where `enabled`: 2, 4 or 8 bits or float for each
  /// weight that node_bits does not name, chosen so that the results change least. `bits` is then what sensitivity is
  /// measured with.
  std::optional<std::uint64_t> max_size;
  /// Needs samples and the methods gptq or automatic.
  WeightSparsity sparsity = WeightSparsity::none;
  Rotation rotation = Rotation::off;
};

/// How the range of an activation follows from its statistics.
enum class CalibrationMethod { minmax, percentile, layerwise_percentile, mse, entropy };
/// Their names, in the order of the enumerators.
inline constexpr std::string_view kCalibrationMethods[] = {"minmax", "percentile", "layerwise-percentile", "mse",
                                                           "entropy"};
enum class ErrorMetric { mae, mse };

struct MethodConfig {
  CalibrationMethod method = CalibrationMethod::minmax;
  /// minmax: the mean over samples of each sample's smallest and largest value.
  bool average = false;
  /// percentile: percent of the values that the range keeps.
  double percentile = 99.999;
  /// percentile, layerwise-percentile: cut both tails equally instead of taking one percentile of |x|.
  bool two_sided = false;
  /// layerwise-percentile: the candidates, and the error that decides between them.
  std::vector<double> candidates{99.99, 99.999, 99.99999};
  ErrorMetric metric = ErrorMetric::mae;
  /// mse with power-of-two scales: the scale that is best for most samples instead of for all values together.
  bool most_common = false;
  /// entropy: bins of the histogram of |x|, and levels that they are merged into.
  std::size_t entropy_bins = 2048;
  std::size_t entropy_levels = 128;
};

/// The method that a preset starts from. Throws usage for a name that is none.
MethodConfig preset_method(std::string_view preset);

/// What is done differently for one activation.
struct TensorOverride {
  std::string tensor;  // or a pattern that starts with '^'
  std::optional<CalibrationMethod> method;
  std::optional<std::pair<float, float>> range;  // min, max
};

/// Whether the preset `balanced` measures the error that each quantized value makes alone. `automatic` then leaves in
/// float what makes most of it, up to a tenth of the multiplications; `report` only reports; `off` measures nothing.
enum class SensitivityMode { automatic, off, report };

/// Whether the channel ranges of a value are equalized before it is quantized, where that is measured to remove at
/// least half of its error: each channel is divided by a factor, and the weights that read it are multiplied by it.
enum class EqualizeMode { automatic, off };

/// How near the results are to the float model's: the cosine of each output over all samples, its signal to
/// quantization noise ratio in dB, for decoders the float model's perplexity divided by that of the quantized model, or
/// what the user's command or function says. Of several outputs the worst counts.
enum class AccuracyMetric { cosine, sqnr, perplexity, command };

/// What becomes of products for which 8 bits are too few: they stay in float, or their activations get 16 bits, with
/// the sign of QuantConfig::activation_type, while their weights stay as they are.
enum class AccuracyFallback { float32, int16 };

/// What is to be done about accuracy, under the preset `balanced`.
struct AccuracyConfig {
  SensitivityMode sensitivity = SensitivityMode::automatic;
  EqualizeMode equalize = EqualizeMode::automatic;
  /// Methods tried beside MethodConfig::method for the values that cause most of the error.
  std::vector<CalibrationMethod> other_methods{CalibrationMethod::minmax, CalibrationMethod::percentile};
  AccuracyFallback fallback = AccuracyFallback::float32;
  /// As many products fall back as it takes to reach this value of the metric, and no more; of weights alone, each gets
  /// as few bits as that leaves. For a command or a function it is a share of the float model's score f, where a score
  /// s counts as 1 - (f - s) / |f|: s / f for positive scores, and less than 1 for every score below f, also a negative
  /// one. A float score of zero is refused.
  std::optional<double> target;
  AccuracyMetric metric = AccuracyMetric::cosine;
  /// Run by the shell with a model's path as its last argument; the last number that it prints is the score, the
  /// larger the better. It runs in a process group of its own, without input, and a stop request ends all of it.
  std::string command;
  /// Instead of the command: a function of a model's path.
  std::function<double(const std::filesystem::path&)> score = {};
};

/// What decides, under the preset `balanced`, whether an operator computes on integers where 8 bits are enough.
/// `latency`: whether it is faster, with the conversions that this takes, on this machine. `accuracy`: whether it is a
/// tenth faster. `size`: all do; or, where no format is named and the file is smaller so, none, with weights of 8 bits.
enum class OptimizeFor { latency, accuracy, size };

/// How the integers of weights are found. `automatic`: each to the nearest; under the preset `balanced` by gptq where
/// the rounding of weights is measured to make much of the error and gptq to reduce it.
enum class WeightSolver { automatic, nearest, adaround, adaquant, gptq };
/// Their names, in the order of the enumerators.
inline constexpr std::string_view kWeightSolvers[] = {"auto", "nearest", "adaround", "adaquant", "gptq"};

/// Whether a method was named that looks for better integers than the nearest.
constexpr bool tunes(WeightSolver solver) noexcept {
  return solver != WeightSolver::nearest && solver != WeightSolver::automatic;
}

/// In which form a layer is solved: from sums over all samples, or in mini-batches of stored activations.
enum class FinetuneForm { automatic, gram, streamed };

/// Fine-tuning of the weights of one layer after another against the float model's outputs. Defaults of numbers that
/// are unset depend on the rounding.
struct FinetuneConfig {
  WeightSolver solver = WeightSolver::automatic;
  FinetuneForm form = FinetuneForm::automatic;
  /// Operator types, node names and '^' patterns to tune; empty: every quantized Conv, ConvTranspose, Gemm, MatMul.
  std::vector<std::string> op_types;
  std::vector<std::string> nodes;
  /// Only the layer that takes most memory, so that the peak of the whole is known early.
  bool only_heaviest_layer = false;
  std::size_t num_iterations = 1000;
  std::optional<double> learning_rate;  // adaround 0.1, adaquant 1e-5
  std::size_t batch_size = 1;           // samples in a mini-batch of the streamed form
  bool early_stop = false;
  /// Share of input elements that come from the quantized model; the others come from the float model.
  double drop_ratio = 1.0;
  double reg_param = 0.01;                          // adaround: weight of the regularizer
  std::pair<double, double> beta_range{20.0, 2.0};  // adaround: its exponent, from and to
  double warm_start = 0.2;                          // adaround: share of iterations without regularizer
  bool update_bias = false;                         // the bias is solved for as well
  /// gptq: damping, as a share of the mean of the diagonal (up to ten times as much where columns are few), and whether
  /// columns go by falling diagonal.
  double damping = 0.01;
  bool activation_order = true;
  /// Sweeps of exact coordinate descent over all integers after the method; gptq 0, the others 2.
  std::optional<std::size_t> coordinate_sweeps;
  std::uint64_t seed = 1705472343;
  /// Samples that are read ahead while a mini-batch is worked on, each by a thread of its own; the result is the same
  /// for any number.
  std::size_t num_workers = 0;
};

}  // namespace detent
