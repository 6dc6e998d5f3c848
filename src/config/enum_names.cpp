#include "config/enum_names.h"

#include <fmt/format.h>

#include <initializer_list>
#include <map>
#include <typeindex>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace detent::config {
namespace {

using Words = std::pair<const std::type_index, std::vector<EnumName>>;

template <class Enum>
Words words(std::initializer_list<std::pair<std::string_view, Enum>> all) {
  Words row{typeid(Enum), {}};
  for (const auto& [text, value] : all) row.second.push_back({text, static_cast<int>(value)});
  return row;
}

// That stand beside their enumeration, in the order of its enumerators.
template <class Enum>
Words in_order(std::span<const std::string_view> texts) {
  Words row{typeid(Enum), {}};
  for (const auto text : texts) row.second.push_back({text, static_cast<int>(row.second.size())});
  return row;
}

}  // namespace

std::span<const EnumName> words_of(const std::type_info& enumeration) {
  static const std::map<std::type_index, std::vector<EnumName>> all{
      words<QuantType>({{"int8", QuantType::int8},
                        {"uint8", QuantType::uint8},
                        {"int16", QuantType::int16},
                        {"uint16", QuantType::uint16},
                        {"int4", QuantType::int4},
                        {"uint4", QuantType::uint4},
                        {"float8e4m3fn", QuantType::float8e4m3fn},
                        {"float8e5m2", QuantType::float8e5m2},
                        {"float4e2m1", QuantType::float4e2m1}}),
      words<FloatType>({{"keep", FloatType::keep},
                        {"32", FloatType::float32},
                        {"16", FloatType::float16},
                        {"bf16", FloatType::bfloat16}}),
      words<QuantFormat>({{"qdq", QuantFormat::qdq}, {"qoperator", QuantFormat::qoperator}}),
      words<Activations>({{"static", Activations::fixed}, {"dynamic", Activations::dynamic}}),
      words<WeightRange>(
          {{"full", WeightRange::full}, {"pairs", WeightRange::pairs}, {"reduced", WeightRange::reduced}}),
      words<WeightForm>({{"matmul-nbits", WeightForm::matmul_nbits}, {"qdq", WeightForm::qdq}}),
      words<WeightMethod>({{"auto", WeightMethod::automatic},
                           {"nearest", WeightMethod::nearest},
                           {"search", WeightMethod::search},
                           {"awq", WeightMethod::awq},
                           {"gptq", WeightMethod::gptq}}),
      words<Rotation>({{"off", Rotation::off}, {"auto", Rotation::automatic}, {"on", Rotation::on}}),
      words<Outcome::Answer>(
          {{"yes", Outcome::Answer::yes}, {"look", Outcome::Answer::look}, {"no", Outcome::Answer::no}}),
      words<KvCacheType>({{"keep", KvCacheType::keep},
                          {"int8", KvCacheType::int8},
                          {"int4", KvCacheType::int4},
                          {"fp8", KvCacheType::float8e4m3fn}}),
      words<WeightSparsity>({{"none", WeightSparsity::none}, {"2:4", WeightSparsity::two_of_four}}),
      words<WeightBits>({{"2", WeightBits::two}, {"4", WeightBits::four}, {"8", WeightBits::eight}}),
      words<ScaleType>({{"float", ScaleType::as_weight},
                        {"float8e8m0", ScaleType::float8e8m0},
                        {"float8e4m3fn", ScaleType::float8e4m3fn}}),
      words<BlockSize>({{"16", BlockSize::of16},
                        {"32", BlockSize::of32},
                        {"64", BlockSize::of64},
                        {"128", BlockSize::of128},
                        {"256", BlockSize::of256},
                        {"channel", BlockSize::channel}}),
      in_order<CalibrationMethod>(kCalibrationMethods),
      words<ErrorMetric>({{"mae", ErrorMetric::mae}, {"mse", ErrorMetric::mse}}),
      words<SensitivityMode>(
          {{"auto", SensitivityMode::automatic}, {"off", SensitivityMode::off}, {"report", SensitivityMode::report}}),
      words<EqualizeMode>({{"auto", EqualizeMode::automatic}, {"off", EqualizeMode::off}}),
      words<AccuracyMetric>({{"cosine", AccuracyMetric::cosine},
                             {"sqnr", AccuracyMetric::sqnr},
                             {"perplexity", AccuracyMetric::perplexity},
                             {"command", AccuracyMetric::command}}),
      words<Verdict>(
          {{"accepted", Verdict::accepted}, {"falls back", Verdict::falls_back}, {"refused", Verdict::refused}}),
      words<AccuracyFallback>({{"float32", AccuracyFallback::float32}, {"int16", AccuracyFallback::int16}}),
      words<OptimizeFor>(
          {{"latency", OptimizeFor::latency}, {"accuracy", OptimizeFor::accuracy}, {"size", OptimizeFor::size}}),
      in_order<WeightSolver>(kWeightSolvers),
      words<FinetuneForm>(
          {{"auto", FinetuneForm::automatic}, {"gram", FinetuneForm::gram}, {"streamed", FinetuneForm::streamed}}),
      words<DevicePrecision>({{"float32", DevicePrecision::float32},
                              {"tf32", DevicePrecision::tf32},
                              {"bfloat16", DevicePrecision::bfloat16}}),
      words<DeviceLayout>(
          {{"auto", DeviceLayout::automatic}, {"nchw", DeviceLayout::nchw}, {"nhwc", DeviceLayout::nhwc}}),
      words<GdsMode>({{"auto", GdsMode::automatic}, {"on", GdsMode::on}, {"off", GdsMode::off}}),
      words<MemoryLevel>({{"0", MemoryLevel::memory}, {"1", MemoryLevel::budget}, {"2", MemoryLevel::disk}}),
      words<SpoolAccess>({{"auto", SpoolAccess::automatic},
                          {"buffered", SpoolAccess::buffered},
                          {"direct", SpoolAccess::direct},
                          {"uring", SpoolAccess::uring}}),
      words<BlockFloat>({{"none", BlockFloat::none},
                         {"bfp16", BlockFloat::bfp16},
                         {"mx4", BlockFloat::mx4},
                         {"mx6", BlockFloat::mx6},
                         {"mx9", BlockFloat::mx9},
                         {"mxfp8e5m2", BlockFloat::mxfp8e5m2},
                         {"mxfp8e4m3", BlockFloat::mxfp8e4m3},
                         {"mxfp6e3m2", BlockFloat::mxfp6e3m2},
                         {"mxfp6e2m3", BlockFloat::mxfp6e2m3},
                         {"mxfp4e2m1", BlockFloat::mxfp4e2m1},
                         {"mxint8", BlockFloat::mxint8}}),
      words<SummaryForm>({{"text", SummaryForm::text}, {"md", SummaryForm::md}}),
      words<data::ImagePreset>({{"none", data::ImagePreset::none},
                                {"imagenet", data::ImagePreset::imagenet},
                                {"01", data::ImagePreset::zero_to_one},
                                {"11", data::ImagePreset::one_to_one},
                                {"255", data::ImagePreset::bytes},
                                {"yolo", data::ImagePreset::letterbox}}),
      words<NodeFormat>({{"fp32", NodeFormat::fp32},
                         {"int8", NodeFormat::int8},
                         {"a16w8", NodeFormat::a16w8},
                         {"int8-dynamic", NodeFormat::dynamic},
                         {"w8", NodeFormat::w8},
                         {"q8", NodeFormat::q8},
                         {"q4", NodeFormat::q4},
                         {"q2", NodeFormat::q2}}),
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
