#include "config/targets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/numbers.h"
#include "config/enum_names.h"
#include "config/option.h"

namespace detent::config {

/// Name and text of each file in share/detent/targets, written by the build.
std::span<const std::pair<std::string_view, std::string_view>> target_files();

namespace {

using Types = std::vector<std::string>;

constexpr QuantType kUint16 = QuantType::uint16;

// What Qualcomm's HTP runs on integers beside what is quantized everywhere.
const Types kHtpTypes{"Abs",       "DepthToSpace", "Div",          "Elu",  "Exp", "Expand", "Gelu",      "HardSigmoid",
                      "HardSwish", "LogSoftmax",   "Max",          "Min",  "Neg", "PRelu",  "ReduceMax", "ReduceMean",
                      "ReduceMin", "ReduceSum",    "SpaceToDepth", "Sqrt", "Sub", "Tanh",   "Tile"};
// What Quark's quantizer for convolutional networks on AMD's NPU adds.
const Types kNpuTypes{"DepthToSpace", "Div",        "Erf",          "HardSigmoid", "Max", "Min",
                      "PRelu",        "ReduceMean", "SpaceToDepth", "Sub",         "Tanh"};

constexpr const char* kNoIntegers = "it runs no integers";

// Around its integers are floats of 32 bits: a model of 16-bit floats is computed in float32 first.
const Setting kFloat32{"float", "32", ""};

// 8-bit weights whose zero points are 0.
std::vector<Setting> symmetric_weights(const std::string& why) {
  return {{"weight-type", "int8", why}, {"weight-symmetric", "true", why}, {"weight-range", "full", ""}};
}

std::vector<Setting> joined(std::vector<Setting> first, const std::vector<Setting>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

// AMD's NPU: what its integer flavours have in common.
Target amd(const std::string& name, const std::string& help, const std::vector<Setting>& settings) {
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

Target qnn(const std::string& name, const std::string& help, const Setting& activations) {
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

bool holds(const Types& types, std::string_view op_type) {
  return std::find(types.begin(), types.end(), op_type) != types.end();
}

// Targets in files.

// Options that a target may give values to.
constexpr std::string_view kSettable[] = {
    "activation-type", "activation-symmetric", "weight-type", "weight-symmetric", "weight-range",
    "per-channel",     "power-of-two-scale",   "float",       "accuracy-fallback"};

template <class Member>
struct Key {
  std::string_view name;
  Member Target::*member;
};

constexpr Key<bool> kFlags[] = {{"all-operators", &Target::all_operators},
                                {"static-shapes", &Target::static_shapes},
                                {"one-width", &Target::one_width},
                                {"constant-weights-only", &Target::constant_weights_only},
                                {"explicit-convolutions", &Target::explicit_convolutions},
                                {"nearest-power-of-two", &Target::nearest_power_of_two}};

constexpr Key<Types> kLists[] = {{"more-operators", &Target::op_types},
                                 {"float-operators", &Target::float_types},
                                 {"per-channel-operators", &Target::per_channel_types},
                                 {"one-scale-operators", &Target::aligned_types},
                                 {"own-scale-operators", &Target::own_scale_types},
                                 {"relu-operators", &Target::activated_types},
                                 {"activations", &Target::activations}};

// Types that operators may have, and how tables call them.
struct TypeName {
  std::string_view text;
  QuantType type;
  std::string_view form;
};
constexpr TypeName kTypes[] = {{"int8", QuantType::int8, "s8"},    {"uint8", QuantType::uint8, "u8"},
                               {"int16", QuantType::int16, "s16"}, {"uint16", QuantType::uint16, "u16"},
                               {"int4", QuantType::int4, "s4"},    {"uint4", QuantType::uint4, "u4"}};

const TypeName& type_of_name(std::string_view what, std::string_view text) {
  std::vector<std::string_view> all;
  for (const auto& type : kTypes) {
    if (type.text == text) return type;
    all.push_back(type.text);
  }
  throw not_one_of(what, text, all);
}

bool is_product(const std::string& op_type) {
  return op_type == "Conv" || op_type == "ConvTranspose" || op_type == "MatMul" || op_type == "Gemm";
}

// An entry of `operators`.
struct Accepted {
  std::string op_type;
  Types activations, weights;
  bool per_channel = true;
};

// What an own target makes of operators, in rows as in src/checking/tables.
class TableOfFile {
 public:
  TableOfFile(const Target& target, bool symmetric_activations, bool symmetric_weights)
      : target_(target), symmetric_activations_(symmetric_activations), symmetric_weights_(symmetric_weights) {}

  void add(const Accepted& a) {
    const bool product = is_product(a.op_type);
    const auto read = forms(a.activations, symmetric_activations_, {""});
    auto second = std::string("*");
    if (product) {
      second = forms(a.weights, symmetric_weights_, a.per_channel ? Types{"/c", "/t"} : Types{"/t"});
      if (!target_.constant_weights_only) second += "|" + read;
    }
    for (const auto& type : a.activations) {
      const auto first = forms({type}, symmetric_activations_, product ? Types{""} : Types{"", "/t"});
      const auto kernel = type.ends_with("16") ? "int16" : "int8";
      row(a.op_type, first, second, read, kernel, "");
      row(a.op_type, first, second, "f32", "float32", "results are quantized too");
    }
    row(a.op_type, "f32", "*", "*", "cpu", "not quantized");
    const auto types = product ? fmt::format(" and weights of {}{}", fmt::join(a.weights, " or "),
                                             a.per_channel ? "" : " with one scale")
                               : "";
    const auto zeros = [](bool symmetric) { return symmetric ? " with the zero point in the middle" : ""; };
    row(a.op_type, "*", "*", "*", "cpu",
        fmt::format("it takes activations of {}{}{}{}", fmt::join(a.activations, " or "), zeros(symmetric_activations_),
                    types, zeros(product && symmetric_weights_)));
  }

  void row(std::string_view op_type, std::string_view first, std::string_view second, std::string_view output,
           std::string_view kernel, std::string_view rule) {
    text_ += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", op_type, first, second, output, kernel, rule);
  }

  std::string take() { return std::move(text_); }

 private:
  static std::string forms(const Types& types, bool symmetric, const Types& ends) {
    Types all;
    for (const auto& type : types) {
      for (const auto& end : ends) {
        const auto form = type_of_name("", type).form;
        if (!symmetric) all.push_back(fmt::format("{}{}", form, end));
        all.push_back(fmt::format("{}={}", form, end));
      }
    }
    return fmt::format("{}", fmt::join(all, "|"));
  }

  const Target& target_;
  bool symmetric_activations_, symmetric_weights_;
  std::string text_;
};

class TargetFile {
 public:
  TargetFile(const std::string& file, const std::string& text) : file_(file) {
    try {
      read(YAML::Load(text));
    } catch (const YAML::Exception& e) {
      throw usage_error(fmt::format("{}:{}: {}", file_, e.mark.line + 1, e.msg));
    }
  }

  Target take() { return std::move(target_); }

 private:
  using Node = YAML::Node;
  using Keys = std::vector<std::string_view>;

  Error wrong(const Node& at, const std::string& what, std::string hint = {}) const {
    return usage_error(fmt::format("{}:{}: {}", file_, std::max(at.Mark().line + 1, 1), what), std::move(hint));
  }

  // What `f` throws is told with the line.
  template <class F>
  auto told(const Node& at, F f) const {
    try {
      return f();
    } catch (const Error& e) {
      throw wrong(at, e.what(), e.hint());
    }
  }

  std::string text_at(const Node& at, std::string_view key) const {
    if (!at.IsScalar()) throw wrong(at, fmt::format("{} is not one word", key));
    return at.Scalar();
  }

  Types list_at(const Node& at, std::string_view key) const {
    if (at.IsScalar()) return {at.Scalar()};
    if (!at.IsSequence() || at.size() == 0) throw wrong(at, fmt::format("{} is not a list of names", key));
    Types all;
    for (const auto& entry : at) all.push_back(text_at(entry, key));
    return all;
  }

  template <class T>
  T number_at(const Node& at, std::string_view key, const char* kind) const {
    T value{};
    if (!at.IsScalar() || !YAML::convert<T>::decode(at, value)) throw wrong(at, fmt::format("{} is not {}", key, kind));
    return value;
  }

  Types types_at(const Node& at, std::string_view key) const {
    auto all = list_at(at, key);
    for (const auto& type : all) told(at, [&] { return type_of_name(key, type); });
    return all;
  }

  // Every key is of these (none: may be any), and there once; those in front are there.
  void check_keys(const Node& map, std::string_view what, const Keys& known, std::size_t needed = 0) const {
    if (!map.IsMap()) throw wrong(map, fmt::format("{} is not a map", what));
    std::set<std::string> seen;
    for (const auto& entry : map) {
      const auto key = text_at(entry.first, what);
      if (!known.empty() && std::find(known.begin(), known.end(), key) == known.end())
        told(entry.first, [&]() -> int { throw not_one_of(what, key, known); });
      if (!seen.insert(key).second) throw wrong(entry.first, fmt::format("{}: '{}' is there twice", what, key));
    }
    for (std::size_t i = 0; i < needed; ++i) {
      if (!seen.contains(std::string(known[i]))) throw wrong(map, fmt::format("{}: there is no '{}'", what, known[i]));
    }
  }

  void read(const Node& root) {
    Keys keys{"version", "name", "help", "options", "operators", "fixed-ranges", "opset"};
    for (const auto& flag : kFlags) keys.push_back(flag.name);
    for (const auto& list : kLists) keys.push_back(list.name);
    check_keys(root, "a target", keys, 2);
    if (const auto version = text_at(root["version"], "version"); version != "1")
      throw wrong(root["version"], fmt::format("version: '{}' is not known", version), "this detent reads version: 1");
    target_.name = text_at(root["name"], "name");
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyz0123456789-_.:";
    if (target_.name.empty() || target_.name.find_first_not_of(kPlain) != std::string::npos)
      throw wrong(root["name"], fmt::format("name: '{}' is not of small letters, digits and -_.:", target_.name));
    target_.help = root["help"] ? text_at(root["help"], "help") : target_.name;
    for (const auto& [key, member] : kFlags) {
      if (const auto at = root[std::string(key)]) target_.*member = number_at<bool>(at, key, "true or false");
    }
    for (const auto& [key, member] : kLists) {
      if (const auto at = root[std::string(key)]) target_.*member = list_at(at, key);
    }
    if (const auto at = root["opset"]) target_.opset = number_at<std::int64_t>(at, "opset", "a whole number");
    if (const auto at = root["options"]) {
      check_keys(at, "options", {std::begin(kSettable), std::end(kSettable)});
      for (const auto& entry : at) add_setting(entry.first.Scalar(), entry.second);
    }
    if (const auto at = root["fixed-ranges"]) {
      if (!at.IsSequence()) throw wrong(at, "fixed-ranges is not a list");
      for (const auto& entry : at) add_fixed_range(entry);
    }
    take_operators(root["operators"]);
  }

  // `int8`; `[uint8, int8]`: the first unless another of them is given; {default: int8}: any may be given; {only: …,
  // why: …}.
  void add_setting(const std::string& key, const Node& at) {
    Setting setting{key, "", fmt::format("{} has no other", target_.name)};
    const bool free = at.IsMap() && at["default"];
    if (at.IsMap()) {
      check_keys(at, key, {"default", "only", "why"});
      if (free == static_cast<bool>(at["only"]) || (free && at["why"]))
        throw wrong(at, fmt::format("{} has either a default, or 'only' and 'why'", key));
      if (free) setting.why.clear();
      if (at["why"]) setting.why = text_at(at["why"], "why");
    }
    const Node values = !at.IsMap() ? at : free ? at["default"] : at["only"];
    const auto& option = *find(key, kQuantize);
    for (const auto& text : list_at(values, key)) {
      QuantizeOptions any;
      const auto member = *option.member(any);
      told(values, [&] {
        assign(option, member, {text}, key);
        return 0;
      });
      setting.also.push_back(text_of(member, option.form));
    }
    setting.value = setting.also.front();
    setting.also.erase(setting.also.begin());
    target_.settings.push_back(std::move(setting));
  }

  void add_fixed_range(const Node& at) {
    check_keys(at, "fixed-ranges", {"operator", "type", "low", "high"}, 4);
    FixedRange fixed{text_at(at["operator"], "operator"),
                     told(at, [&] { return type_of_name("type", text_at(at["type"], "type")).type; }),
                     number_at<float>(at["low"], "low", "a number"), number_at<float>(at["high"], "high", "a number")};
    if (!(fixed.low < fixed.high && std::isfinite(fixed.low) && std::isfinite(fixed.high)))
      throw wrong(at, fmt::format("fixed-ranges: {} to {} is no range", fixed.low, fixed.high));
    target_.fixed_ranges.push_back(std::move(fixed));
  }

  const Setting* strict(std::string_view option) const {
    const auto is_it = [&](const auto& s) { return s.option == option && !s.why.empty(); };
    const auto found = std::find_if(target_.settings.begin(), target_.settings.end(), is_it);
    return found == target_.settings.end() ? nullptr : &*found;
  }
  bool is_always(std::string_view option, std::string_view value) const {
    const auto* setting = strict(option);
    return setting != nullptr && setting->value == value && setting->also.empty();
  }
  Types allowed(std::string_view option, Types otherwise) const {
    const auto* setting = strict(option);
    if (setting == nullptr) return otherwise;
    Types all{setting->value};
    all.insert(all.end(), setting->also.begin(), setting->also.end());
    return all;
  }

  Types own_types(const Node& at, const std::string& key, const Types& all) const {
    if (!at) return all;
    auto own = types_at(at, key);
    for (const auto& type : own) {
      if (!holds(all, type))
        throw wrong(at, fmt::format("{}: the options have no {}", key, type),
                    fmt::format("choose from: {}", fmt::join(all, ", ")));
    }
    return own;
  }

  Accepted accepted(const std::string& op_type, const Node& said) const {
    Accepted a{op_type, allowed("activation-type", {"int8", "uint8", "int16", "uint16"}),
               allowed("weight-type", {"int8", "uint8"}), !is_always("per-channel", "false")};
    if (!said || said.IsNull()) return a;
    check_keys(said, op_type, {"activations", "weights", "per-channel"});
    a.activations = own_types(said["activations"], op_type + ": activations", a.activations);
    a.weights = own_types(said["weights"], op_type + ": weights", a.weights);
    if (said["per-channel"]) a.per_channel = number_at<bool>(said["per-channel"], "per-channel", "true or false");
    return a;
  }

  void take_operators(const Node& at) {
    std::vector<Accepted> all;
    if (at && at.IsMap()) {
      check_keys(at, "operators", {});
      for (const auto& entry : at) all.push_back(accepted(entry.first.Scalar(), entry.second));
    } else {
      for (const auto& type : at ? list_at(at, "operators") : Types{"Conv", "ConvTranspose", "MatMul", "Gemm"})
        all.push_back(accepted(type, Node()));
    }
    TableOfFile table(target_, is_always("activation-symmetric", "true"), is_always("weight-symmetric", "true"));
    for (const auto& a : all) table.add(a);
    if (at) {
      accept(all);
      table.row("*", "*", "*", "*", "cpu", "it does not have this operator on integers");
    } else {
      table.add(accepted("*", Node()));
    }
    target_.table = table.take();
  }

  void accept(const std::vector<Accepted>& all) {
    const bool differ = std::any_of(all.begin(), all.end(), [](const auto& a) { return !a.per_channel; });
    for (const auto& a : all) {
      target_.op_types.push_back(a.op_type);
      target_.accepted_types.push_back(a.op_type);
      if (differ && a.per_channel) target_.per_channel_types.push_back(a.op_type);
      const auto is_wide = [](const std::string& type) { return type.ends_with("16"); };
      if (std::none_of(a.activations.begin(), a.activations.end(), is_wide)) target_.narrow_types.push_back(a.op_type);
    }
  }

  std::string file_;
  Target target_;
};

Target built_in(std::string_view file) {
  for (const auto& [name, text] : target_files()) {
    if (name == file) return parse_target(std::string(name), std::string(text));
  }
  throw internal_error("a target without its file");
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
  all.push_back(built_in("amd-npu-xint8"));
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
  all.push_back(built_in("tflite-like"));
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

}  // namespace

Target parse_target(const std::string& file, const std::string& text) { return TargetFile(file, text).take(); }

bool Target::aligns(std::string_view op_type) const noexcept { return holds(aligned_types, op_type); }
bool Target::has_channels(std::string_view op_type) const noexcept {
  return per_channel_types.empty() || holds(per_channel_types, op_type);
}
bool Target::runs_activation_along(std::string_view op_type) const noexcept { return holds(activated_types, op_type); }
bool Target::has_activation(std::string_view op_type) const noexcept { return holds(activations, op_type); }
bool Target::has_own_scale(std::string_view op_type) const noexcept { return holds(own_scale_types, op_type); }
bool Target::accepts(std::string_view op_type) const noexcept {
  return !holds(float_types, op_type) && (accepted_types.empty() || holds(accepted_types, op_type));
}
bool Target::has_8_bits_alone(std::string_view op_type) const noexcept { return holds(narrow_types, op_type); }
bool Target::keeps_bias_in_float(std::string_view op_type) const noexcept { return holds(float_bias_types, op_type); }

const std::vector<Target>& targets() {
  static const auto all = make_targets();
  return all;
}

std::vector<std::pair<std::string, std::string>> target_names() {
  std::vector<std::pair<std::string, std::string>> names;
  names.emplace_back(kAutomaticTarget, "the best one that the loaded ONNX Runtime has a provider for");
  for (const auto& t : targets()) names.emplace_back(t.name, t.help);
  return names;
}

namespace {

// What was read from files stays, since rows are handed out by reference: a text that is read again is the same row.
class OwnTargets {
 public:
  const Target* find(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(name);
    return found == all_.end() ? nullptr : &found->second;
  }
  void add(Target target) {
    const std::lock_guard lock(mutex_);
    auto name = target.name;
    all_.emplace(std::move(name), std::move(target));
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Target, std::less<>> all_;
};

OwnTargets& own_targets() {
  static OwnTargets all;
  return all;
}

}  // namespace

const Target& target(std::string_view name) {
  std::vector<std::string_view> all{kAutomaticTarget};
  for (const auto& t : targets()) {
    if (t.name == name) return t;
    all.push_back(t.name);
  }
  if (const auto* own = own_targets().find(name)) return *own;
  throw not_one_of("--target", name, all);
}

bool is_target_file(std::string_view name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }

std::string read_target(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_small_file(file, "the target");
  } catch (const Error& e) {
    throw usage_error(fmt::format("--target '{}' cannot be read ({})", file.string(), e.what()), e.hint());
  }
  Target own = parse_target(file.string(), text);
  for (const auto& t : targets()) {
    const auto maker = t.name.substr(0, t.name.find(':'));
    if (own.name.starts_with(maker))
      throw usage_error(fmt::format("{}: name: '{}' begins as the built-in target {}", file.string(), own.name, t.name),
                        "give it a name of its own");
  }
  Hasher hasher;
  hasher.add(text);
  own.name += "@" + hasher.result().text();
  own.file = file;
  std::string name = own.name;
  own_targets().add(std::move(own));
  return name;
}

}  // namespace detent::config
