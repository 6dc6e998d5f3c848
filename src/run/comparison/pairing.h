// Pairs the values of two models that run at the same time.
#pragma once

#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/sample.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::run {

/// A result whose worst output is not this near to the float model's, in dB, is of no use.
inline constexpr double kUselessDb = 6;
inline const double kUselessError = std::pow(10, -kUselessDb / 10);  // as a share of the energy

// Reasons why a quantized value differs from the float one, and the option that helps.

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

/// Running sums for one pair of values. Where both have the same infinity, or both no number, nothing is added; where
/// one of them is not finite, the noise is infinite.
struct PairSums {
  double signal = 0;   // sum x^2
  double noise = 0;    // sum (x-y)^2
  double product = 0;  // sum x*y
  double other = 0;    // sum y^2
  double max_abs = 0;
  std::uint64_t paired = 0;    // elements
  std::uint64_t unpaired = 0;  // elements that only one of the two has, where their counts differ: these are left out

  /// Pairs the first elements of both.
  void add(std::span<const float> x, std::span<const float> y);
  /// The same of two arrays of floating-point types: pairs what stands in both at the same place.
  void add(const data::Array& x, const data::Array& y);
  PairSums& operator+=(const PairSums& more);
  double sqnr_db() const;
  double cosine() const;
  /// Whether there is a ratio to tell: not where nothing could be paired, nor of errors in values that are all 0.
  bool has_ratio() const { return paired > 0 && (signal > 0 || !(noise > 0)); }
};

/// Which of a model's outputs are judged, by their types in it and in another model of the same outputs: those that
/// both give as floats. Where the first has none of floats, as behind an ArgMax, its integers are judged as numbers.
std::vector<bool> judged_outputs(const std::vector<onnx::DataType>& types, const std::vector<onnx::DataType>& others);
std::vector<onnx::DataType> types_of(const std::vector<data::Array>& arrays);

/// Of one value over samples: all of them together, and the one that is farthest.
struct SampleSums {
  PairSums all;
  std::optional<double> worst_db;  // unset: no sample has a ratio

  void add(const data::Array& x, const data::Array& y);
};

/// The float model's run offers each value; the quantized model's run takes it when it computes its own. The float run
/// pauses while more than `limit` bytes are pending, unless the other side is waiting for a value not yet offered.
class Pairing {
 public:
  explicit Pairing(std::uint64_t limit) : limit_(limit) {}

  /// Float side. Throws internal after abandon().
  void offer(std::size_t index, std::span<const std::byte> bytes);
  /// The float side has ended, with its error if it failed.
  void close(std::exception_ptr error);
  /// Quantized side: waits for the value. Throws the float side's error, or internal when the value never comes.
  std::vector<std::byte> take(std::size_t index);
  /// The quantized side has ended: the float side no longer pauses, and stops if the quantized side `failed`.
  void abandon(bool failed);
  void reset();

 private:
  std::uint64_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::size_t, std::vector<std::byte>> pending_;
  std::uint64_t pending_bytes_ = 0;
  bool taker_waits_ = false;
  bool taker_done_ = false;
  bool taker_failed_ = false;
  bool closed_ = false;
  std::exception_ptr error_;
};

}  // namespace detent::run
