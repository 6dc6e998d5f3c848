// Reasons why a quantized value differs from the float one, and the option that helps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::run {

/// The real values that the integers of a dequantized value reach: of the DequantizeLinear that makes it, when that has
/// one scale. nullopt for values that no such node makes.
std::optional<std::pair<double, double>> stored_range(const onnx::Model& quantized, const graph::Index& index,
                                                      const std::string& value);

/// Properties of the float values that decide how well one scale serves them.
class ValueTraits {
 public:
  explicit ValueTraits(std::optional<std::pair<double, double>> range) : range_(range) {}
  void add(std::span<const float> values, std::span<const std::int64_t> shape);

  const std::optional<std::pair<double, double>>& range() const noexcept { return range_; }
  double low() const noexcept { return low_; }
  double high() const noexcept { return high_; }
  double magnitude() const noexcept { return std::max(-low_, high_); }
  double share_cut() const noexcept { return count_ > 0 ? static_cast<double>(cut_) / static_cast<double>(count_) : 0; }
  /// Of values above a sixteenth of the range's larger bound.
  double share_large() const noexcept {
    return count_ > 0 ? static_cast<double>(large_) / static_cast<double>(count_) : 1;
  }
  /// Channels: axis 1 of tensors of four and more axes, else the last.
  std::size_t channels() const noexcept { return channels_.size(); }
  std::size_t large_channels() const;

 private:
  std::optional<std::pair<double, double>> range_;
  double low_ = 0, high_ = 0;  // 0 is in every range
  std::uint64_t count_ = 0, cut_ = 0, large_ = 0;
  std::vector<float> channels_;  // largest magnitude of each
};

struct Explanation {
  std::string reason;      // empty: none that stands out
  std::string suggestion;  // an option, or empty
};

/// A value with what is known of it; the traits must outlive the use.
struct MeasuredValue {
  const ValueTraits* traits = nullptr;
  double sqnr_db = 0;
};

/// What was done already, and is no advice any more.
struct Applied {
  bool equalized = false;  // channel ranges
  bool tuned = false;      // weights, by gptq, adaround or adaquant
};

/// What detent wrote into a model that it made. Of other tools' models: nothing.
Applied read_applied(const onnx::Model& quantized);
void write_applied(const Applied& applied, onnx::Model& quantized);

/// `values` are those of the float model, by name. `is_score`: only a Softmax reads the value
/// (graph::attention_scores()), so that masks in it are cut off on purpose.
Explanation explain(const onnx::Model& original, const graph::Index& index, const std::string& value,
                    const std::unordered_map<std::string, MeasuredValue>& values, const Applied& applied,
                    bool is_score);

}  // namespace detent::run
