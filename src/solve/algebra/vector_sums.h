// Sums in a fixed number of lanes: fast on any vector unit, and the same result on all of them.
#pragma once

#include <array>
#include <cstddef>

namespace detent::solve {

namespace lanes {
inline constexpr std::size_t kCount = 16;

template <class Sum>
[[gnu::always_inline]] inline Sum total(const std::array<Sum, kCount>& parts) {
  std::array<Sum, kCount> p = parts;
  for (std::size_t half = kCount / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) p[k] += p[k + half];
  return p[0];
}

/// Sum over i of term(i).
template <class Sum, class Term>
[[gnu::always_inline]] inline Sum sum(std::size_t count, const Term& term) {
  std::array<Sum, kCount> parts{};
  std::size_t i = 0;
  for (; i + kCount <= count; i += kCount)
    for (std::size_t k = 0; k < kCount; ++k) parts[k] += term(i + k);
  for (; i < count; ++i) parts[i % kCount] += term(i);
  return total(parts);
}
}  // namespace lanes

float dot(const float* a, const float* b, std::size_t count);
/// The products and their sum in double.
double dot_double(const float* a, const float* b, std::size_t count);
double dot_double(const double* a, const float* b, std::size_t count);
double dot_double(const double* a, const double* b, std::size_t count);
double sum_double(const float* a, std::size_t count);
/// y += factor · x
void add_scaled(float* y, float factor, const float* x, std::size_t count);
void add_scaled(double* y, double factor, const float* x, std::size_t count);

}  // namespace detent::solve
