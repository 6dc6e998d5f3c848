#include "finetune/soft_rounding.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace detent::finetune {
namespace {

constexpr double kZeta = 1.1;
constexpr double kGamma = -0.1;
constexpr float kNeverUp = -100.0F;  // v of a weight without choice
constexpr float kDecided = 0.01F;
constexpr std::size_t kSettledTogether = 64;  // weights whose step is left out if it would change none of them

}  // namespace

SoftStep SoftStep::at(const FinetuneConfig& config, std::size_t i) {
  SoftStep step{AdamStep(config.learning_rate.value_or(0.1), i + 1)};
  const auto all = static_cast<double>(config.num_iterations);
  const double start = config.warm_start * all;
  if (static_cast<double>(i) < start) return step;
  const double share = (static_cast<double>(i) - start) / (all - start);
  const auto [from, to] = config.beta_range;
  step.regularizer = static_cast<float>(config.reg_param);
  step.beta = static_cast<float>(to + 0.5 * (from - to) * (1 + std::cos(share * std::numbers::pi)));
  return step;
}

SoftRounding::SoftRounding(const QuantizedWeights& weights)
    : columns_(weights.columns),
      base_(weights.values.size()),
      v_(base_.size()),
      mean_(base_.size()),
      square_(base_.size()),
      h_(base_.size()) {
  for (std::size_t m = 0, at = 0; m < weights.rows; ++m) {
    for (std::size_t k = 0; k < columns_; ++k, ++at) {
      const float steps = weights.scale[m] == 0 ? 0.0F : weights.values[at] / weights.scale[m];
      const double down = std::floor(static_cast<double>(steps)) + weights.zero[m];
      base_[at] = static_cast<std::int32_t>(
          std::clamp(down, static_cast<double>(weights.lowest), static_cast<double>(weights.highest)));
      if (down < weights.lowest || down >= weights.highest || weights.scale[m] == 0) {
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

void SoftRounding::step(std::size_t row, Patches::Range columns, const float* slope, const float* offset, float factor,
                        float certainty, const SoftStep& given) {
  SoftStep step = given;
  step.regularizer *= certainty;
  const auto is_settled = [&](std::size_t at) {
    return settled({row, row + 1}, {at, std::min(at + kSettledTogether, columns.last)});
  };
  for (std::size_t first = columns.first; first < columns.last;) {  // runs of parts that are not settled
    std::size_t last = first;
    while (last < columns.last && !is_settled(last)) last = std::min(last + kSettledTogether, columns.last);
    const std::size_t at = row * columns_ + first, done = first - columns.first;
    if (last > first) {
      soft_step({v_.data() + at, mean_.data() + at, square_.data() + at, h_.data() + at}, slope + done,
                offset == nullptr ? nullptr : offset + done, factor, last - first, step);
    }
    first = std::min(last + kSettledTogether, columns.last);
  }
}

void SoftRounding::prefetch(std::size_t row, Patches::Range columns) const noexcept {
  constexpr std::size_t kLine = 64 / sizeof(float);
  for (std::size_t at = row * columns_ + columns.first; at < row * columns_ + columns.last; at += kLine) {
    __builtin_prefetch(v_.data() + at, 1);
    __builtin_prefetch(mean_.data() + at, 1);
    __builtin_prefetch(square_.data() + at, 1);
    __builtin_prefetch(h_.data() + at, 1);
    __builtin_prefetch(base_.data() + at);
  }
}

bool SoftRounding::settled(RowRange rows, Patches::Range columns) const {
  for (std::size_t m = rows.first; m < rows.last; ++m) {
    const float* row = h(m);
    if (!std::all_of(row + columns.first, row + columns.last, [](float h) { return h <= 0.0F || h >= 1.0F; })) {
      return false;
    }
  }
  return true;
}

bool SoftRounding::decided(RowRange rows) const {
  return std::all_of(h_.begin() + static_cast<std::ptrdiff_t>(rows.first * columns_),
                     h_.begin() + static_cast<std::ptrdiff_t>(rows.last * columns_),
                     [](float h) { return h < kDecided || h > 1 - kDecided; });
}

std::vector<std::int32_t> SoftRounding::integers() const {
  std::vector<std::int32_t> integers = base_;
  for (std::size_t i = 0; i < integers.size(); ++i) integers[i] += h_[i] >= 0.5F ? 1 : 0;
  return integers;
}

}  // namespace detent::finetune
