#include "config/targets.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/enum_names.h"

namespace detent::config {
namespace {

using Types = std::vector<std::string_view>;

constexpr QuantType kInt8 = QuantType::int8, kUint16 = QuantType::uint16;

// What Qualcomm's HTP runs on integers beside what is quantized everywhere.
const Types kHtpTypes{"Abs",       "DepthToSpace", "Div",          "Elu",  "Exp", "Expand", "Gelu",      "HardSigmoid",
                      "HardSwish", "LogSoftmax",   "Max",          "Min",  "Neg", "PRelu",  "ReduceMax", "ReduceMean",
                      "ReduceMin", "ReduceSum",    "SpaceToDepth", "Sqrt", "Sub", "Tanh",   "Tile"};
// What Quark's quantizer for convolutional networks on AMD's NPU adds.
const Types kNpuTypes{"DepthToSpace", "Div",        "Erf",          "HardSigmoid", "Max", "Min",
                      "PRelu",        "ReduceMean", "SpaceToDepth", "Sub",         "Tanh"};
const Types kLiteTypes{"Abs",        "DepthToSpace", "Div",          "Elu",  "Exp",   "Gelu",      "HardSwish",
                       "LogSoftmax", "Max",          "Min",          "Neg",  "PRelu", "ReduceMax", "ReduceMean",
                       "ReduceMin",  "ReduceSum",    "SpaceToDepth", "Sqrt", "Sub",   "Tanh"};

constexpr std::string_view kNoIntegers = "it runs no integers";

// Around its integers are floats of 32 bits: a model of 16-bit floats is computed in float32 first.
const Setting kFloat32{"float", "32", ""};

// 8-bit weights whose zero points are 0.
std::vector<Setting> symmetric_weights(std::string_view why) {
  return {{"weight-type", "int8", why}, {"weight-symmetric", "true", why}, {"weight-range", "full", ""}};
}

std::vector<Setting> joined(std::vector<Setting> first, const std::vector<Setting>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// AMD's NPU: what its integer flavours have in common.
Target amd(std::string_view name, std::string_view help, const std::vector<Setting>& settings) {
  Target t{.name = name, .help = help};
  t.settings = joined(symmetric_weights("the NPU multiplies by int8 with zero point 0"), settings);
  t.settings.push_back({"activation-symmetric", "true", "zero points of activations are in the middle"});
  t.settings.push_back(kFloat32);
  t.all_operators = true;
  t.op_types = kNpuTypes;
  t.aligned_types = {"Concat"};
  t.own_scale_types = {"AveragePool"};
  t.activated_types = {"Add", "AveragePool", "GlobalAveragePool", "MaxPool"};
  t.activations = {"LeakyRelu", "PRelu"};
  t.opset = 17;
  t.static_shapes = true;
  t.one_width = true;
  t.explicit_convolutions = true;
  return t;
}

Target xint8() {
  auto t = amd("amd-npu:xint8", "AMD's NPU, 8 bits, scales that are powers of two",
               {{"activation-type", "uint8", "XINT8 has activations of 8 bits", {"int8"}},
                {"power-of-two-scale", "true", "scales of XINT8 are powers of two"},
                {"per-channel", "false", "XINT8 has one scale for each weight"}});
  t.aligned_types = {"Concat", "AveragePool", "GlobalAveragePool"};
  t.own_scale_types = {};
  t.nearest_power_of_two = true;
  return t;
}

Target qnn(std::string_view name, std::string_view help, const Setting& activations) {
  Target t{.name = name, .help = help};
  t.settings = {activations, {"weight-type", "int8", "", {}}, {"weight-range", "full", ""}, kFloat32};
  if (activations.value == "uint8") t.settings.push_back({"accuracy-fallback", "int16", ""});
  t.all_operators = true;
  t.op_types = kHtpTypes;
  t.per_channel_types = {"Conv", "ConvTranspose", "MatMul"};
  t.fixed_ranges = {{"Sigmoid", kUint16, 0.0F, 65535.0F / 65536},
                    {"Softmax", kUint16, 0.0F, 65535.0F / 65536},
                    {"Tanh", kUint16, -1.0F, 32767.0F / 32768}};
  // In 16 bits a narrower range gives any number (2.7.0).
  t.least_spans = {{"Log", 4.0F}};
  t.static_shapes = true;
  t.one_width = true;
  t.htp_rewrites = true;
  // Beside int8 scales it takes a LayerNormalization with a bias of int32 for the CPU's.
  t.float_bias_types = {"LayerNormalization"};
  t.narrow_types = {"PRelu"};
  return t;
}

#if defined(__aarch64__)
constexpr bool kIsArm = true;
#else
constexpr bool kIsArm = false;
#endif

void add_runtimes_of_cpus(std::vector<Target>& all) {
  all.push_back(
      {.name = "ort-cpu", .help = "ONNX Runtime on this machine's CPU", .is_ort_cpu = true, .is_this_machine = true});
  all.push_back({.name = "ort-cpu:vnni",
                 .help = "x86 CPUs with VNNI",
                 .settings = {{"weight-range", "full", ""}},
                 .is_ort_cpu = true});
  all.push_back({.name = "ort-cpu:avx2",
                 .help = "x86 CPUs without VNNI",
                 .settings = {{"weight-range", "pairs", "other weights saturate", {"reduced"}}},
                 .is_ort_cpu = true});
  all.push_back({.name = "ort-cpu:arm",
                 .help = "ARM CPUs",
                 .settings = {{"activation-type", "int8", ""}, {"weight-range", "full", ""}},
                 .is_ort_cpu = true,
                 .is_this_machine = kIsArm});
  all.push_back({.name = "ort-web",
                 .help = "ONNX Runtime in browsers",
                 .settings = {{"weight-range", "full", ""}},
                 .is_ort_cpu = true});
  all.push_back({.name = "openvino",
                 .help = "OpenVINO's CPU plugin",
                 // On x86 CPUs without VNNI its kernels saturate as ONNX Runtime's do.
                 .settings = {{"weight-type", "int8", "OpenVINO then computes in float"},
                              {"weight-symmetric", "true", "OpenVINO then computes in float"},
                              {"weight-range", "pairs", ""},
                              {"activation-type", "uint8", "OpenVINO has integer kernels for 8 bits only", {"int8"}}},
                 // A transposed convolution runs on integers with zero point 0 alone.
                 .float_types = {"ConvTranspose"},
                 .constant_weights_only = true,
                 .centred_operands = true,
                 // It puts such a pool there itself, but between the integers and their scale.
                 .pooled_strides = true,
                 // It makes one kernel of them, which runs in float, and reads what it never wrote where there is no
                 // bias (2026.4.1).
                 .axis_for_few_rows = true});
}

void add_accelerators(std::vector<Target>& all) {
  all.push_back(qnn("qnn", "Qualcomm's HTP, activations of 8 bits", {"activation-type", "uint8", "", {}}));
  all.push_back(qnn("qnn:a16", "Qualcomm's HTP, activations of 16 bits",
                    {"activation-type", "uint16", "it has activations of 16 bits", {"int16"}}));
  all.push_back({.name = "tensorrt",
                 .help = "TensorRT",
                 .settings = joined(symmetric_weights("TensorRT's zero points are 0"),
                                    {{"activation-type", "int8", "TensorRT has int8 alone"},
                                     {"activation-symmetric", "true", "TensorRT's zero points are 0"}}),
                 .constant_weights_only = true,
                 .fuses_sums = true,
                 .opset = 13});
  all.push_back(xint8());
  all.push_back(amd("amd-npu:a8w8", "AMD's NPU, 8 bits",
                    {{"activation-type", "int8", "A8W8 has activations of 8 bits", {"uint8"}},
                     {"per-channel", "false", "A8W8 has one scale for each weight"},
                     {"accuracy-fallback", "int16", ""}}));
  all.push_back(amd("amd-npu:a16w8", "AMD's NPU, activations of 16 bits",
                    {{"activation-type", "int16", "A16W8 has activations of 16 bits", {"uint16"}},
                     {"per-channel", "false", "A16W8 has one scale for each weight"}}));
  all.push_back(
      {.name = "amd-npu:bfp16",
       .help = "AMD's NPU, block floats",
       .settings = {{"block-float",
                     "bfp16",
                     "the NPU's operators round to block floats",
                     {"mx4", "mx6", "mx9", "mxfp8e5m2", "mxfp8e4m3", "mxfp6e3m2", "mxfp6e2m3", "mxfp4e2m1", "mxint8"}},
                    kFloat32},
       .all_operators = true,
       .op_types = kNpuTypes,
       .opset = 17,
       .static_shapes = true,
       .explicit_convolutions = true});
  all.push_back({.name = "amd-npu:bf16",
                 .help = "AMD's NPU, bfloat16",
                 .settings = {{"float", "bf16", "the NPU computes in bfloat16"}, {"preset", "none", kNoIntegers}},
                 .opset = 17,
                 .static_shapes = true,
                 .explicit_convolutions = true});
}

void add_mobile_runtimes(std::vector<Target>& all) {
  all.push_back(
      {.name = "xnnpack",
       .help = "ONNX Runtime's XNNPACK provider",
       .settings = joined(symmetric_weights("XNNPACK's weights have zero point 0"),
                          {{"activation-type", "int8", "XNNPACK has activations of 8 bits", {"uint8"}}, kFloat32})});
  all.push_back({.name = "tflite-like",
                 .help = "runtimes with LiteRT's 8-bit operators",
                 .settings = joined(symmetric_weights("LiteRT's weights are int8 with zero point 0"),
                                    {{"activation-type", "int8", "LiteRT's activations are int8"},
                                     {"activation-symmetric", "false", ""},
                                     kFloat32}),
                 .all_operators = true,
                 .op_types = kLiteTypes,
                 .per_channel_types = {"Conv", "ConvTranspose"},
                 .fixed_ranges = {{"Softmax", kInt8, 0.0F, 255.0F / 256},
                                  {"Sigmoid", kInt8, 0.0F, 255.0F / 256},
                                  {"LogSoftmax", kInt8, -255.0F / 16, 0.0F},
                                  {"Tanh", kInt8, -1.0F, 127.0F / 128}},
                 .aligned_types = {"Concat", "Max", "Min"},
                 .activated_types = {"Add", "AveragePool", "Div", "MaxPool", "Mul", "Sub"},
                 .static_shapes = true});
  all.push_back({.name = "coreml",
                 .help = "ONNX Runtime's CoreML provider, in float16",
                 .settings = {{"float", "16", kNoIntegers}, {"preset", "none", kNoIntegers}},
                 .static_shapes = true});
}

std::vector<Target> make_targets() {
  std::vector<Target> all;
  add_runtimes_of_cpus(all);
  add_accelerators(all);
  add_mobile_runtimes(all);
  return all;
}

bool holds(const Types& types, std::string_view op_type) {
  return std::find(types.begin(), types.end(), op_type) != types.end();
}

}  // namespace

bool Target::aligns(std::string_view op_type) const noexcept { return holds(aligned_types, op_type); }
bool Target::has_channels(std::string_view op_type) const noexcept {
  return per_channel_types.empty() || holds(per_channel_types, op_type);
}
bool Target::runs_activation_along(std::string_view op_type) const noexcept { return holds(activated_types, op_type); }
bool Target::has_activation(std::string_view op_type) const noexcept { return holds(activations, op_type); }
bool Target::has_own_scale(std::string_view op_type) const noexcept { return holds(own_scale_types, op_type); }
bool Target::keeps_in_float(std::string_view op_type) const noexcept { return holds(float_types, op_type); }
bool Target::has_8_bits_alone(std::string_view op_type) const noexcept { return holds(narrow_types, op_type); }
bool Target::keeps_bias_in_float(std::string_view op_type) const noexcept { return holds(float_bias_types, op_type); }

const std::vector<Target>& targets() {
  static const auto all = make_targets();
  return all;
}

std::vector<std::pair<std::string, std::string>> target_names() {
  std::vector<std::pair<std::string, std::string>> names;
  names.emplace_back(kAutomaticTarget, "the best that the ONNX Runtime that is loaded has a provider for");
  for (const auto& t : targets()) names.emplace_back(t.name, t.help);
  return names;
}

const Target& target(std::string_view name) {
  Types all{kAutomaticTarget};
  for (const auto& t : targets()) {
    if (t.name == name) return t;
    all.push_back(t.name);
  }
  throw not_one_of("--target", name, all);
}

}  // namespace detent::config
