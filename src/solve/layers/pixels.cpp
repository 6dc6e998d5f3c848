#include "solve/layers/pixels.h"

#include <algorithm>

#include "base/vector_clones.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/symmetric_matrix.h"

namespace detent::solve {
namespace {

DETENT_VECTOR_CLONES
void add_picked(float* to, const float* from, const std::uint32_t* which, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[which[i]];
}

}  // namespace

std::vector<float> Pixels::seen_by(std::size_t element) const {
  std::vector<float> seen(positions() * channels);
  for (std::size_t c = 0; c < positions(); ++c) {
    const std::uint32_t pixel = behind[element * positions() + c];
    if (pixel != 0) std::copy_n(values.data() + (pixel - 1) * channels, channels, seen.data() + c * channels);
  }
  return seen;
}

std::vector<float> im2col(const Pixels& pixels) {
  const std::size_t fan_in = pixels.channels * pixels.elements;
  std::vector<float> inputs(pixels.positions() * fan_in);
  for (std::size_t k = 0; k < pixels.elements; ++k) {
    const std::vector<float> seen = pixels.seen_by(k);
    for (std::size_t i = 0; i < seen.size(); ++i) inputs[i * pixels.elements + k] = seen[i];
  }
  return inputs;
}

std::vector<double> input_powers(const Pixels& pixels) {
  std::vector<double> power(pixels.channels * pixels.elements), of_element(pixels.channels);
  for (std::size_t k = 0; k < pixels.elements; ++k) {
    const std::vector<float> seen = pixels.seen_by(k);
    std::fill(of_element.begin(), of_element.end(), 0.0);
    for (std::size_t at = 0; at < seen.size(); at += pixels.channels) {
      for (std::size_t c = 0; c < pixels.channels; ++c) {
        const double x = seen[at + c];
        of_element[c] += x * x;
      }
    }
    for (std::size_t c = 0; c < pixels.channels; ++c) power[c * pixels.elements + k] = of_element[c];
  }
  return power;
}

std::vector<float> products(const Pixels& pixels, const Kernels& kernels, std::size_t threads) {
  const std::size_t size = pixels.count + 1, n = pixels.positions();
  std::vector<float> each(size * size), all(n * n);  // row and column 0 are of the outside
  multiply_rows(pixels.values.data(), pixels.count, pixels.channels, each.data() + size + 1, size, kernels, threads);
  mirror(each.data(), size, threads);
  for_row_pieces(n, threads, [&](RowRange rows) {
    for (std::size_t i = rows.first; i < rows.last; ++i) {
      for (std::size_t k = 0; k < pixels.elements; ++k) {
        const std::uint32_t* behind = pixels.behind.data() + k * n;
        add_picked(all.data() + i * n, each.data() + behind[i] * size, behind, i + 1);
      }
    }
  });
  mirror(all.data(), n, threads);
  return all;
}

std::vector<float> combine(const Pixels& pixels, const std::vector<float>& basis, std::size_t count,
                           const Kernels& kernels, std::size_t threads) {
  const std::size_t fan_in = pixels.channels * pixels.elements;
  std::vector<float> out(count * fan_in), part(count * pixels.channels);
  for (std::size_t k = 0; k < pixels.elements; ++k) {
    const std::vector<float> seen = pixels.seen_by(k);
    for_row_pieces(count, threads, [&](RowRange r) {
      Gemm shape = gemm_of(r.count(), pixels.channels, pixels.positions(), false);
      shape.transpose_a = true;
      kernels.gemm(shape, basis.data() + r.first, count, seen.data(), pixels.channels,
                   part.data() + r.first * pixels.channels, pixels.channels);
      for (std::size_t i = r.first * pixels.channels; i < r.last * pixels.channels; ++i) {
        out[i * pixels.elements + k] = part[i];
      }
    });
  }
  return out;
}

}  // namespace detent::solve
