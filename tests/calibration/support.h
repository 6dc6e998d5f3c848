// Summaries of made-up values, and the grids that ranges lead to.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "calibration/methods.h"
#include "calibration/observers.h"
#include "detent/error.h"

namespace detent::calibration::test {

using Floats = std::vector<float>;

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

/// What the observers keep of a tensor that takes these values in one run after the other.
inline Summary summary_of_runs(const std::vector<Floats>& runs,
                               const ObserverOptions& options = {true, true, true, 1}) {
  Observers observers({{"t", "made by Relu 'r'"}}, options);
  for (const auto& values : runs) {
    const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
    observers.receive(0, {onnx::DataType::float32, shape, std::as_bytes(std::span<const float>(values))},
                      [](std::size_t parts, const std::function<void(std::size_t)>& fn) {
                        for (std::size_t p = 0; p < parts; ++p) fn(p);
                      });
  }
  return observers.statistics().tensors.at("t");
}
inline Summary summary_of(const Floats& values) { return summary_of_runs({values}); }

template <class Distribution>
Floats draw(Distribution distribution, std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Floats values(size);
  for (auto& v : values) v = static_cast<float>(distribution(random));
  return values;
}
inline Floats normal(std::size_t size, unsigned seed, float mean = 0, float deviation = 1) {
  return draw(std::normal_distribution<float>(mean, deviation), size, seed);
}
inline Floats heavy_tailed(std::size_t size, unsigned seed) {
  return draw(std::student_t_distribution<float>(3.0F), size, seed);
}
/// As a Relu gives it: about half of the values are 0.
inline Floats rectified(std::size_t size, unsigned seed) {
  Floats values = heavy_tailed(size, seed);
  for (auto& v : values) v = std::max(v, 0.0F);
  return values;
}
/// Most values in one octave, a few a thousand times larger on one side.
inline Floats with_outliers(std::size_t size, unsigned seed) {
  Floats values = normal(size, seed, 0.5F);
  for (std::size_t i = 0; i < size / 2000 + 1; ++i) values[i] = 1000.0F + static_cast<float>(i);
  return values;
}
/// Attention scores where a mask put the lowest float.
inline Floats masked(std::size_t size, unsigned seed) {
  Floats values = normal(size, seed, 1.0F);
  for (std::size_t i = 0; i < size; i += 5) values[i] = -kLargest;
  return values;
}

struct Named {
  std::string name;
  Floats values;
};
/// Distributions as activations have them, and the odd ones.
inline std::vector<Named> all_kinds() {
  return {{"normal", normal(20000, 1)},
          {"shifted", normal(20000, 2, 3.0F, 0.5F)},
          {"heavy-tailed", heavy_tailed(20000, 3)},
          {"rectified", rectified(20000, 4)},
          {"outliers", with_outliers(20000, 5)},
          {"uniform", draw(std::uniform_real_distribution<float>(-1, 2), 20000, 6)},
          {"negative", draw(std::uniform_real_distribution<float>(-9, -4), 20000, 7)},
          {"masked", masked(20000, 8)},
          {"few", normal(9, 9)},
          {"one value", {0.37F}},
          {"constant", Floats(500, -2.75F)},
          {"zeros", Floats(500, 0.0F)},
          {"minus zero", {-0.0F, -0.0F}},
          {"denormals", {kDenormal, 5 * kDenormal, -3 * kDenormal, 0x1p-130F}},
          {"largest", {kLargest, -kLargest, 1.0F}},
          {"lowest alone", {-kLargest}}};
}

/// Integers from `lowest` to `highest`: symmetric ones (lowest = -highest - 1) with zero in the middle, the scale from
/// the larger bound, others with the zero point where the range asks for it. Written from the definition, as
/// docs/methods.md and the design have it.
inline Quantizer quantizer(int lowest, int highest, bool power_of_two = false) {
  return [=](const Range& range) -> Grid {
    const bool symmetric = lowest < 0;
    double low = std::min(range.min, 0.0F);
    double high = std::max(range.max, 0.0F);
    if (symmetric) low = -(high = std::max(-low, high));
    double step = (high - low) / (symmetric ? 2.0 * highest : highest);
    if (step < std::numeric_limits<float>::min()) return {1, static_cast<double>(lowest), static_cast<double>(highest)};
    if (power_of_two) step = std::exp2(std::ceil(std::log2(step)));
    step = static_cast<float>(step);
    const double zero = symmetric ? 0 : std::nearbyint(-low / step);
    return {step, step * (lowest - zero), step * (highest - zero)};
  };
}
inline Quantizer int8() { return quantizer(-128, 127); }
inline Quantizer uint8() { return quantizer(0, 255); }
inline Quantizer int8_power_of_two() { return quantizer(-128, 127, true); }

/// numpy's percentile of sorted values.
inline double percentile(const Floats& sorted, double percent) {
  const double position = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const auto above = std::min(below + 1, sorted.size() - 1);
  const double part = position - static_cast<double>(below);
  return sorted[below] + (static_cast<double>(sorted[above]) - sorted[below]) * part;
}

}  // namespace detent::calibration::test
