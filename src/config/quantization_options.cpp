// What integers are made, and of what.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr unsigned kQuantizing = kQuantize | kPlan;
constexpr unsigned kCalibrating = kQuantizing | kCalibrate;
constexpr std::string_view kFormat = "Format";
constexpr std::string_view kSelection = "Selection";
constexpr std::string_view kNames = "A,B,…";
constexpr unsigned kSelected = kAnyResult & ~(kFloat32 | kCache | kMixed);

const Option kFormatRows[] = {
    {.name = "activations",
     .at = DETENT_AT(config.activations),
     .commands = kQuantize | kPlan,
     .results = kIntegers | kDynamic,
     .help =
         "where scales of activations come from; static: from samples; dynamic: from the values of each run, so that "
         "no samples are needed",
     .label = "static|dynamic"},
    {.name = "quant-format",
     .at = DETENT_AT(config.quant_format),
     .commands = kQuantize | kPlan,
     .affects = Affects::nothing,
     .results = kIntegers,
     .help = "qdq: float operators between QuantizeLinear and DequantizeLinear; qoperator: operators on integers, "
             "QLinearConv and the like, for old runtimes and tools that read no pairs",
     .label = "FORMAT"},
    {.name = "activation-type",
     .at = DETENT_AT(config.activation_type),
     .affects = Affects::statistics,
     .results = kIntegers,
     .help = "type of activations; types of 4 bits are for weights only",
     .label = "TYPE"},
    {.name = "weight-type",
     .at = DETENT_AT(config.weight_type),
     .results = kIntegers | kBlocks | kDynamic,
     .help = "type of weights; with --weights-only a floating-point type, float4e2m1 only there",
     .label = "TYPE",
     .fallback = "int8"},
    {.name = "activation-symmetric",
     .at = DETENT_AT(config.activation_symmetric),
     .results = kIntegers,
     .help = "zero point of activations in the middle of the type",
     .off = "activation-asymmetric",
     .off_help = "zero point of activations as their range asks for",
     .detail = true},
    {.name = "weight-symmetric",
     .at = DETENT_AT(config.weight_symmetric),
     .results = kIntegers | kBlocks | kDynamic,
     .help = "zero point of weights in the middle of the type",
     .fallback = "symmetric; with --weight-type uint8, uint16 or uint4: asymmetric",
     .off = "weight-asymmetric",
     .off_help = "zero point of weights as their range asks for; per-channel weights are always symmetric",
     .detail = true},
    {.name = "per-channel",
     .at = DETENT_AT(config.per_channel),
     .results = kIntegers | kDynamic,
     .help = "one scale for each output channel of a weight",
     .off = "per-tensor",
     .off_help = "one scale for each weight"},
    {.name = "weight-range",
     .at = DETENT_AT(config.weight_range),
     .results = kIntegers | kDynamic,
     .help = "how far weights use their type. pairs: int8 weights as far as no two of them saturate together on x86 "
             "CPUs without VNNI; reduced: 7 of 8 bits",
     .label = "RANGE",
     .fallback = "pairs; --preset plain: full",
     .detail = true},
    {.name = "power-of-two-scale",
     .at = DETENT_AT(config.power_of_two_scale),
     .results = kIntegers,
     .help = "round scales up to powers of two",
     .detail = true},
    {.name = "block-float",
     .at = DETENT_AT(config.block_float),
     .commands = kQuantize | kPlan,
     .results = kIntegers | kFloat16 | kBlockFloats,
     .help = "neighbouring numbers share an exponent, as AMD Quark's operators round them: activations and weights in "
             "this format instead of integers; needs no samples",
     .label = "FORMAT",
     .detail = true},
    {.name = "float",
     .at = DETENT_AT(config.float_type),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kAnyResult,
     .help = "floating-point type. 16, bf16: float16 or bfloat16 wherever it is safe; nothing is quantized unless a "
             "--preset or --weights-only says so. 32: models of 16-bit floats become float32, and are then quantized",
     .label = "TYPE"},
    {.name = "keep-io-types",
     .at = DETENT_AT(config.keep_io_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kAnyResult & ~kCache,
     .help = "graph inputs and outputs keep their types under --float",
     .off = "no-keep-io-types",
     .off_help = "they get the type of --float",
     .detail = true},
    {.name = "node-formats",
     .at = DETENT_AT(node_formats),
     .commands = kQuantize | kPlan,
     .results = kMixed,
     .help =
         "several formats in one model: each node has the one that the last entry for it says (fp32, int8, a16w8, "
         "int8-dynamic, w8, q8, q4, q2), all others stay in float; '^…' is a regular expression over the whole name",
     .label = "NODE=FORMAT,…",
     .fallback = "one format"},

    {.name = "op-types",
     .at = DETENT_AT(config.op_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kSelected,
     .group = kSelection,
     .help = "quantize only these operator types",
     .label = kNames,
     .fallback = "as the preset says"},
    {.name = "exclude-op-types",
     .at = DETENT_AT(config.exclude_op_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kSelected,
     .group = kSelection,
     .help = "leave these operator types in float",
     .label = kNames},
    {.name = "nodes",
     .at = DETENT_AT(config.nodes),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kSelected,
     .group = kSelection,
     .help = "quantize only these nodes; '^…' is a regular expression over the whole name",
     .label = kNames,
     .fallback = "all"},
    {.name = "exclude-nodes",
     .at = DETENT_AT(config.exclude_nodes),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kSelected,
     .group = kSelection,
     .help = "leave these nodes in float; '^…' is a regular expression over the whole name",
     .label = kNames},
    {.name = "passthrough-op-types",
     .at = DETENT_AT(config.passthrough_op_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .results = kIntegers,
     .group = kSelection,
     .help = "outputs of these types take their input's statistics, as those of Reshape, Transpose and the like do",
     .label = kNames,
     .detail = true},
};

}  // namespace

std::vector<Option> format_options() {
  return table({.commands = kQuantizing, .affects = Affects::integers, .group = kFormat}, kFormatRows);
}

// Weights alone, in blocks.

namespace {

constexpr std::string_view kWeightsOnly = "Weights only";
constexpr std::string_view kCacheGroup = "Cache of keys and values";
// What these go with is said where they are checked.
constexpr unsigned kOfCache = kAnyResult & ~kDynamic;

const Option kWeightsOnlyRows[] = {
    {.name = "weights-only",
     .at = DETENT_AT(weights_only.enabled),
     .help = "quantize weights alone, in blocks that have a scale each; samples are not needed, but make it better"},
    {.name = "bits", .at = DETENT_AT(weights_only.bits), .help = "bits of a weight", .label = "2|4|8"},
    {.name = "block-size",
     .at = DETENT_AT(weights_only.block_size),
     .help = "how many weights share a scale, along the inputs of a layer; channel: all of an output",
     .label = "N|channel"},
    {.name = "scale-type",
     .at = DETENT_AT(weights_only.scale_type),
     .help = "type of the scales of blocks. float: as the weight; float8e8m0: powers of two (MXFP8, MXFP4, MXINT8); "
             "float8e4m3fn: with a float32 scale for the whole weight (NVFP4)",
     .label = "TYPE",
     .detail = true},
    {.name = "node-bits",
     .at = DETENT_AT(weights_only.node_bits),
     .help = "other bits for some nodes, or float; a name that starts with '^' is a regular expression over the whole "
             "name, and of several entries for a node the last counts",
     .label = "NODE=2|4|8|float,…",
     .detail = true},
    {.name = "weights-form",
     .at = DETENT_AT(weights_only.form),
     .help = "matmul-nbits: operators of ONNX Runtime; qdq: DequantizeLinear with blocks, of opset 21",
     .label = "FORM",
     .detail = true},
    {.name = "weights-method",
     .at = DETENT_AT(weights_only.method),
     .help = "nearest: from the extremes of each block; search: scales with the least error, weighted by the samples' "
             "inputs; awq: the same with inputs scaled, with samples; gptq: integers that make up for each other's "
             "errors, with samples; auto: the best of these",
     .label = "METHOD",
     .detail = true},
    {.name = "max-size",
     .at = DETENT_AT(weights_only.max_size),
     .results = kBlocks | kIntegers,
     .help =
         "largest size of the model with its data file, as in 12MiB. With --weights-only: bits of each weight (2, 4, "
         "8 or float) are chosen so that the results change least; with samples, sensitivity is measured with "
         "--bits. Without: the format of each layer is searched, as for --max-latency",
     .label = "SIZE",
     .fallback = "none",
     .form = Form::bytes},
    {.name = "sparsity",
     .at = DETENT_AT(weights_only.sparsity),
     .help = "2:4: two of each four neighbours along a layer's inputs become 0, and the others change to compensate; "
             "with samples, and --set weights-method=gptq or auto",
     .label = "none|2:4",
     .detail = true},
    {.name = "rotation",
     .at = DETENT_AT(weights_only.rotation),
     .help = "rotate a transformer's hidden states, so that no channel stands out; the rotation is folded into the "
             "weights. auto: if that is measured to be better, with samples",
     .label = "off|auto|on",
     .detail = true},
    {.name = "accuracy-level",
     .at = DETENT_AT(weights_only.accuracy_level),
     .help = "type in which matrix products with weights in blocks compute: 0 up to the runtime, 1 float32, 2 float16, "
             "3 bfloat16, 4 int8 (fastest)",
     .label = "N",
     .bounds = {.min = 0, .max = 4},
     .detail = true},
    {.name = "kv-cache",
     .at = DETENT_AT(kv_cache.type),
     .results = kOfCache,
     .group = kCacheGroup,
     .help = "a decoder keeps keys and values in this type, with scales from the samples; beside --weights-only, or "
             "alone with --preset none",
     .label = "keep|int8|int4|fp8"},
    {.name = "kv-cache-per-channel",
     .at = DETENT_AT(kv_cache.per_channel),
     .results = kOfCache,
     .group = kCacheGroup,
     .help = "a scale for each channel of each head instead of one for a layer's keys and one for its values",
     .detail = true},
    {.name = "kv-cache-scales",
     .at = DETENT_AT(kv_cache.scale_file),
     .affects = Affects::nothing,
     .results = kOfCache,
     .group = kCacheGroup,
     .help = "also write these scales (JSON), as kv_cache_scale_file of onnxruntime-genai's model builder",
     .label = "FILE",
     .detail = true},
};

}  // namespace

std::vector<Option> weights_only_options() {
  return table({.commands = kQuantize | kPlan, .affects = Affects::integers, .results = kBlocks, .group = kWeightsOnly},
               kWeightsOnlyRows);
}

// What is measured of accuracy, and what for.

namespace {

constexpr std::string_view kAccuracy = "Accuracy";

const Option kAccuracyRows[] = {
    {.name = "sensitivity",
     .at = DETENT_AT(accuracy.sensitivity),
     .help = "measure the error that each quantized value makes alone; auto: then leave in float what makes most of "
             "it, up to a tenth of the multiplications; report: only print it",
     .label = "auto|off|report",
     .detail = true},
    {.name = "equalize",
     .at = DETENT_AT(accuracy.equalize),
     .help = "auto: equalize the channel ranges of a value where that is measured to halve its error",
     .label = "auto|off",
     .detail = true},
    {.name = "accuracy-fallback",
     .at = DETENT_AT(accuracy.fallback),
     .help = "convolutions and matrix products for which 8 bits are too few stay in float, or get activations of 16 "
             "bits (for NPUs)",
     .label = "float32|int16"},
    {.name = "accuracy-target",
     .at = DETENT_AT(accuracy.target),
     .commands = kQuantizing | kSearch,
     .results = kIntegers | kBlocks,
     .help = "leave as many convolutions and matrix products in float as it takes to reach this value of the metric, "
             "and no more; with --weights-only, give each weight as few bits as reach it",
     .label = "X",
     .usual = kQuantize},
    {.name = "accuracy-metric",
     .at = DETENT_AT(accuracy.metric),
     .commands = kQuantizing | kSearch,
     .results = kIntegers | kBlocks,
     .help = "cosine or sqnr (dB) of the worst output; perplexity of decoders: the float model's, divided by that of "
             "the quantized one; command: the share of the float model's score",
     .label = "cosine|sqnr|perplexity|command"},
    {.name = "accuracy-command",
     .at = DETENT_AT(accuracy.command),
     .commands = kQuantizing | kSearch,
     .results = kIntegers | kBlocks,
     .help = "a program that takes a model's path and prints its score; larger is better",
     .label = "CMD"},
};

}  // namespace

std::vector<Option> accuracy_options() {
  return table({.commands = kQuantizing, .affects = Affects::integers, .results = kIntegers, .group = kAccuracy},
               kAccuracyRows);
}

// What is known of the speed of operators, and what for.

namespace {

constexpr std::string_view kSpeed = "Speed of the result";

const Option kSpeedRows[] = {
    {.name = "optimize-for",
     .at = DETENT_AT(optimize_for),
     .help = "latency: operators that this machine runs faster in float stay in float; accuracy: integers must be a "
             "tenth faster; size: speed does not count",
     .label = "latency|accuracy|size"},
    {.name = "size-worth",
     .at = DETENT_AT(size_worth),
     .help = "what all weights together are worth as integers, in percent of the model's time in float: larger numbers "
             "make the file smaller, and may make the model slower",
     .label = "PERCENT",
     .bounds = {.min = 0},
     .detail = true},
    {.name = "max-latency",
     .at = DETENT_AT(max_latency),
     .commands = kQuantize | kPlan | kSearch,
     .affects = Affects::nothing,
     .help =
         "longest time of the model for one sample on this machine, as in 8ms; quantize then searches for the format "
         "of each layer, like search",
     .label = "TIME",
     .fallback = "none",
     .form = Form::duration,
     .bounds = {.min = 0, .above = true},
     .usual = kSearch},
    {.name = "kernel-table",
     .at = DETENT_AT(kernel_table),
     .commands = kQuantizing | kSearch,
     .help = "file with the times of operators, in float and in integers; missing ones are measured and added; by "
             "default a file of this machine in the user's cache",
     .label = "FILE",
     .detail = true},
};

}  // namespace

std::vector<Option> speed_options() {
  return table({.commands = kQuantizing, .affects = Affects::integers, .results = kIntegers, .group = kSpeed},
               kSpeedRows);
}

// What a search over formats looks for.

namespace {

constexpr std::string_view kSearching = "Search";

const Option kSearchRows[] = {
    {.name = "output",
     .at = DETENT_AT(output),
     .group = "Files",
     .help = "folder to make: front.json, front.html and the chosen models",
     .label = "FOLDER",
     .letter = "-o",
     .required = kSearch,
     .usual = kSearch},
    {.name = "max-size",
     .at = DETENT_AS(max_size, weights_only.max_size),
     .help = "largest size of the model with its data file, as in 12MiB",
     .label = "SIZE",
     .fallback = "none",
     .form = Form::bytes,
     .usual = kSearch},
    {.name = "formats",
     .at = DETENT_AT(formats),
     .affects = Affects::integers,
     .help = "formats that convolutions and matrix products may have",
     .label = "A,B,…",
     .fallback = "fp32,w8,int8,a16w8,int8-dynamic,q8,q4,q2",
     .usual = kSearch},
    {.name = "points",
     .at = DETENT_AT(points),
     .help = "write and measure at most this many mixed models",
     .label = "N",
     .usual = kSearch},
    {.name = "machines",
     .at = DETENT_AT(machines),
     .help = "machines to choose from, with their times of operators and prices; see docs/search.md",
     .label = "FILE",
     .usual = kSearch},
    {.name = "requests",
     .at = DETENT_AT(requests),
     .help = "requests a second that the machines must serve together",
     .label = "N",
     .bounds = {.min = 0, .max = 1e12, .above = true},
     .usual = kSearch},
};

}  // namespace

std::vector<Option> search_options() {
  return table({.commands = kSearch, .affects = Affects::nothing, .group = kSearching}, kSearchRows);
}

// Fine-tuning of weights.

namespace {

constexpr std::string_view kFinetuning = "Fine-tuning";
constexpr Bounds kNotNegative{.min = 0};
constexpr Bounds kPositive{.min = 0, .above = true};
constexpr Bounds kAtLeastOne{.min = 1};
constexpr Bounds kShare{.min = 0, .max = 1};
constexpr std::string_view kIterative = "adaround, adaquant";

const Option kFinetuneRows[] = {
    {.name = "finetune",
     .at = DETENT_AS(finetune.rounding, finetune.solver),
     .help = "find better integers for the weights, layer by layer; nearest: none; auto: gptq if measurements show "
             "that it is needed and helps",
     .label = "METHOD"},
    {.name = "finetune-form",
     .at = DETENT_AT(finetune.form),
     .help = "solve layers from sums over all samples (gram) or in mini-batches of stored activations (streamed); "
             "auto: the cheaper of the two",
     .label = "auto|gram|streamed",
     .detail = true},
    {.name = "finetune-op-types",
     .at = DETENT_AT(finetune.op_types),
     .help = "tune only layers of these types",
     .label = "A,B,…",
     .fallback = "every quantized Conv, ConvTranspose, Gemm and MatMul",
     .detail = true},
    {.name = "finetune-nodes",
     .at = DETENT_AT(finetune.nodes),
     .help = "tune only these nodes; '^…' is a regular expression over the whole name",
     .label = "A,B,…",
     .fallback = "all",
     .detail = true},
    {.name = "only-heaviest-layer",
     .at = DETENT_AT(finetune.only_heaviest_layer),
     .help = "tune only the layer that takes most memory, to see the peak of the whole run early",
     .detail = true},
    {.name = "num-iterations",
     .at = DETENT_AT(finetune.num_iterations),
     .help = "iterations for each layer",
     .label = "N",
     .only = kIterative,
     .bounds = kAtLeastOne,
     .detail = true},
    {.name = "learning-rate",
     .at = DETENT_AT(finetune.learning_rate),
     .help = "learning rate",
     .label = "R",
     .fallback = "adaround 0.1, adaquant 1e-5",
     .only = kIterative,
     .bounds = kPositive,
     .detail = true},
    {.name = "finetune-batch-size",
     .at = DETENT_AT(finetune.batch_size),
     .help = "samples in a mini-batch of the streamed form",
     .label = "N",
     .only = kIterative,
     .bounds = kAtLeastOne,
     .detail = true},
    {.name = "early-stop",
     .at = DETENT_AT(finetune.early_stop),
     .help = "stop a layer when it no longer improves",
     .only = kIterative,
     .detail = true},
    {.name = "drop-ratio",
     .at = DETENT_AT(finetune.drop_ratio),
     .help = "share of a layer's inputs that come from the quantized model; the others come from the float model",
     .label = "P",
     .bounds = kShare,
     .detail = true},
    {.name = "reg-param",
     .at = DETENT_AT(finetune.reg_param),
     .help = "weight of the regularizer",
     .label = "L",
     .only = "adaround",
     .bounds = kNotNegative,
     .detail = true},
    {.name = "beta-range",
     .at = DETENT_AT(finetune.beta_range),
     .help = "exponent of the regularizer, from and to",
     .label = "FROM,TO",
     .only = "adaround",
     .bounds = kPositive,
     .detail = true},
    {.name = "warm-start",
     .at = DETENT_AT(finetune.warm_start),
     .help = "share of iterations without regularizer",
     .label = "P",
     .only = "adaround",
     .bounds = kShare,
     .detail = true},
    {.name = "update-bias",
     .at = DETENT_AT(finetune.update_bias),
     .help = "solve for the biases as well",
     .detail = true},
    {.name = "damping",
     .at = DETENT_AT(finetune.damping),
     .help = "share of the mean diagonal added to the diagonal; up to ten times as much where columns are few",
     .label = "D",
     .only = "gptq",
     .bounds = kNotNegative,
     .detail = true},
    {.name = "activation-order",
     .at = DETENT_AT(finetune.activation_order),
     .help = "round columns in the order of falling diagonal",
     .only = "gptq",
     .off = "no-activation-order",
     .off_help = "round columns in their own order",
     .detail = true},
    {.name = "coordinate-sweeps",
     .at = DETENT_AT(finetune.coordinate_sweeps),
     .help = "sweeps of exact coordinate descent after the method",
     .label = "N",
     .fallback = "gptq 0, others 2",
     .detail = true},
    {.name = "finetune-prefetch",
     .at = DETENT_AT(finetune.num_workers),
     .affects = Affects::nothing,
     .help = "samples read ahead from the spool while a mini-batch is worked on",
     .label = "N",
     .detail = true},
    {.name = "finetune-seed",
     .at = DETENT_AT(finetune.seed),
     .help = "seed of the order of mini-batches",
     .label = "N",
     .detail = true},
};

}  // namespace

std::vector<Option> finetune_options() {
  return table({.commands = kQuantizing, .affects = Affects::integers, .results = kIntegers, .group = kFinetuning},
               kFinetuneRows);
}

}  // namespace detent::config
