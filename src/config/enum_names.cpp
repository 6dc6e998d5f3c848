#include "config/enum_names.h"

#include <fmt/format.h>

#include <initializer_list>
#include <map>
#include <typeindex>

#include "base/error.h"
#include "base/text.h"

namespace detent::config {
namespace {

using Table = std::map<std::type_index, std::vector<EnumName>>;
using Words = Table::value_type;

// In the order of the enumerators, from 0 on.
template <class Enum>
Words words(std::span<const std::string_view> texts) {
  Words row{typeid(Enum), {}};
  for (const auto text : texts) row.second.push_back({text, static_cast<int>(row.second.size())});
  return row;
}
template <class Enum>
Words words(std::initializer_list<std::string_view> texts) {
  return words<Enum>(std::span(texts.begin(), texts.size()));
}

}  // namespace

std::span<const EnumName> words_of(const std::type_info& enumeration) {
  static const Table all{
      words<QuantType>(
          {"int8", "uint8", "int16", "uint16", "int4", "uint4", "float8e4m3fn", "float8e5m2", "float4e2m1"}),
      words<FloatType>({"keep", "32", "16", "bf16"}),
      words<QuantFormat>({"qdq", "qoperator"}),
      words<Activations>({"static", "dynamic"}),
      words<WeightRange>({"full", "pairs", "reduced"}),
      words<WeightForm>({"matmul-nbits", "qdq"}),
      words<WeightMethod>({"auto", "nearest", "search", "awq", "gptq"}),
      words<Rotation>({"off", "auto", "on"}),
      words<Outcome::Answer>({"yes", "look", "no"}),
      words<KvCacheType>({"keep", "int8", "int4", "fp8"}),
      words<WeightSparsity>({"none", "2:4"}),
      {typeid(WeightBits), {{"2", 2}, {"4", 4}, {"8", 8}}},
      words<ScaleType>({"float", "float8e8m0", "float8e4m3fn"}),
      {typeid(BlockSize), {{"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}, {"256", 256}, {"channel", 0}}},
      words<BlockFloat>({"none", "bfp16", "mx4", "mx6", "mx9", "mxfp8e5m2", "mxfp8e4m3", "mxfp6e3m2", "mxfp6e2m3",
                         "mxfp4e2m1", "mxint8"}),
      words<NodeFormat>({"fp32", "int8", "a16w8", "int8-dynamic", "w8", "q8", "q4", "q2"}),
      words<CalibrationMethod>(kCalibrationMethods),
      words<ErrorMetric>({"mae", "mse"}),
      words<SensitivityMode>({"auto", "off", "report"}),
      words<EqualizeMode>({"auto", "off"}),
      words<AccuracyMetric>({"cosine", "sqnr", "perplexity", "command"}),
      words<Verdict>({"accepted", "falls back", "refused"}),
      words<AccuracyFallback>({"float32", "int16"}),
      words<OptimizeFor>({"latency", "accuracy", "size"}),
      words<WeightSolver>(kWeightSolvers),
      words<FinetuneForm>({"auto", "gram", "streamed"}),
      words<DevicePrecision>({"float32", "tf32", "bfloat16"}),
      words<DeviceLayout>({"auto", "nchw", "nhwc"}),
      words<GdsMode>({"auto", "on", "off"}),
      words<MemoryLevel>({"0", "1", "2"}),
      words<SpoolAccess>({"auto", "buffered", "direct", "uring"}),
      words<SummaryForm>({"text", "md"}),
      words<data::ImagePreset>({"none", "imagenet", "01", "11", "255", "yolo"}),
  };
  return all.at(enumeration);
}

Error not_one_of(std::string_view option, std::string_view text, std::span<const std::string_view> all) {
  const std::string meant = did_you_mean(text, all);
  return usage_error(fmt::format("{}: '{}' is not one of its values", option, text),
                     fmt::format("{}{}choose from: {}", meant, meant.empty() ? "" : " ", fmt::join(all, ", ")));
}

std::string_view word_of(std::span<const EnumName> words, int value) {
  for (const auto& word : words) {
    if (word.value == value) return word.text;
  }
  throw internal_error("a value without a word");
}

int value_of(std::span<const EnumName> words, std::string_view text, std::string_view option) {
  std::vector<std::string_view> texts;
  for (const auto& word : words) {
    if (word.text == text) return word.value;
    texts.push_back(word.text);
  }
  throw not_one_of(option, text, texts);
}

std::string_view name_of(NodeFormat format) { return word_of(enum_names<NodeFormat>(), static_cast<int>(format)); }

NodeFormat node_format(std::string_view name, std::string_view option) {
  return static_cast<NodeFormat>(value_of(enum_names<NodeFormat>(), name, option));
}

NodeFormatEntry parse_node_format(const std::string& text) {
  const auto equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw usage_error(fmt::format("--node-formats: '{}' is not a node with its format", text),
                      "give NODE=FORMAT, as in conv_1=int8 or '^.*mlp.*=q4'");
  return {text.substr(0, equals), node_format(std::string_view(text).substr(equals + 1), "--node-formats")};
}

}  // namespace detent::config
