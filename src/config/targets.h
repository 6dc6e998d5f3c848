// Targets: where a model runs, as data. A new one is one more file in share/detent/targets, or a row in targets.cpp
// where what it asks for has no word in such files; docs/targets.md has the source of each rule.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detent/config.h"

namespace detent::config {

/// What a target says of an option: the value that the option gets unless the user gives it, and which others the user
/// may give.
struct Setting {
  std::string option;  // its name
  std::string value;
  std::string why;  // what the target does with other values; empty: any value may be given
  std::vector<std::string> also = {};
};

/// The range of an operator's results, whatever was observed.
struct FixedRange {
  std::string op_type;
  QuantType type;  // of activations; other types get the observed range
  float low = 0, high = 0;
};

/// The range of an operator's results is at least so wide.
struct LeastSpan {
  std::string op_type;
  float span;
};

struct Target {
  std::string name;
  std::string help;
  std::filesystem::path file = {};  // of the user's own
  std::vector<Setting> settings = {};
  /// ONNX Runtime's CPU kernels: what is done for them alone is done.
  bool is_ort_cpu = false;
  /// This machine: what is measured on it decides.
  bool is_this_machine = false;
  /// Float is no way out: all operators that it runs on integers are quantized, those that follow beside the usual.
  bool all_operators = false;
  std::vector<std::string> op_types = {};
  /// These stay in float, since their integers gain nothing there.
  std::vector<std::string> float_types = {};
  /// All others stay in float too; empty: those that become integers anywhere do.
  std::vector<std::string> accepted_types = {};
  /// Only these have one scale for each channel of a weight; empty: all that can.
  std::vector<std::string> per_channel_types = {};
  std::vector<FixedRange> fixed_ranges = {};
  std::vector<LeastSpan> least_spans = {};
  /// Inputs and output of these have one scale.
  std::vector<std::string> aligned_types = {};
  /// The outputs of these have a scale of their own, although that of the input would do.
  std::vector<std::string> own_scale_types = {};
  /// Beside products, these run a Relu or Clip that alone reads what they make along.
  std::vector<std::string> activated_types = {};
  /// These run along with what makes their input as a Relu does.
  std::vector<std::string> activations = {};
  /// A product of two activations stays in float.
  bool constant_weights_only = false;
  /// A MatMul of two activations does not, for all that: both have zero point 0, or the first is known to have it
  /// without a sign. The second has 7 bits, unless weights use all of theirs: pairs of products would saturate.
  bool centred_operands = false;
  /// The activations around an operator all have 8 bits, or all 16.
  bool one_width = false;
  /// What the HTP has another form for is written in that: Gelu instead of Erf, and convolutions instead of
  /// BatchNormalization, whose four parameters it rounds again.
  bool htp_rewrites = false;
  /// The biases of these stay in float.
  std::vector<std::string> float_bias_types = {};
  /// Of 16 bits it has none: what such operators read and make keeps 8 where 16 bits are to raise accuracy.
  std::vector<std::string> narrow_types = {};
  /// Of the two branches of a sum, the one that a convolution makes for it alone is not quantized: the two fuse.
  bool fuses_sums = false;
  /// Models of an older opset are upgraded to at least this one; 0: it takes all.
  std::int64_t opset = 0;
  bool static_shapes = false;
  /// Convolutions have all their attributes written out.
  bool explicit_convolutions = false;
  /// Convolutions of one place with strides become a pool and one without (graph::pool_before_strided_points).
  bool pooled_strides = false;
  /// Products of few rows, one behind the other, do not both have two axes (graph::add_axis_for_few_rows).
  bool axis_for_few_rows = false;
  /// Power-of-two scales are the nearest, not the next above.
  bool nearest_power_of_two = false;
  /// What it makes of operators, as in src/checking/tables; empty: its name has a table there.
  std::string table = {};

  bool aligns(std::string_view op_type) const noexcept;
  bool runs_activation_along(std::string_view op_type) const noexcept;
  bool has_activation(std::string_view op_type) const noexcept;
  bool has_own_scale(std::string_view op_type) const noexcept;
  bool has_channels(std::string_view op_type) const noexcept;
  bool keeps_bias_in_float(std::string_view op_type) const noexcept;
  bool has_8_bits_alone(std::string_view op_type) const noexcept;
  bool accepts(std::string_view op_type) const noexcept;  // as integers
};

/// Stands for the name of another target, as the path of a file does, which run::name_target() finds before anything
/// asks for the row.
inline constexpr std::string_view kAutomaticTarget = "auto";

const std::vector<Target>& targets();
/// The names, each with what it means.
std::vector<std::pair<std::string, std::string>> target_names();

/// Throws usage when there is none of this name.
const Target& target(std::string_view name);
inline const Target& target(const QuantConfig& config) { return target(config.target); }

// Targets in files (docs/own-parts.md).

/// Whether it is the path of such a file.
bool is_target_file(std::string_view name);

/// Throws usage, with file and line, for what is no target. `file` names the text in messages.
Target parse_target(const std::string& file, const std::string& text);

/// Reads a target of the user's own, which target() knows from then on by the name that this returns: it ends with the
/// fingerprint of the text, by which a run that is resumed and all results tell one from another.
std::string read_target(const std::filesystem::path& file);

}  // namespace detent::config
