// What has to be solved for one layer: integers for its weights, so that its output comes closest to the float model's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace detent::finetune {

/// Weights as a matrix [outputs, fan_in], row-major, whatever layout the model has them in: row m holds the weights of
/// output m in the order of its patch, see patches.h.
struct QuantizedWeights {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> values;       // the float model's
  std::vector<float> scale;        // one for each row
  std::size_t scales = 0;          // that the model has: row m's is number m % scales; 0: one for each row
  std::vector<std::int32_t> zero;  // zero point of each row
  std::int32_t lowest = -128;      // of the integer type, or narrower
  std::int32_t highest = 127;

  std::int32_t levels() const noexcept { return highest - lowest + 1; }
  float dequantize(std::size_t row, std::int32_t q) const { return scale[row] * static_cast<float>(q - zero[row]); }
  /// By how many steps the integer `now` should change so that its weight follows −step best. A change has to be worth
  /// more than what float sums may be wrong by, or ties would flip for ever.
  std::int32_t best_change(std::size_t row, std::int32_t now, float step) const {
    constexpr float kHalf = 0.5001F;
    const float exact = -step / scale[row];
    if (scale[row] == 0 || !(std::abs(exact) > kHalf)) return 0;
    const float low = static_cast<float>(lowest - now);
    const float high = static_cast<float>(highest - now);
    return static_cast<std::int32_t>(std::nearbyint(std::clamp(exact, low, high)));
  }
  /// Half to even, clipped. A row whose scale is 0 has but one value, which all its integers stand for.
  std::int32_t quantize(std::size_t row, float value) const {
    if (scale[row] == 0) return std::clamp(zero[row], lowest, highest);
    const float low = static_cast<float>(lowest - zero[row]);
    const float high = static_cast<float>(highest - zero[row]);
    return static_cast<std::int32_t>(std::nearbyint(std::clamp(value / scale[row], low, high))) + zero[row];
  }
};

/// Sums over all columns x (patches) of the quantized branch and targets y, for each group g:
///   gram[g] = sum x xᵀ (fan_in²)      cross[m] = sum y_m x (fan_in)     both with the columns of the row's group
/// Reconstruction error of weights w and bias b: sum over columns of |w x + b − y|², a quadratic in w and b.
struct GramForm {
  std::size_t groups = 1;
  std::vector<float> gram;          // groups × fan_in × fan_in, symmetric, both halves filled
  std::vector<float> cross;         // rows × fan_in
  std::vector<double> input_sum;    // groups × fan_in
  std::vector<double> target_sum;   // rows
  std::vector<double> target_norm;  // rows: sum of y_m²
  std::uint64_t columns = 0;
  bool aims_at_weights = false;  // whether no weights are better than the float ones
};

/// The answer: integers [rows, columns], in [lowest, highest], and the bias (empty: none, and none is to be made).
struct Solution {
  std::vector<std::int32_t> integers;
  std::vector<float> bias;
};

/// Nearest rounding, half to even, as everywhere else in detent.
Solution nearest(const QuantizedWeights& weights, std::span<const float> bias);

/// Mean squared error over all output elements, by the Gram form; accumulated in double.
double mean_squared_error(const QuantizedWeights& weights, const GramForm& form, const Solution& solution);

}  // namespace detent::finetune
