#include "calibration/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace detent::calibration {

void ExactSum::add(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> 23) & 0xff;
  const std::uint64_t mantissa = (bits & 0x7fffff) | (exponent > 0 ? 0x800000U : 0U);
  const std::uint32_t shift = std::max(exponent, 1U) - 1;  // denormals weigh as the smallest normal exponent
  const std::uint64_t placed = mantissa << (shift % 32);
  const auto low = static_cast<std::int64_t>(placed & 0xffffffff);
  const auto high = static_cast<std::int64_t>(placed >> 32);
  const std::int64_t sign = (bits >> 31) != 0 ? -1 : 1;
  limbs_[shift / 32] += sign * low;
  limbs_[shift / 32 + 1] += sign * high;
}

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    const std::int64_t over = limbs_[i] >> 32;  // rounds down, so what stays is not negative
    limbs_[i] -= over * (std::int64_t{1} << 32);
    limbs_[i + 1] += over;
  }
}

void ExactSum::merge(const ExactSum& other) {
  const Limbs theirs = other.limbs();
  for (std::size_t i = 0; i < kLimbs; ++i) limbs_[i] += theirs[i];
  carry();
}

ExactSum::Limbs ExactSum::limbs() const {
  ExactSum copy = *this;
  copy.carry();
  return copy.limbs_;
}

double ExactSum::value() const {
  Limbs limbs = this->limbs();
  // A small negative sum has large limbs that nearly cancel the last one: take the absolute value first.
  const bool negative = limbs.back() < 0;
  if (negative) {
    ExactSum absolute;
    for (std::size_t i = 0; i < kLimbs; ++i) absolute.limbs_[i] = -limbs[i];
    limbs = absolute.limbs();
  }
  double sum = 0;
  for (std::size_t i = kLimbs; i-- > 0;)
    sum += std::ldexp(static_cast<double>(limbs[i]), static_cast<int>(32 * i) - 149);
  return negative ? -sum : sum;
}

}  // namespace detent::calibration
