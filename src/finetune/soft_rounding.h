// AdaRound's variables: a number h in [0, 1] for each weight that says how far it is rounded up (Nagel et al. 2020,
// arXiv:2004.10568, equations 21 to 25), whatever the loss is computed from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "detent/config.h"
#include "finetune/adam.h"
#include "finetune/patches.h"
#include "finetune/problem.h"
#include "finetune/quadratic.h"

namespace detent::finetune {

/// What one optimizer step does beside following the loss.
struct SoftStep {
  AdamStep adam;
  float regularizer = 0;  // weight of Σ 1 − |2h − 1|^beta; 0 while the start is warm
  float beta = 2;

  /// Of iteration `i` in [0, config.num_iterations): beta falls by half a cosine once the start is over.
  static SoftStep at(const FinetuneConfig& config, std::size_t i);
};

/// One row's arrays, for the vector loop.
struct SoftRow {
  float* v;
  float* mean;
  float* square;
  float* h;
};

/// The step's vector loop over `count` weights. Gradient of the loss by h: factor · slope[i] + offset[i] (offset may be
/// null). Replaces v and h.
void soft_step(const SoftRow& row, const float* slope, const float* offset, float factor, std::size_t count,
               const SoftStep& step);

/// How many of these are neither 0 nor 1.
std::size_t count_moving(const float* h, std::size_t count);
/// out = base − zero + h.
void soft_values(const std::int32_t* base, std::int32_t zero, const float* h, std::size_t count, float* out);

/// How much more than config.reg_param the regularizer of a row weighs. Its paper's weight is for losses that are small
/// beside it; where rounding errors are expected to cost more, weights would stay between up and down until the end.
/// `input_power`: mean square of the row's inputs. Rounding a weight to nearest costs scale² / 12 · input_power.
float certainty_weight(float scale, double input_power);

/// The quantized weight is scale · (clip(base + h) − zero), base = floor(W / scale) + zero, clipped. A weight that is
/// clipped whichever way it is rounded has h = 0 for good.
///
/// A weight whose h is 0 or 1 is settled: the loss has no slope there, and what is left of earlier ones goes on in the
/// direction that it came from. Most are long before the last iteration, so steps leave them out: of each block of a
/// row the weights that still move come first in the optimizer's arrays.
class SoftRounding {
 public:
  static constexpr std::size_t kBlock = 256;  // columns

  explicit SoftRounding(const QuantizedWeights& weights);

  const std::vector<std::int32_t>& base() const noexcept { return base_; }
  /// h of all weights, [rows, columns].
  const float* h(std::size_t row) const noexcept { return h_.data() + row * columns_; }
  /// base − zero + h of columns of a row: its quantized weights in steps of the scale.
  void values(std::size_t row, Patches::Range columns, std::int32_t zero, float* out) const {
    const std::size_t at = row * columns_ + columns.first;
    soft_values(base_.data() + at, zero, h_.data() + at, columns.last - columns.first, out);
  }
  /// One step of columns of a row, whose slopes (and offsets, if any) are given; the regularizer weighs `certainty`
  /// times as much. Columns are whole blocks, or end with the row.
  void step(std::size_t row, Patches::Range columns, const float* slope, const float* offset, float factor,
            float certainty, const SoftStep& step);
  /// Has the processor fetch what step() of these columns works on. Parts of rows are too short for it to guess.
  void prefetch(std::size_t row, Patches::Range columns) const noexcept;
  /// Whether steps change nothing of these columns of rows any more, as far as it is known without a look at each.
  bool settled(RowRange rows, Patches::Range columns) const;
  /// Whether no weight of these rows is between up and down any more.
  bool decided(RowRange rows) const;
  bool decided() const { return h_.empty() || decided({0, h_.size() / columns_}); }
  /// All that step() changes, each in the order of the weights.
  template <class Archive>
  void visit_state(Archive& archive) {
    spread();
    archive(v_);
    archive(mean_);
    archive(square_);
    archive(h_);
  }
  /// Up where h ≥ 1/2.
  std::vector<std::int32_t> integers() const;

 private:
  std::size_t blocks() const noexcept { return (columns_ + kBlock - 1) / kBlock; }  // of a row
  void step_block(std::size_t row, std::size_t block, const float* slope, const float* offset, float factor,
                  const SoftStep& step);
  void leave_out_settled(std::size_t row, std::size_t block);
  void spread();

  std::size_t columns_;
  std::vector<std::int32_t> base_;
  std::vector<float> h_;
  // Of each block of a row the first moving_ ones, of the weights with these numbers in the block.
  std::vector<float> v_, mean_, square_;
  std::vector<std::uint8_t> number_;
  std::vector<std::uint16_t> moving_;
};

}  // namespace detent::finetune
