#include "quantization/floats/half_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/numbers.h"
#include "onnx/packed_numbers.h"

namespace detent::quantization {
namespace {

using Lanes = Rounding16Sums::Lanes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

DETENT_VECTOR_CLONES
void to_float16(const float* values, std::size_t count, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = onnx::to_float16(values[i]);
}

DETENT_VECTOR_CLONES
void to_bfloat16(const float* values, std::size_t count, std::uint16_t* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = onnx::to_bfloat16(values[i]);
}

DETENT_VECTOR_CLONES
void from_float16(const std::uint16_t* values, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = onnx::from_float16(values[i]);
}

DETENT_VECTOR_CLONES
void from_bfloat16(const std::uint16_t* values, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = onnx::from_bfloat16(values[i]);
}

DETENT_VECTOR_CLONES
std::uint32_t count_finite(const float* values, std::size_t count) {
  std::uint32_t finite = 0;
  for (std::size_t i = 0; i < count; ++i) finite += std::abs(values[i]) < kInfinity ? 1U : 0U;
  return finite;
}

// A multiple of the number of lanes.
DETENT_VECTOR_CLONES
void add_values(const float* values, const float* rounded, std::size_t count, Lanes& sums) {
  Lanes s = sums;
  for (std::size_t i = 0; i < count; i += Rounding16Sums::kLanes) {
    for (std::size_t l = 0; l < Rounding16Sums::kLanes; ++l) {
      const float magnitude = std::abs(values[i + l]);
      const bool is_finite = magnitude < kInfinity;
      const float finite = is_finite ? magnitude : 0;
      const float nonzero = magnitude > 0 ? magnitude : kInfinity;
      s.smallest[l] = nonzero < s.smallest[l] ? nonzero : s.smallest[l];
      s.largest[l] = finite > s.largest[l] ? finite : s.largest[l];
      const double value = finite, error = is_finite ? std::abs(rounded[i + l]) - magnitude : 0;
      s.squares[l] += value * value;
      s.errors[l] += error * error;
    }
  }
  sums = s;
}

}  // namespace

void to_16_bits(std::span<const float> values, FloatType type, std::uint16_t* out) {
  (type == FloatType::bfloat16 ? to_bfloat16 : to_float16)(values.data(), values.size(), out);
}

std::size_t round_to_16_bits(std::span<float> values, FloatType type) {
  constexpr std::size_t kPart = 1024;
  std::uint16_t low[kPart];
  std::size_t overflows = 0;
  for (std::size_t at = 0; at < values.size(); at += kPart) {
    const auto part = values.subspan(at, std::min(kPart, values.size() - at));
    const auto finite = count_finite(part.data(), part.size());
    to_16_bits(part, type, low);
    (type == FloatType::bfloat16 ? from_bfloat16 : from_float16)(low, part.size(), part.data());
    overflows += finite - count_finite(part.data(), part.size());
  }
  return overflows;
}

Rounding16Sums::Rounding16Sums(FloatType type) : type_(type) {
  std::fill(std::begin(lanes_.smallest), std::end(lanes_.smallest), kInfinity);
}

void Rounding16Sums::add(std::span<const float> values) {
  constexpr std::size_t kPart = 1024;
  float padded[kPart], rounded[kPart];
  std::uint16_t low[kPart];
  for (std::size_t at = 0; at < values.size(); at += kPart) {
    const auto part = values.subspan(at, std::min(kPart, values.size() - at));
    const std::size_t count = (part.size() + kLanes - 1) / kLanes * kLanes;
    std::copy(part.begin(), part.end(), padded);
    std::fill(padded + part.size(), padded + count, 0.0F);
    to_16_bits({padded, count}, type_, low);
    (type_ == FloatType::bfloat16 ? from_bfloat16 : from_float16)(low, count, rounded);
    add_values(padded, rounded, count, lanes_);
  }
}

Rounding16 Rounding16Sums::sums() const {
  const float smallest = *std::min_element(std::begin(lanes_.smallest), std::end(lanes_.smallest));
  return {std::isfinite(smallest) ? smallest : 0,
          *std::max_element(std::begin(lanes_.largest), std::end(lanes_.largest)),
          std::accumulate(std::begin(lanes_.squares), std::end(lanes_.squares), 0.0),
          std::accumulate(std::begin(lanes_.errors), std::end(lanes_.errors), 0.0)};
}

}  // namespace detent::quantization
