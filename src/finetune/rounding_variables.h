// What a solver in mini-batches moves: AdaRound's or AdaQuant's variables and the bias, for rows of weights at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "detent/config.h"
#include "finetune/patches.h"
#include "finetune/problem.h"
#include "finetune/quadratic.h"
#include "finetune/soft_rounding.h"
#include "finetune/straight_through.h"

namespace detent::finetune {

/// Rows are independent: threads may work on different ones.
class RoundingVariables {
 public:
  /// `input_power`: mean square of the layer's inputs.
  RoundingVariables(const QuantizedWeights& weights, std::span<const float> bias, const FinetuneConfig& config,
                    double input_power);

  /// Quantized weights in steps of their row's scale, for columns of rows: out[rows, columns].
  void values(RowRange rows, Patches::Range columns, float* out) const;
  float scale(std::size_t row) const noexcept { return weights_.scale[row]; }
  /// Of all rows; null where there is none.
  const float* bias() const noexcept { return bias_.empty() ? nullptr : bias_.data(); }
  bool trains_bias() const noexcept { return config_.update_bias && !bias_.empty() && through_.has_value(); }

  /// The optimizer's step of an iteration. `slope`: gradient by the quantized weights, of columns of rows. `next`:
  /// where the values of these columns go afterwards, or null. Columns begin at a multiple of SoftRounding::kBlock.
  void step(RowRange rows, Patches::Range columns, const float* slope, std::size_t iteration, float* next);
  /// Whether step() changes nothing of these rows, or of columns of them, any more.
  bool settled(RowRange rows) const { return settled(rows, {0, weights_.columns}); }
  bool settled(RowRange rows, Patches::Range columns) const { return soft_ && soft_->settled(rows, columns); }
  void step_bias(RowRange rows, const float* slope, std::size_t iteration);

  /// All that steps change.
  template <class Archive>
  void visit_state(Archive& archive) {
    if (soft_) soft_->visit_state(archive);
    if (through_) through_->visit_state(archive);
    archive(bias_);
    archive(bias_mean_);
    archive(bias_square_);
  }
  /// Whether nothing is between up and down any more; never of AdaQuant.
  bool decided() const { return soft_ && soft_->decided({0, weights_.rows}); }
  Solution solution() const { return {soft_ ? soft_->integers() : through_->integers(), bias_}; }

 private:
  const QuantizedWeights& weights_;
  const FinetuneConfig& config_;
  double input_power_;
  std::optional<SoftRounding> soft_;
  std::optional<StraightThrough> through_;
  std::vector<float> bias_, bias_mean_, bias_square_;
};

}  // namespace detent::finetune
