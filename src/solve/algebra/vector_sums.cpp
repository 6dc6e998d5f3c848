#include "solve/algebra/vector_sums.h"

#include "base/vector_clones.h"

namespace detent::solve {

DETENT_VECTOR_CLONES
float dot(const float* a, const float* b, std::size_t count) {
  return lanes::sum<float>(count, [=](std::size_t i) { return a[i] * b[i]; });
}

DETENT_VECTOR_CLONES
double dot_double(const float* a, const float* b, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return static_cast<double>(a[i]) * b[i]; });
}

DETENT_VECTOR_CLONES
double dot_double(const double* a, const float* b, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return a[i] * b[i]; });
}

DETENT_VECTOR_CLONES
double dot_double(const double* a, const double* b, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return a[i] * b[i]; });
}

DETENT_VECTOR_CLONES
double sum_double(const float* a, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return static_cast<double>(a[i]); });
}

DETENT_VECTOR_CLONES
void add_scaled(float* __restrict y, float factor, const float* __restrict x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

DETENT_VECTOR_CLONES
void add_scaled(double* __restrict y, double factor, const float* __restrict x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

}  // namespace detent::solve
