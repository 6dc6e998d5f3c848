#include "config/enum_names.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/text.h"

namespace detent::config {
namespace {

template <class Enum>
constexpr EnumName word(std::string_view text, Enum value) {
  return {text, static_cast<int>(value)};
}

// Words that stand beside their enumeration, in the order of its enumerators.
template <std::size_t count>
constexpr std::array<EnumName, count> in_order(const std::string_view (&texts)[count]) {
  std::array<EnumName, count> all;
  for (std::size_t i = 0; i < count; ++i) all[i] = {texts[i], static_cast<int>(i)};
  return all;
}

}  // namespace

template <>
std::span<const EnumName> enum_names<QuantType>() {
  static constexpr EnumName all[] = {word("int8", QuantType::int8),
                                     word("uint8", QuantType::uint8),
                                     word("int16", QuantType::int16),
                                     word("uint16", QuantType::uint16),
                                     word("int4", QuantType::int4),
                                     word("uint4", QuantType::uint4),
                                     word("float8e4m3fn", QuantType::float8e4m3fn),
                                     word("float8e5m2", QuantType::float8e5m2),
                                     word("float4e2m1", QuantType::float4e2m1)};
  return all;
}

template <>
std::span<const EnumName> enum_names<FloatType>() {
  static constexpr EnumName all[] = {word("keep", FloatType::keep), word("32", FloatType::float32),
                                     word("16", FloatType::float16), word("bf16", FloatType::bfloat16)};
  return all;
}

template <>
std::span<const EnumName> enum_names<QuantFormat>() {
  static constexpr EnumName all[] = {word("qdq", QuantFormat::qdq), word("qoperator", QuantFormat::qoperator)};
  return all;
}

template <>
std::span<const EnumName> enum_names<Activations>() {
  static constexpr EnumName all[] = {word("static", Activations::fixed), word("dynamic", Activations::dynamic)};
  return all;
}

template <>
std::span<const EnumName> enum_names<WeightRange>() {
  static constexpr EnumName all[] = {word("full", WeightRange::full), word("pairs", WeightRange::pairs),
                                     word("reduced", WeightRange::reduced)};
  return all;
}

template <>
std::span<const EnumName> enum_names<WeightForm>() {
  static constexpr EnumName all[] = {word("matmul-nbits", WeightForm::matmul_nbits), word("qdq", WeightForm::qdq)};
  return all;
}

template <>
std::span<const EnumName> enum_names<WeightMethod>() {
  static constexpr EnumName all[] = {word("auto", WeightMethod::automatic), word("nearest", WeightMethod::nearest),
                                     word("search", WeightMethod::search), word("awq", WeightMethod::awq),
                                     word("gptq", WeightMethod::gptq)};
  return all;
}

template <>
std::span<const EnumName> enum_names<Rotation>() {
  static constexpr EnumName all[] = {word("off", Rotation::off), word("auto", Rotation::automatic),
                                     word("on", Rotation::on)};
  return all;
}

template <>
std::span<const EnumName> enum_names<Outcome::Answer>() {
  static constexpr EnumName all[] = {word("yes", Outcome::Answer::yes), word("look", Outcome::Answer::look),
                                     word("no", Outcome::Answer::no)};
  return all;
}
template <>
std::span<const EnumName> enum_names<KvCacheType>() {
  static constexpr EnumName all[] = {word("keep", KvCacheType::keep), word("int8", KvCacheType::int8),
                                     word("int4", KvCacheType::int4), word("fp8", KvCacheType::float8e4m3fn)};
  return all;
}

template <>
std::span<const EnumName> enum_names<WeightSparsity>() {
  static constexpr EnumName all[] = {word("none", WeightSparsity::none), word("2:4", WeightSparsity::two_of_four)};
  return all;
}

template <>
std::span<const EnumName> enum_names<WeightBits>() {
  static constexpr EnumName all[] = {word("2", WeightBits::two), word("4", WeightBits::four),
                                     word("8", WeightBits::eight)};
  return all;
}

template <>
std::span<const EnumName> enum_names<ScaleType>() {
  static constexpr EnumName all[] = {word("float", ScaleType::as_weight), word("float8e8m0", ScaleType::float8e8m0),
                                     word("float8e4m3fn", ScaleType::float8e4m3fn)};
  return all;
}

template <>
std::span<const EnumName> enum_names<BlockSize>() {
  static constexpr EnumName all[] = {word("16", BlockSize::of16),   word("32", BlockSize::of32),
                                     word("64", BlockSize::of64),   word("128", BlockSize::of128),
                                     word("256", BlockSize::of256), word("channel", BlockSize::channel)};
  return all;
}

template <>
std::span<const EnumName> enum_names<CalibrationMethod>() {
  static constexpr auto all = in_order(kCalibrationMethods);
  return all;
}

template <>
std::span<const EnumName> enum_names<ErrorMetric>() {
  static constexpr EnumName all[] = {word("mae", ErrorMetric::mae), word("mse", ErrorMetric::mse)};
  return all;
}

template <>
std::span<const EnumName> enum_names<SensitivityMode>() {
  static constexpr EnumName all[] = {word("auto", SensitivityMode::automatic), word("off", SensitivityMode::off),
                                     word("report", SensitivityMode::report)};
  return all;
}

template <>
std::span<const EnumName> enum_names<EqualizeMode>() {
  static constexpr EnumName all[] = {word("auto", EqualizeMode::automatic), word("off", EqualizeMode::off)};
  return all;
}

template <>
std::span<const EnumName> enum_names<AccuracyMetric>() {
  static constexpr EnumName all[] = {word("cosine", AccuracyMetric::cosine), word("sqnr", AccuracyMetric::sqnr),
                                     word("perplexity", AccuracyMetric::perplexity),
                                     word("command", AccuracyMetric::command)};
  return all;
}

template <>
std::span<const EnumName> enum_names<Verdict>() {
  static constexpr EnumName all[] = {word("accepted", Verdict::accepted), word("falls back", Verdict::falls_back),
                                     word("refused", Verdict::refused)};
  return all;
}

template <>
std::span<const EnumName> enum_names<AccuracyFallback>() {
  static constexpr EnumName all[] = {word("float32", AccuracyFallback::float32),
                                     word("int16", AccuracyFallback::int16)};
  return all;
}

template <>
std::span<const EnumName> enum_names<OptimizeFor>() {
  static constexpr EnumName all[] = {word("latency", OptimizeFor::latency), word("accuracy", OptimizeFor::accuracy),
                                     word("size", OptimizeFor::size)};
  return all;
}

template <>
std::span<const EnumName> enum_names<WeightSolver>() {
  static constexpr auto all = in_order(kWeightSolvers);
  return all;
}

template <>
std::span<const EnumName> enum_names<FinetuneForm>() {
  static constexpr EnumName all[] = {word("auto", FinetuneForm::automatic), word("gram", FinetuneForm::gram),
                                     word("streamed", FinetuneForm::streamed)};
  return all;
}

template <>
std::span<const EnumName> enum_names<DevicePrecision>() {
  static constexpr EnumName all[] = {word("float32", DevicePrecision::float32), word("tf32", DevicePrecision::tf32),
                                     word("bfloat16", DevicePrecision::bfloat16)};
  return all;
}

template <>
std::span<const EnumName> enum_names<DeviceLayout>() {
  static constexpr EnumName all[] = {word("auto", DeviceLayout::automatic), word("nchw", DeviceLayout::nchw),
                                     word("nhwc", DeviceLayout::nhwc)};
  return all;
}

template <>
std::span<const EnumName> enum_names<GdsMode>() {
  static constexpr EnumName all[] = {word("auto", GdsMode::automatic), word("on", GdsMode::on),
                                     word("off", GdsMode::off)};
  return all;
}

template <>
std::span<const EnumName> enum_names<MemoryLevel>() {
  static constexpr EnumName all[] = {word("0", MemoryLevel::memory), word("1", MemoryLevel::budget),
                                     word("2", MemoryLevel::disk)};
  return all;
}

template <>
std::span<const EnumName> enum_names<SpoolAccess>() {
  static constexpr EnumName all[] = {word("auto", SpoolAccess::automatic), word("buffered", SpoolAccess::buffered),
                                     word("direct", SpoolAccess::direct), word("uring", SpoolAccess::uring)};
  return all;
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

template <>
std::span<const EnumName> enum_names<BlockFloat>() {
  static constexpr EnumName all[] = {{"none", static_cast<int>(BlockFloat::none)},
                                     {"bfp16", static_cast<int>(BlockFloat::bfp16)},
                                     {"mx4", static_cast<int>(BlockFloat::mx4)},
                                     {"mx6", static_cast<int>(BlockFloat::mx6)},
                                     {"mx9", static_cast<int>(BlockFloat::mx9)},
                                     {"mxfp8e5m2", static_cast<int>(BlockFloat::mxfp8e5m2)},
                                     {"mxfp8e4m3", static_cast<int>(BlockFloat::mxfp8e4m3)},
                                     {"mxfp6e3m2", static_cast<int>(BlockFloat::mxfp6e3m2)},
                                     {"mxfp6e2m3", static_cast<int>(BlockFloat::mxfp6e2m3)},
                                     {"mxfp4e2m1", static_cast<int>(BlockFloat::mxfp4e2m1)},
                                     {"mxint8", static_cast<int>(BlockFloat::mxint8)}};
  return all;
}

template <>
std::span<const EnumName> enum_names<SummaryForm>() {
  static constexpr EnumName all[] = {word("text", SummaryForm::text), word("md", SummaryForm::md)};
  return all;
}

template <>
std::span<const EnumName> enum_names<data::ImagePreset>() {
  using data::ImagePreset;
  static constexpr EnumName all[] = {word("none", ImagePreset::none),      word("imagenet", ImagePreset::imagenet),
                                     word("01", ImagePreset::zero_to_one), word("11", ImagePreset::one_to_one),
                                     word("255", ImagePreset::bytes),      word("yolo", ImagePreset::letterbox)};
  return all;
}

std::string_view name_of(NodeFormat format) noexcept {
  switch (format) {
    case NodeFormat::fp32: return "fp32";
    case NodeFormat::int8: return "int8";
    case NodeFormat::a16w8: return "a16w8";
    case NodeFormat::dynamic: return "int8-dynamic";
    case NodeFormat::w8: return "w8";
    case NodeFormat::q8: return "q8";
    case NodeFormat::q4: return "q4";
    case NodeFormat::q2: return "q2";
  }
  return {};
}

NodeFormat node_format(std::string_view name, std::string_view option) {
  std::vector<std::string_view> all;
  for (const auto format : kNodeFormats) {
    if (name_of(format) == name) return format;
    all.push_back(name_of(format));
  }
  throw not_one_of(option, name, all);
}

NodeFormatEntry parse_node_format(const std::string& text) {
  const auto equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw usage_error(fmt::format("--node-formats: '{}' is not a node with its format", text),
                      "give NODE=FORMAT, as in conv_1=int8 or '^.*mlp.*=q4'");
  return {text.substr(0, equals), node_format(std::string_view(text).substr(equals + 1), "--node-formats")};
}

}  // namespace detent::config
