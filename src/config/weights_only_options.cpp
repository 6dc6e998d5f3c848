// Weights alone, in blocks.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr std::string_view kWeightsOnly = "Weights only";
constexpr std::string_view kCacheGroup = "Cache of keys and values";
// What these go with is said where they are checked.
constexpr unsigned kOfCache = kAnyResult & ~kDynamic;

const Option kRows[] = {
    {.name = "weights-only",
     .at = DETENT_AT(weights_only.enabled),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "quantize weights alone, in blocks that have a scale each; samples are not needed, but make it better"},
    {.name = "bits",
     .at = DETENT_AT(weights_only.bits),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "bits of a weight",
     .label = "2|4|8"},
    {.name = "block-size",
     .at = DETENT_AT(weights_only.block_size),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "weights that share a scale, along the inputs of a product; channel: all of an output",
     .label = "N|channel"},
    {.name = "scale-type",
     .at = DETENT_AT(weights_only.scale_type),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "type of the scales of blocks. float: as the weight; float8e8m0: powers of two (MXFP8, MXFP4, MXINT8); "
             "float8e4m3fn: with a float32 scale for the whole weight (NVFP4)",
     .label = "TYPE",
     .detail = true},
    {.name = "node-bits",
     .at = DETENT_AT(weights_only.node_bits),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "other bits for some nodes, or float; a name that starts with '^' is a regular expression over the whole "
             "name, and of several entries for a node the last counts",
     .label = "NODE=2|4|8|float,…",
     .detail = true},
    {.name = "weights-form",
     .at = DETENT_AT(weights_only.form),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "matmul-nbits: operators of ONNX Runtime; qdq: DequantizeLinear with blocks, of opset 21",
     .label = "FORM",
     .detail = true},
    {.name = "weights-method",
     .at = DETENT_AT(weights_only.method),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "nearest: from the extremes of each block; search: scales with the least error, weighted by the samples' "
             "inputs; awq: the same with inputs scaled, with samples; gptq: integers that make up for each other's "
             "errors, with samples; auto: the best that is there",
     .label = "METHOD",
     .detail = true},
    {.name = "max-size",
     .at = DETENT_AT(weights_only.max_size),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .results = kBlocks | kIntegers,
     .group = kWeightsOnly,
     .help =
         "bytes that the model may have with its data, as in 12MiB. With --weights-only: bits of each weight (2, 4, "
         "8 or float) are chosen so that the results change least; with samples, sensitivity is measured with "
         "--bits. Without: the format of each layer is searched, as for --max-latency",
     .label = "SIZE",
     .fallback = "none",
     .form = Form::bytes},
    {.name = "sparsity",
     .at = DETENT_AT(weights_only.sparsity),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "2:4: of each four neighbours along the inputs of a product two become 0 and the others make up for them; "
             "with samples, and --set weights-method=gptq or auto",
     .label = "none|2:4",
     .detail = true},
    {.name = "rotation",
     .at = DETENT_AT(weights_only.rotation),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help =
         "rotate what a transformer's layers hand on, so that no channel stands out; the rotation is folded into the "
         "weights. auto: where that is measured to be better, with samples",
     .label = "off|auto|on",
     .detail = true},
    {.name = "accuracy-level",
     .at = DETENT_AT(weights_only.accuracy_level),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .group = kWeightsOnly,
     .help = "what products in blocks compute with: 0 up to the runtime, 1 float32, 2 float16, 3 bfloat16, 4 int8, the "
             "fast "
             "one",
     .label = "N",
     .bounds = {.min = 0, .max = 4},
     .detail = true},
    {.name = "kv-cache",
     .at = DETENT_AT(kv_cache.type),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .results = kOfCache,
     .group = kCacheGroup,
     .help = "a decoder keeps keys and values in this type, with scales from the samples; beside --weights-only, or "
             "alone with --preset none",
     .label = "keep|int8|int4|fp8"},
    {.name = "kv-cache-per-channel",
     .at = DETENT_AT(kv_cache.per_channel),
     .commands = kQuantize | kPlan,
     .affects = Affects::integers,
     .results = kOfCache,
     .group = kCacheGroup,
     .help = "a scale for each channel of each head instead of one for a layer's keys and one for its values",
     .detail = true},
    {.name = "kv-cache-scales",
     .at = DETENT_AT(kv_cache.scale_file),
     .commands = kQuantize | kPlan,
     .affects = Affects::nothing,
     .results = kOfCache,
     .group = kCacheGroup,
     .help = "also write these scales (JSON), as kv_cache_scale_file of onnxruntime-genai's model builder",
     .label = "FILE",
     .detail = true},
};

}  // namespace

std::vector<Option> weights_only_options() { return only_for(kBlocks, kRows); }

}  // namespace detent::config
