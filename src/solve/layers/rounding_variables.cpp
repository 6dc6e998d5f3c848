#include "solve/layers/rounding_variables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace detent::solve {

RoundingVariables::RoundingVariables(const QuantizedWeights& weights, std::span<const float> bias,
                                     const FinetuneConfig& config, double input_power)
    : weights_(weights),
      config_(config),
      relative_(relative_scales(weights)),
      bias_(bias.begin(), bias.end()),
      bias_mean_(bias.size()),
      bias_square_(bias.size()) {
  if (config.solver == WeightSolver::adaround) {
    adaround_.emplace(weights);
    for (const float scale : weights.scale) factors_.push_back({scale, certainty_weight(scale, input_power)});
  } else {
    adaquant_.emplace(weights);
  }
}

void RoundingVariables::weights_over_scale(RowRange rows, Patches::Range part, float* out) const {
  const std::size_t count = part.last - part.first;
  for (std::size_t m = rows.first; m < rows.last; ++m, out += count) {
    for_each_scale_block(weights_, m, part.first, part.last, [&](std::size_t first, std::size_t last, std::size_t b) {
      float* to = out + (first - part.first);
      if (adaquant_) {
        std::copy_n(adaquant_->q(m) + first, last - first, to);
      } else {
        adaround_->values(m, {first, last}, weights_.zero[b], to);
      }
      if (relative_[b] == 1) return;
      for (std::size_t i = 0; i < last - first; ++i) to[i] *= relative_[b];
    });
  }
}

void RoundingVariables::step(RowRange rows, Patches::Range part, const float* slope, std::size_t iteration,
                             float* next) {
  const std::size_t count = part.last - part.first;
  const AdaRoundStep adaround_step = AdaRoundStep::at(config_, iteration);
  const AdamStep adam = adaquant_adam(config_, iteration);
  for (std::size_t m = rows.first; m < rows.last; ++m, slope += count) {
    if (adaround_) {
      if (m + 1 < rows.last) adaround_->prefetch(m + 1, part);
      const std::size_t blocks = weights_.blocks();
      adaround_->step(m, part, slope, nullptr, std::span(factors_).subspan(m * blocks, blocks), adaround_step);
    } else {
      adaquant_->step(m, part, slope, nullptr, 1.0F, adam);
    }
    if (next != nullptr)
      weights_over_scale({m, m + 1}, part, next + (m - rows.first) * count);  // still in the nearest cache
  }
}

void RoundingVariables::step_bias(RowRange rows, const float* slope, std::size_t iteration) {
  const AdamStep adam = adaquant_adam(config_, iteration);
  for (std::size_t m = rows.first; m < rows.last; ++m) {
    adam.add(slope[m - rows.first], bias_mean_[m], bias_square_[m]);
    bias_[m] += adam.change(bias_mean_[m], bias_square_[m]);
  }
}

AdamStep adaquant_adam(const FinetuneConfig& config, std::size_t i) {
  const double left = 1 - static_cast<double>(i) / static_cast<double>(config.num_iterations);
  return {config.learning_rate.value_or(1e-5) * left, i + 1};
}

AdaQuantVariables::AdaQuantVariables(const QuantizedWeights& weights)
    : weights_(weights), w_(weights.values.size()), mean_(w_.size()), square_(w_.size()), q_(w_.size()) {
  for (std::size_t i = 0; i < w_.size(); ++i) {
    const std::size_t m = i / weights.fan_in, k = i % weights.fan_in;
    const float scale = weights.scale_of(m, k);
    w_[i] = scale == 0 ? 0.0F : weights.values[i] / scale;
    q_[i] = static_cast<float>(weights.quantize(m, k, weights.values[i]) - weights.zero_of(m, k));
  }
}

void AdaQuantVariables::step(std::size_t row, Patches::Range part, const float* slope, const float* offset,
                             float factor, const AdamStep& step) {
  for_each_scale_block(weights_, row, part.first, part.last, [&](std::size_t first, std::size_t last, std::size_t b) {
    if (weights_.scale[b] == 0) return;
    const std::size_t at = row * weights_.fan_in + first, done = first - part.first;
    adaquant_step({w_.data() + at, mean_.data() + at, square_.data() + at, q_.data() + at}, slope + done,
                  offset == nullptr ? nullptr : offset + done, factor,
                  static_cast<float>(weights_.lowest - weights_.zero[b]),
                  static_cast<float>(weights_.highest - weights_.zero[b]), 1 / weights_.scale[b], last - first, step);
  });
}

std::vector<std::int32_t> AdaQuantVariables::integers() const {
  std::vector<std::int32_t> integers(q_.size());
  for (std::size_t i = 0; i < q_.size(); ++i) {
    integers[i] = static_cast<std::int32_t>(q_[i]) + weights_.zero_of(i / weights_.fan_in, i % weights_.fan_in);
  }
  return integers;
}

namespace {

constexpr double kZeta = 1.1;
constexpr double kGamma = -0.1;
constexpr float kNeverUp = -100.0F;  // v of a weight without choice
constexpr float kDecided = 0.01F;
constexpr float kSettledV = 100.0F;  // of a weight that is up for good
constexpr std::size_t kVector = 16;  // numbers that vector code works on together, at most

/// Weights of a piece: as many as blocks of scales have, or the largest part of these that fits.
std::size_t piece_of(const quantization::Granularity& granularity) {
  std::size_t piece = AdaRoundVariables::kPiece;
  const auto block = static_cast<std::size_t>(granularity.block);
  while (block % piece != 0) --piece;
  return piece;
}

}  // namespace

AdaRoundStep AdaRoundStep::at(const FinetuneConfig& config, std::size_t i) {
  AdaRoundStep step{AdamStep(config.learning_rate.value_or(0.1), i + 1)};
  const auto all = static_cast<double>(config.num_iterations);
  const double start = config.warm_start * all;
  if (static_cast<double>(i) < start) return step;
  const double share = (static_cast<double>(i) - start) / (all - start);
  const auto [from, to] = config.beta_range;
  step.regularizer = static_cast<float>(config.reg_param);
  step.beta = static_cast<float>(to + 0.5 * (from - to) * (1 + std::cos(share * std::numbers::pi)));
  return step;
}

AdaRoundVariables::AdaRoundVariables(const QuantizedWeights& weights)
    : fan_in_(weights.fan_in),
      block_(weights.block_size()),
      piece_(piece_of(weights.granularity)),
      base_(weights.values.size()),
      h_(base_.size()),
      v_(base_.size()),
      mean_(base_.size()),
      square_(base_.size()),
      number_(base_.size()),
      moving_(weights.rows * pieces()) {
  for (std::size_t b = 0; b < moving_.size(); ++b) {
    moving_[b] = static_cast<std::uint16_t>(std::min(piece_, fan_in_ - b % pieces() * piece_));
  }
  for (std::size_t m = 0, at = 0; m < weights.rows; ++m) {
    for (std::size_t k = 0; k < fan_in_; ++k, ++at) {
      const float scale = weights.scale_of(m, k);
      const float steps = scale == 0 ? 0.0F : weights.values[at] / scale;
      const double down = std::floor(static_cast<double>(steps)) + weights.zero_of(m, k);
      base_[at] = static_cast<std::int32_t>(
          std::clamp(down, static_cast<double>(weights.lowest), static_cast<double>(weights.highest)));
      if (down < weights.lowest || down >= weights.highest || scale == 0) {
        v_[at] = kNeverUp;
        continue;
      }
      const double fraction = steps - std::floor(static_cast<double>(steps));
      v_[at] = static_cast<float>(-std::log((kZeta - kGamma) / (fraction - kGamma) - 1));
      h_[at] = static_cast<float>(fraction);
    }
  }
}

float certainty_weight(float scale, double input_power) {
  constexpr double kShare = 200;  // with the default of 0.01: twice the expected cost of a weight
  return static_cast<float>(std::max(1.0, kShare * scale * scale / 12 * input_power));
}

void AdaRoundVariables::step(std::size_t row, Patches::Range part, const float* slope, const float* offset,
                             std::span<const AdaRoundFactors> factors, const AdaRoundStep& given) {
  for (std::size_t first = part.first; first < part.last; first += piece_) {
    const AdaRoundFactors& of_block = factors[first / block_];
    AdaRoundStep step = given;
    step.regularizer *= of_block.regularizer;
    const std::size_t done = first - part.first;
    step_piece(row, first / piece_, slope + done, offset == nullptr ? nullptr : offset + done, of_block.slope, step);
  }
}

void AdaRoundVariables::step_piece(std::size_t row, std::size_t piece, const float* slope, const float* offset,
                                   float factor, const AdaRoundStep& step) {
  const std::size_t at = row * fan_in_ + piece * piece_;
  const std::size_t size = std::min(piece_, fan_in_ - piece * piece_);
  const std::size_t moving = moving_[row * pieces() + piece];
  if (moving == 0) return;
  float* h = h_.data() + at;
  AdaRoundRow state{v_.data() + at, mean_.data() + at, square_.data() + at, h};
  if (moving == size) {
    adaround_step(state, slope, offset, factor, size, step);
    if (4 * count_moving(h, size) <= 3 * size) leave_out_settled(row, piece);
    return;
  }
  // What fills up the last vector is settled, and whatever becomes of it is not looked at.
  const std::size_t count = std::min((moving + kVector - 1) / kVector * kVector, size);
  const std::uint8_t* number = number_.data() + at;
  std::array<float, kPiece> some_h, some_slope, some_offset;  // their first `count` are set
  for (std::size_t i = 0; i < moving; ++i) {
    some_h[i] = h[number[i]];
    some_slope[i] = slope[number[i]];
  }
  std::fill(some_h.begin() + moving, some_h.begin() + count, 0.0F);
  std::fill(some_slope.begin() + moving, some_slope.begin() + count, 0.0F);
  if (offset != nullptr) {
    for (std::size_t i = 0; i < moving; ++i) some_offset[i] = offset[number[i]];
    std::fill(some_offset.begin() + moving, some_offset.begin() + count, 0.0F);
  }
  state.h = some_h.data();
  adaround_step(state, some_slope.data(), offset == nullptr ? nullptr : some_offset.data(), factor, count, step);
  for (std::size_t i = 0; i < moving; ++i) h[number[i]] = some_h[i];
  if (4 * count_moving(some_h.data(), moving) <= 3 * moving) leave_out_settled(row, piece);
}

void AdaRoundVariables::leave_out_settled(std::size_t row, std::size_t piece) {
  const std::size_t at = row * fan_in_ + piece * piece_;
  const std::size_t size = std::min(piece_, fan_in_ - piece * piece_);
  std::uint16_t& moving = moving_[row * pieces() + piece];
  std::uint8_t* number = number_.data() + at;
  if (moving == size) {
    for (std::size_t i = 0; i < size; ++i) number[i] = static_cast<std::uint8_t>(i);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < moving; ++i) {
    const float h = h_[at + number[i]];
    if (h <= 0.0F || h >= 1.0F) continue;
    number[kept] = number[i];
    v_[at + kept] = v_[at + i];
    mean_[at + kept] = mean_[at + i];
    square_[at + kept] = square_[at + i];
    ++kept;
  }
  moving = static_cast<std::uint16_t>(kept);
}

/// Puts all in the order of the weights again.
void AdaRoundVariables::restore_weight_order() {
  std::array<float, kPiece> v{}, mean{}, square{};
  for (std::size_t b = 0; b < moving_.size(); ++b) {
    const std::size_t first = b % pieces() * piece_, at = b / pieces() * fan_in_ + first;
    const std::size_t size = std::min(piece_, fan_in_ - first), moving = moving_[b];
    if (moving == size) continue;
    for (std::size_t i = 0; i < size; ++i) v[i] = h_[at + i] > 0.5F ? kSettledV : kNeverUp;
    mean.fill(0.0F);
    square.fill(0.0F);
    for (std::size_t i = 0; i < moving; ++i) {
      const std::size_t number = number_[at + i];
      v[number] = v_[at + i];
      mean[number] = mean_[at + i];
      square[number] = square_[at + i];
    }
    const auto to = static_cast<std::ptrdiff_t>(at);
    std::copy_n(v.begin(), size, v_.begin() + to);
    std::copy_n(mean.begin(), size, mean_.begin() + to);
    std::copy_n(square.begin(), size, square_.begin() + to);
    moving_[b] = static_cast<std::uint16_t>(size);
  }
}

void AdaRoundVariables::prefetch(std::size_t row, Patches::Range part) const noexcept {
  constexpr std::size_t kLine = 64 / sizeof(float);
  for (std::size_t first = part.first; first < part.last; first += piece_) {
    const std::size_t at = row * fan_in_ + first;
    const std::size_t size = std::min(piece_, part.last - first);
    for (std::size_t i = 0; i < size; i += kLine) {
      __builtin_prefetch(h_.data() + at + i, 1);
      __builtin_prefetch(base_.data() + at + i);
    }
    const std::size_t moving = moving_[row * pieces() + first / piece_];
    for (std::size_t i = 0; i < moving && moving < size; i += kLine * sizeof(float)) {
      __builtin_prefetch(number_.data() + at + i);
    }
    for (std::size_t i = 0; i < moving; i += kLine) {
      __builtin_prefetch(v_.data() + at + i, 1);
      __builtin_prefetch(mean_.data() + at + i, 1);
      __builtin_prefetch(square_.data() + at + i, 1);
    }
  }
}

bool AdaRoundVariables::settled(RowRange rows, Patches::Range part) const {
  const std::size_t first = part.first / piece_, last = (part.last + piece_ - 1) / piece_;
  for (std::size_t m = rows.first; m < rows.last; ++m) {
    for (std::size_t b = first; b < last; ++b) {
      if (moving_[m * pieces() + b] > 0) return false;
    }
  }
  return true;
}

bool AdaRoundVariables::decided(RowRange rows) const {
  return std::all_of(h_.begin() + static_cast<std::ptrdiff_t>(rows.first * fan_in_),
                     h_.begin() + static_cast<std::ptrdiff_t>(rows.last * fan_in_),
                     [](float h) { return h < kDecided || h > 1 - kDecided; });
}

std::vector<std::int32_t> AdaRoundVariables::integers() const {
  std::vector<std::int32_t> integers = base_;
  for (std::size_t i = 0; i < integers.size(); ++i) integers[i] += h_[i] >= 0.5F ? 1 : 0;
  return integers;
}

}  // namespace detent::solve
