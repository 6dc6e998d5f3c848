#include "finetune/block_refit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "finetune/vector_sums.h"

namespace detent::finetune {
namespace {

using quantization::BlockWeight;

std::size_t triangle(std::size_t n) { return n * (n + 1) / 2; }

// Solves A x = y for a symmetric matrix, of which row i of the lower half begins at triangle(i), in place. What depends
// on the rows before it, so far as floats can tell, is left out: its x is 0.
void solve_symmetric(std::vector<float>& a, std::vector<double>& y) {
  const std::size_t n = y.size();
  constexpr double kDependent = 1e-6;
  std::vector<char> left_out(n);
  for (std::size_t i = 0; i < n; ++i) {
    float* line = a.data() + triangle(i);
    const double whole = line[i];
    for (std::size_t j = 0; j < i; ++j) {
      const float* other = a.data() + triangle(j);
      line[j] = left_out[j] != 0 ? 0.0F : static_cast<float>((line[j] - dot_double(line, other, j)) / other[j]);
    }
    const double pivot = whole - dot_double(line, line, i);
    left_out[i] = pivot > kDependent * whole && whole > 0 ? 0 : 1;
    if (left_out[i] != 0) std::fill_n(line, i, 0.0F);
    line[i] = left_out[i] != 0 ? 1.0F : static_cast<float>(std::sqrt(pivot));
    y[i] = left_out[i] != 0 ? 0.0 : (y[i] - dot_double(y.data(), line, i)) / line[i];
  }
  for (std::size_t i = n; i-- > 0;) {
    const float* line = a.data() + triangle(i);
    y[i] /= line[i];
    add_scaled(y.data(), -y[i], line, i);
  }
}

class Piece {
 public:
  Piece(const Gram& gram, const Damping& damping, std::span<const float> columns, BlockWeight& weight,
        std::size_t first, const Kernels& kernels)
      : gram_(gram),
        damping_(damping),
        weight_(weight),
        first_(first),
        count_(std::min(kRefitTogether, static_cast<std::size_t>(weight.columns) - first)),
        rows_(gram.rows),
        size_(static_cast<std::size_t>(weight.format.block_of(weight.rows))),
        blocks_(static_cast<std::size_t>(weight.blocks())),
        kernels_(kernels),
        steps_(kRefitTogether * rows_) {
    find_gradients(columns);
    find_products();
  }

  void refit() {
    std::vector<float> matrix;
    std::vector<double> change;
    for (std::size_t n = 0; n < count_; ++n) {
      const auto products = std::span(products_).subspan(n * triangle(blocks_), triangle(blocks_));
      const auto gradients = std::span(gradients_).subspan(n * blocks_, blocks_);
      matrix.assign(products.begin(), products.end());
      change.assign(gradients.begin(), gradients.end());
      for (auto& v : change) v = -v;
      solve_symmetric(matrix, change);
      keep_if_better(n, products, gradients, change);
    }
  }

 private:
  std::size_t length(std::size_t block) const { return std::min(size_, rows_ - block * size_); }

  // m_b · (Ŵ − W) A of each block; `steps_` gets integers without their zero points.
  void find_gradients(std::span<const float> columns) {
    std::vector<float> difference(steps_.size()), product(steps_.size());
    stored_difference(columns, weight_, first_, count_, difference.data());
    kernels_.gemm(gemm_of(kRefitTogether, rows_, rows_, false), difference.data(), rows_, gram_.values.data(), rows_,
                  product.data(), rows_);
    for (std::size_t i = 0; i < product.size(); ++i) {
      product[i] = damping_.keep * product[i] + damping_.more[i % rows_] * difference[i];
    }
    gradients_.resize(count_ * blocks_);
    for (std::size_t n = 0; n < count_; ++n) {
      for (std::size_t b = 0; b < blocks_; ++b) {
        const std::size_t begin = n * rows_ + b * size_;
        const int zero = weight_.zero_points[(first_ + n) * blocks_ + b];
        for (std::size_t i = begin; i < begin + length(b); ++i) {
          steps_[i] = static_cast<float>(weight_.integers[first_ * rows_ + i] - zero);
        }
        gradients_[n * blocks_ + b] = dot_double(steps_.data() + begin, product.data() + begin, length(b));
      }
    }
  }

  // m_b A m_c of all pairs of blocks.
  void find_products() {
    products_.resize(count_ * triangle(blocks_));
    std::vector<float> product(kRefitTogether * rows_);
    for (std::size_t b = 0; b < blocks_; ++b) {
      const std::size_t begin = b * size_, end = begin + length(b);
      kernels_.gemm(gemm_of(kRefitTogether, end, length(b), false), steps_.data() + begin, rows_,
                    gram_.values.data() + begin * rows_, rows_, product.data(), rows_);
      for (std::size_t n = 0; n < count_; ++n) {
        const float* steps = steps_.data() + n * rows_;
        float* to = products_.data() + n * triangle(blocks_) + triangle(b);
        for (std::size_t c = 0; c <= b; ++c) {
          to[c] = damping_.keep * dot(steps + c * size_, product.data() + n * rows_ + c * size_, length(c));
        }
        for (std::size_t k = begin; k < end; ++k) to[b] += damping_.more[k] * steps[k] * steps[k];
      }
    }
  }

  void keep_if_better(std::size_t n, std::span<const float> products, std::span<const double> gradients,
                      std::span<const double> change) {
    float* scales = weight_.scales.data() + (first_ + n) * blocks_;
    std::vector<float> made(blocks_), differences(blocks_);
    double gain = 0;
    for (std::size_t b = 0; b < blocks_; ++b) {
      made[b] = static_cast<float>(scales[b] + change[b]);
      const bool is_scale = std::isfinite(made[b] * static_cast<float>(weight_.format.largest()));
      if (!is_scale || (scales[b] != 0 && !(made[b] / scales[b] > 0))) return;
      differences[b] = made[b] - scales[b];
      const float* line = products.data() + triangle(b);
      const double before = dot_double(line, differences.data(), b);
      gain -= differences[b] * (2 * (gradients[b] + before) + static_cast<double>(line[b]) * differences[b]);
    }
    if (gain > 0) std::copy(made.begin(), made.end(), scales);
  }

  const Gram& gram_;
  const Damping& damping_;
  BlockWeight& weight_;
  std::size_t first_, count_, rows_, size_, blocks_;
  const Kernels& kernels_;
  std::vector<float> steps_;       // kRefitTogether × rows
  std::vector<double> gradients_;  // count × blocks
  std::vector<float> products_;    // count × lower halves
};

}  // namespace

void refit_scales(const Gram& gram, const Damping& damping, std::span<const float> columns, BlockWeight& weight,
                  const Kernels& kernels, std::size_t threads) {
  const auto count = static_cast<std::size_t>(weight.columns), rows = static_cast<std::size_t>(weight.rows);
  if (gram.rows != rows || gram.values.size() != rows * rows || columns.size() != rows * count) {
    throw internal_error("a Gram matrix and columns do not belong together");
  }
  parallel_for((count + kRefitTogether - 1) / kRefitTogether, threads, [&](std::size_t piece) {
    Piece(gram, damping, columns, weight, piece * kRefitTogether, kernels).refit();
  });
}

}  // namespace detent::finetune
