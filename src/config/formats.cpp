#include "config/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "config/enum_names.h"
#include "config/presets.h"

namespace detent::config {
namespace {

// All options that say what comes out. Beside a format only those may be given that its row names.
constexpr std::string_view kSaysWhatComesOut[] = {"activations", "quant-format", "activation-type", "weight-type",
                                                  "block-float", "float",        "weights-only",    "bits",
                                                  "scale-type",  "preset"};

const Setting kInBlocks{"weights-only", "true", ""};
const Setting kEightBits{"weight-type", "", "", {"int8", "uint8"}};
const Setting kPreset{"preset", "", "", {"balanced", "plain"}};
const Setting kFromFloat16{"float", "", "", {"32"}};

Setting always(const std::string& option, const std::string& value) { return {option, value, ""}; }

// Weights in blocks, with what else becomes 16-bit floats on request.
std::vector<Setting> integers_in_blocks(const std::string& bits) {
  return {kInBlocks, always("bits", bits), {"float", "", "", {"16", "bf16"}}};
}

std::vector<Setting> floats_in_blocks(const std::string& type, const std::string& scales) {
  return {kInBlocks, always("weight-type", type), always("scale-type", scales)};
}

// What others call a format, and the row that serves it.
constexpr std::pair<std::string_view, std::string_view> kNamesElsewhere[] = {
    {"int4", "q4"},       {"uint4", "q4"},
    {"w4a16", "q4"},      {"w4", "q4"},
    {"awq", "q4"},        {"gptq", "q4"},
    {"rtn", "q4"},        {"hqq", "q4"},
    {"nf4", "q4"},        {"4bit", "q4"},
    {"q4_0", "q4"},       {"q4_k", "q4"},
    {"q4_k_m", "q4"},     {"int2", "q2"},
    {"w2a16", "q2"},      {"w8a16", "q8"},
    {"w8", "q8"},         {"8bit", "int8"},
    {"q8_0", "q8"},       {"w8a8", "int8"},
    {"a8w8", "int8"},     {"uint8", "int8"},
    {"static", "int8"},   {"smoothquant", "int8"},
    {"qdq", "int8"},      {"dynamic", "int8-dynamic"},
    {"int16", "a16w8"},   {"float16", "fp16"},
    {"half", "fp16"},     {"f16", "fp16"},
    {"float8", "fp8"},    {"e4m3", "fp8"},
    {"bfloat16", "bf16"}, {"fp4", "mxfp4"},
    {"mx4", "mxfp4"},     {"qoperator", "int8-qoperator"},
};

}  // namespace

const std::vector<Format>& formats() {
  static const std::vector<Format> all{
      {"int8",
       "weights and activations of 8 bits, with scales from samples",
       {kEightBits, {"activation-type", "", "", {"int8", "uint8"}}, kPreset, kFromFloat16}},
      {"int8-dynamic",
       "the same with scales found while the model runs, without samples",
       {always("activations", "dynamic"), {"weight-type", "int8", "", {"uint8"}}, kFromFloat16}},
      {"uint8-dynamic",
       "int8-dynamic with weights of uint8",
       {always("activations", "dynamic"), always("weight-type", "uint8"), kFromFloat16}},
      {"int8-qoperator",
       "int8 as operators on integers, for old runtimes",
       {always("quant-format", "qoperator"), kEightBits, kPreset, kFromFloat16}},
      {"a16w8",
       "activations of 16 bits, weights of 8",
       {{"activation-type", "uint16", "", {"int16"}}, kEightBits, kPreset, kFromFloat16}},
      {"q8", "weights of 8 bits in blocks, for language models", integers_in_blocks("8")},
      {"q4", "weights of 4 bits in blocks", integers_in_blocks("4")},
      {"q2", "weights of 2 bits in blocks", integers_in_blocks("2")},
      {"q4f16", "q4, with float16 for all else", {kInBlocks, always("bits", "4"), always("float", "16")}},
      {"fp16", "float16 wherever it is safe", {always("float", "16"), always("preset", "none")}},
      {"bf16", "bfloat16 wherever it is safe", {always("float", "bf16"), always("preset", "none")}},
      {"fp8",
       "weights and activations in float8e4m3fn",
       {{"weight-type", "float8e4m3fn", "", {"float8e5m2"}},
        {"activation-type", "float8e4m3fn", "", {"float8e5m2"}},
        {"preset", "floats", "", {"plain"}}}},
      {"mxfp8", "weights in blocks of FP8 with a common exponent", floats_in_blocks("float8e4m3fn", "float8e8m0")},
      {"mxfp4", "weights in blocks of FP4 with a common exponent", floats_in_blocks("float4e2m1", "float8e8m0")},
      {"nvfp4", "weights in blocks of FP4 with FP8 scales", floats_in_blocks("float4e2m1", "float8e4m3fn")},
      {"bfp16", "block floats of AMD's NPU", {always("block-float", "bfp16"), always("preset", "plain")}},
  };
  return all;
}

std::vector<std::pair<std::string, std::string>> format_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& row : formats()) names.emplace_back(row.name, row.help);
  return names;
}

const Format& format(std::string_view name) {
  std::vector<std::string_view> all;
  for (const auto& row : formats()) {
    if (row.name == name) return row;
    all.push_back(row.name);
  }
  std::string known(name);
  std::transform(known.begin(), known.end(), known.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [elsewhere, row] : kNamesElsewhere) {
    if (known != elsewhere) continue;
    const auto& meant = format(row);
    throw usage_error(fmt::format("--format: '{}' is not one of its values", name),
                      fmt::format("that is {} here: {}; others: {}", row, meant.help, fmt::join(all, ", ")));
  }
  throw not_one_of("--format", name, all);
}

void apply(const Format& format, QuantizeOptions& options) {
  for (const auto& setting : format.settings) {
    if (setting.value.empty()) continue;
    const auto* option = find(setting.option, kQuantize);
    assign(*option, *option->member(options), {std::string(setting.value)}, option->spelled());
  }
}

void apply(const Format& format, QuantizeOptions& options, std::vector<std::string_view>& given) {
  auto made = options;
  apply(format, made);
  for (const auto name : kSaysWhatComesOut) {
    const auto* option = find(name, kQuantize);
    const auto row = std::find_if(format.settings.begin(), format.settings.end(),
                                  [&](const auto& setting) { return setting.option == name; });
    const bool is_set = row != format.settings.end() && !row->value.empty();
    if (std::find(given.begin(), given.end(), option->at.path) == given.end()) {
      if (!is_set) continue;
      copy(*option->member(made), *option->member(options));
      given.push_back(option->at.path);
      continue;
    }
    const auto text = text_of(*option->member(options), option->form);
    if (row != format.settings.end() &&
        (text == row->value || std::find(row->also.begin(), row->also.end(), text) != row->also.end()))
      continue;
    throw usage_error(
        fmt::format("{} and --format {} both say what comes out", option->spelled(), format.name),
        row == format.settings.end() || row->also.empty()
            ? "leave out one of them"
            : fmt::format("leave out one of them, or give {} {}", option->spelled(), fmt::join(row->also, " or ")));
  }
}

void check_format(const QuantizeOptions& options) {
  if (options.format.empty()) return;
  for (const auto& setting : format(options.format).settings) {
    const auto* option = find(setting.option, kQuantize);
    const auto text = text_of(read_only(*option, options), option->form);
    if (setting.value.empty() || text == setting.value) continue;
    if (std::find(setting.also.begin(), setting.also.end(), text) == setting.also.end())
      throw usage_error(fmt::format("--format {} means --{} {}, which these options lack", options.format,
                                    setting.option, setting.value),
                        fmt::format("begin with options_of_format(\"{}\")", options.format));
  }
}

}  // namespace detent::config

namespace detent {

QuantizeOptions options_of_format(std::string_view name) {
  QuantizeOptions options;
  options.format = name;
  std::vector<std::string_view> given;
  config::resolve(options, given);
  return options;
}

}  // namespace detent

namespace detent::config {
namespace {

constexpr std::string_view kQuantizesNothing = "is for quantization, and nothing is quantized";
constexpr std::string_view kQuantizeSomething = "leave it out, or leave out --float 16, --float bf16 and --preset none";

bool always(const QuantizeOptions&) { return true; }
bool gives_nodes_formats(const QuantizeOptions& o) { return !o.node_formats.empty(); }
bool makes_blocks(const QuantizeOptions& o) { return o.weights_only.enabled; }
bool makes_block_floats(const QuantizeOptions& o) { return o.config.block_float != BlockFloat::none; }
bool quantizes(const QuantizeOptions& o) { return preset(o.config).quantizes; }
bool finds_scales(const QuantizeOptions& o) { return quantizes(o) && o.config.activations == Activations::dynamic; }
bool makes_float32(const QuantizeOptions& o) { return o.config.float_type == FloatType::float32; }

constexpr ResultKind kKinds[] = {
    {kMixed, gives_nodes_formats, "does not go with --node-formats, which says the format of each node",
     "leave it out, or leave out --node-formats"},
    {kBlocks, makes_blocks, "means nothing with --weights-only, which quantizes no activations",
     "leave it out, or leave out --weights-only"},
    {kCache, changes_cache_alone, "means nothing with --kv-cache and --preset none, which change the cache alone",
     "leave it out"},
    {kBlockFloats, makes_block_floats,
     "means nothing with --set block-float, whose scales are found while the model runs",
     "leave it out, or leave out --set block-float", "ONNX Runtime runs it with AMD Quark's operator library alone"},
    {kDynamic, finds_scales, "means nothing with --activations dynamic, which finds scales while the model runs",
     "leave it out, or leave out --activations dynamic"},
    {kIntegers, quantizes, "is for --weights-only", "add --weights-only, or leave it out"},
    {kFloat32, makes_float32, kQuantizesNothing, kQuantizeSomething},
    {kFloat16, always, kQuantizesNothing, kQuantizeSomething},
};

constexpr FamilyRow kRows[] = {
    {"fp32", "", ""},
    {"fp16", "_fp16", "fp16"},
    {"q8", "_quantized", "int8-dynamic"},
    {"int8", "_int8", "int8-dynamic"},
    {"uint8", "_uint8", "uint8-dynamic"},
    {"q4", "_q4", "q4"},
    {"q4f16", "_q4f16", "q4f16"},
};

constexpr std::string_view kSaid[] = {"format",
                                      "config.preset",
                                      "config.float_type",
                                      "config.block_float",
                                      "config.activations",
                                      "config.weight_type",
                                      "weights_only.enabled",
                                      "weights_only.bits",
                                      "weights_only.scale_type",
                                      "weights_only.max_size",
                                      "accuracy.target",
                                      "kv_cache.type",
                                      "kv_cache.per_channel",
                                      "kv_cache.scale_file",
                                      "statistics",
                                      "prepared_output",
                                      "profile",
                                      "report",
                                      "trace"};

const FamilyRow& row_of(const std::string& name) {
  std::vector<std::string_view> all;
  for (const auto& row : kRows) {
    if (row.name == name) return row;
    all.push_back(row.name);
  }
  if (name == "bnb4")
    throw usage_error("--family bnb4: detent writes no MatMulBnb4 (codebooks of 4-bit floats)",
                      "give q4, which has a scale and a zero point for each block");
  throw not_one_of("--family", name, all);
}

}  // namespace

const ResultKind& kind_of(const QuantizeOptions& options) {
  return *std::ranges::find_if(kKinds, [&](const auto& kind) { return kind.is_asked_for(options); });
}

std::vector<const FamilyRow*> family_of(const QuantizeOptions& options) {
  std::vector<const FamilyRow*> members;
  for (const auto& name : options.family) {
    const auto* row = &row_of(name);
    if (std::find(members.begin(), members.end(), row) != members.end())
      throw usage_error(fmt::format("--family names '{}' twice", name), "give each member once");
    members.push_back(row);
  }
  return members;
}

std::vector<std::pair<std::string, std::string>> family_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& row : kRows)
    names.emplace_back(row.name,
                       row.format.empty() ? "the float model as it is" : fmt::format("--format {}", row.format));
  return names;
}

QuantizeOptions options_of(const FamilyRow& member, QuantizeOptions options) {
  options.family.clear();
  if (!member.format.empty()) apply(format(member.format), options);
  if (options.weights_only.enabled) options.format = member.format;  // which says more than its options
  if (options.config.float_type == FloatType::keep) options.config.keep_io_types = true;  // it is about the others
  return options;
}

std::span<const std::string_view> options_set_by_member() { return kSaid; }

Error refused_beside_family(const Option& option) {
  return usage_error(
      fmt::format("{} does not go with --family, whose members are results of their own", option.spelled()),
      "leave it out, or make that result alone");
}

}  // namespace detent::config
