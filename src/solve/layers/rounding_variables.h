// What a solver in mini-batches moves: AdaRound's or AdaQuant's variables and the bias, for rows of weights at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/vector_math.h"
#include "solve/layers/problem.h"

namespace detent::solve {

// AdaQuant's variables: weights as continuous numbers, rounded where the loss sees them; its gradient passes straight
// through the rounding (Hubara et al. 2020, arXiv:2006.10518).

/// The step of iteration `i` in [0, config.num_iterations). The rate falls from config.learning_rate to 0: at a
/// constant one weights between two integers go on changing places, and the end is as good as the moment it is taken
/// at.
AdamStep adaquant_adam(const FinetuneConfig& config, std::size_t i);

/// One row's arrays, for the vector loop. Weights are in units of their scale, less the zero point.
struct AdaQuantRow {
  float* w;
  float* mean;
  float* square;
  float* q;  // rounded and clipped
};

/// The step's vector loop. Gradient of the loss by the quantized weight, not in units of the scale: factor · slope[i] +
/// offset[i] (offset may be null); none reaches a weight that is clipped. One step is 1 / per_step in the weights' own
/// unit.
void adaquant_step(const AdaQuantRow& row, const float* slope, const float* offset, float factor, float low, float high,
                   float per_step, std::size_t count, const AdamStep& step);

class AdaQuantVariables {
 public:
  explicit AdaQuantVariables(const QuantizedWeights& weights);

  /// Integers less their zero points, as floats, of a row.
  const float* q(std::size_t row) const noexcept { return q_.data() + row * weights_.fan_in; }
  /// One step of a part of a row, whose slopes (and offsets, if any) are given.
  void step(std::size_t row, Patches::Range part, const float* slope, const float* offset, float factor,
            const AdamStep& step);
  std::vector<std::int32_t> integers() const;
  /// All that step() changes.
  template <class Archive>
  void visit_state(Archive& archive) {
    archive(w_);
    archive(mean_);
    archive(square_);
    archive(q_);
  }

 private:
  const QuantizedWeights& weights_;
  std::vector<float> w_, mean_, square_, q_;
};

// AdaRound's variables: a number h in [0, 1] for each weight that says how far it is rounded up (Nagel et al. 2020,
// arXiv:2004.10568, equations 21 to 25), whatever the loss is computed from.

/// What one optimizer step does beside following the loss.
struct AdaRoundStep {
  AdamStep adam;
  float regularizer = 0;  // weight of Σ 1 − |2h − 1|^beta; 0 while the start is warm
  float beta = 2;

  /// Of iteration `i` in [0, config.num_iterations): beta falls by half a cosine once the start is over.
  static AdaRoundStep at(const FinetuneConfig& config, std::size_t i);
};

/// One row's arrays, for the vector loop.
struct AdaRoundRow {
  float* v;
  float* mean;
  float* square;
  float* h;
};

/// The step's vector loop over `count` weights. Gradient of the loss by h: factor · slope[i] + offset[i] (offset may be
/// null). Replaces v and h.
void adaround_step(const AdaRoundRow& row, const float* slope, const float* offset, float factor, std::size_t count,
                   const AdaRoundStep& step);

/// How many of these are neither 0 nor 1.
std::size_t count_moving(const float* h, std::size_t count);
/// out = base − zero + h.
void soft_quantized_weights(const std::int32_t* base, std::int32_t zero, const float* h, std::size_t count, float* out);

/// What the gradients of a block's weights are multiplied with.
struct AdaRoundFactors {
  float slope = 1;
  float regularizer = 1;
};

/// How much more than config.reg_param the regularizer of a row weighs. Its paper's weight is for losses that are small
/// beside it; where rounding errors are expected to cost more, weights would stay between up and down until the end.
/// `input_power`: mean square of the row's inputs. Rounding a weight to nearest costs scale² / 12 · input_power.
float certainty_weight(float scale, double input_power);

/// The quantized weight is scale · (clip(base + h) − zero), base = floor(W / scale) + zero, clipped. A weight that is
/// clipped whichever way it is rounded has h = 0 for good.
///
/// A weight whose h is 0 or 1 is settled: the loss has no slope there, and what is left of earlier ones goes on in the
/// direction that it came from. Most are long before the last iteration, so steps leave them out: of each piece of a
/// row the weights that still move come first in the optimizer's arrays. A piece lies within one block of scales.
class AdaRoundVariables {
 public:
  static constexpr std::size_t kPiece = 256;  // weights of a piece, at most

  explicit AdaRoundVariables(const QuantizedWeights& weights);

  const std::vector<std::int32_t>& base() const noexcept { return base_; }
  /// h of all weights, [rows, fan_in].
  const float* h(std::size_t row) const noexcept { return h_.data() + row * fan_in_; }
  /// base − zero + h of a part of a row that lies within one block: its quantized weights in units of the scale.
  void values(std::size_t row, Patches::Range part, std::int32_t zero, float* out) const {
    const std::size_t at = row * fan_in_ + part.first;
    soft_quantized_weights(base_.data() + at, zero, h_.data() + at, part.last - part.first, out);
  }
  /// Weights of a part of a row that step() takes: whole pieces, at most kPiece weights.
  std::size_t part_size() const noexcept { return kPiece / piece_ * piece_; }
  /// One step of a part of a row, whose slopes (and offsets, if any) are given, with the factors of the row's blocks.
  /// Parts are whole pieces, or end with the row.
  void step(std::size_t row, Patches::Range part, const float* slope, const float* offset,
            std::span<const AdaRoundFactors> factors, const AdaRoundStep& step);
  /// Has the processor fetch what step() of this part works on. Parts of rows are too short for it to guess.
  void prefetch(std::size_t row, Patches::Range part) const noexcept;
  /// Whether steps change nothing of this part of rows any more, as far as it is known without a look at each.
  bool settled(RowRange rows, Patches::Range part) const;
  /// Whether no weight of these rows is between up and down any more.
  bool decided(RowRange rows) const;
  bool decided() const { return h_.empty() || decided({0, h_.size() / fan_in_}); }
  /// All that step() changes, each in the order of the weights.
  template <class Archive>
  void visit_state(Archive& archive) {
    restore_weight_order();
    archive(v_);
    archive(mean_);
    archive(square_);
    archive(h_);
  }
  /// Up where h ≥ 1/2.
  std::vector<std::int32_t> integers() const;

 private:
  std::size_t pieces() const noexcept { return (fan_in_ + piece_ - 1) / piece_; }  // of a row
  void step_piece(std::size_t row, std::size_t piece, const float* slope, const float* offset, float factor,
                  const AdaRoundStep& step);
  void leave_out_settled(std::size_t row, std::size_t piece);
  void restore_weight_order();

  std::size_t fan_in_;
  std::size_t block_;  // weights of a block of scales
  std::size_t piece_;
  std::vector<std::int32_t> base_;
  std::vector<float> h_;
  // Of each piece of a row the first moving_ ones, of the weights with these numbers in the piece.
  std::vector<float> v_, mean_, square_;
  std::vector<std::uint8_t> number_;
  std::vector<std::uint16_t> moving_;
};

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
