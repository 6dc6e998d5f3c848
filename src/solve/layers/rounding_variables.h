// What a solver in mini-batches moves: AdaRound's or AdaQuant's variables and the bias, for rows of weights at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/adaquant_variables.h"
#include "solve/layers/adaround_variables.h"
#include "solve/layers/patches.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// Rows are independent: threads may work on different ones.
class RoundingVariables {
 public:
  /// `input_power`: mean square of the layer's inputs.
  RoundingVariables(const QuantizedWeights& weights, std::span<const float> bias, const FinetuneConfig& config,
                    double input_power);

  /// Quantized weights in units of their row's scale, for a part of each row: out[rows, part].
  void weights_over_scale(RowRange rows, Patches::Range part, float* out) const;
  std::size_t rows() const noexcept { return weights_.rows; }
  float scale(std::size_t row) const { return weights_.row_scale(row); }
  /// Of all rows; null where there is none.
  const float* bias() const noexcept { return bias_.empty() ? nullptr : bias_.data(); }
  bool trains_bias() const noexcept { return config_.update_bias && !bias_.empty() && adaquant_.has_value(); }

  /// The optimizer's step of an iteration. `slope`: gradient by the quantized weights, for a part of each row. `next`:
  /// where the values of that part go afterwards, or null. Parts begin at a multiple of part_size().
  void step(RowRange rows, Patches::Range part, const float* slope, std::size_t iteration, float* next);
  std::size_t part_size() const noexcept { return adaround_ ? adaround_->part_size() : AdaRoundVariables::kPiece; }
  /// Whether step() changes nothing of these rows, or of a part of each, any more.
  bool settled(RowRange rows) const { return settled(rows, {0, weights_.fan_in}); }
  bool settled(RowRange rows, Patches::Range part) const { return adaround_ && adaround_->settled(rows, part); }
  void step_bias(RowRange rows, const float* slope, std::size_t iteration);

  /// All that steps change.
  template <class Archive>
  void visit_state(Archive& archive) {
    if (adaround_) adaround_->visit_state(archive);
    if (adaquant_) adaquant_->visit_state(archive);
    archive(bias_);
    archive(bias_mean_);
    archive(bias_square_);
  }
  /// Whether nothing is between up and down any more; never of AdaQuant.
  bool decided() const { return adaround_ && adaround_->decided({0, weights_.rows}); }
  Solution solution() const { return {adaround_ ? adaround_->integers() : adaquant_->integers(), bias_}; }

 private:
  const QuantizedWeights& weights_;
  const FinetuneConfig& config_;
  std::vector<float> relative_;           // of each block, its scale in units of the row's
  std::vector<AdaRoundFactors> factors_;  // of each block
  std::optional<AdaRoundVariables> adaround_;
  std::optional<AdaQuantVariables> adaquant_;
  std::vector<float> bias_, bias_mean_, bias_square_;
};

}  // namespace detent::solve
