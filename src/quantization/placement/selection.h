// Which nodes the user wants quantized.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "detent/config.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::quantization {

/// One flag for each node. Throws usage for a name, pattern or operator type that matches nothing, and for a bad
/// pattern: a misspelt exclusion must not pass in silence.
std::vector<bool> select_nodes(const onnx::Model& model, const QuantConfig& config);

/// Nodes that a name or pattern matches, ascending. Throws usage, naming the option, where there is none.
std::vector<std::size_t> match_nodes(const onnx::Model& model, const std::string& entry, const char* option);

/// The same without LSTM, whose integer form has dynamic activations (dynamic.h).
std::vector<bool> select_static_nodes(const onnx::Model& model, const QuantConfig& config);

/// The same where the user who names no types means all that the model has.
std::vector<bool> select_of_all_types(const onnx::Model& model, const QuantConfig& config);

/// An exact name, or a regular expression (RE2's syntax, over the whole name) when it starts with '^'.
class NamePattern {
 public:
  /// Throws usage for a bad expression.
  explicit NamePattern(const std::string& text);
  bool matches(const std::string& name) const { return pattern_ ? pattern_->matches_whole(name) : name == text_; }

 private:
  std::string text_;
  std::optional<Pattern> pattern_;
};

/// The nodes by the reason, each kind of operator by itself.
class LeftInFloat {
 public:
  void add(const onnx::Node& node, const std::string& reason) {
    nodes_[{reason, node.op_type()}].push_back(node.label());
  }

  /// One for each reason and kind, with the first node and how many more there are.
  std::vector<std::string> notes() const;
  std::size_t count() const;

 private:
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> nodes_;
};

/// Of a product in a front end, see graph::front_end().
inline constexpr std::string_view kBeforeLogarithm =
    "a logarithm or a power behind it makes large what integers lose of small values; --nodes quantizes it all the "
    "same";

/// Whether a product's second input is a constant without elements: no form of integers makes it smaller or faster.
bool reads_empty_weight(const onnx::Model& model, const graph::Index& index, const onnx::Node& product);

/// What a Gemm does beside multiplying by its second input and adding its third; empty: nothing.
std::string reason_against_gemm(const onnx::Node& gemm);

// Selective calibration: values that need no observation because an earlier value has the same statistics.

/// Operator types whose first output is given the statistics of the first input: those that move each value to exactly
/// one place, for which that is exact, and those that the configuration adds. Throws usage for an added type that the
/// model does not have.
std::set<std::string> passthrough_types(const onnx::Model& model, const QuantConfig& config);

/// The earliest value that has the statistics of `value`: itself, or one that reaches it through nodes of `types` only.
std::string statistics_source(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              const std::set<std::string>& passthrough, const std::string& value);

// Infinite values and NaN that models hold on purpose: masks of attention, rows of tables that nothing reads.

/// Whether all values of a tensor of floats are finite; of other types they are.
bool all_finite(const onnx::Tensor& tensor);

/// Constants with such values that are added to others or chosen from, and what is made with them up to the next
/// operator that may end them, as Softmax does. No integers hold these.
std::set<std::string> infinite_values(const onnx::Model& model);

}  // namespace detent::quantization
