#include "solve/algebra/quadratic.h"

#include "base/error.h"

namespace detent::solve {
namespace {

constexpr std::size_t kSmallFanIn = 48;         // below, a matrix product's overhead is larger than its work
constexpr std::size_t kPieceWeights = 1 << 15;  // of small groups together
constexpr std::size_t kErrorRows = 8;           // that share one reading of the Gram matrix

}  // namespace

std::vector<RowRange> row_ranges(std::size_t rows, std::size_t groups, std::size_t fan_in) {
  std::vector<RowRange> ranges;
  const std::size_t group_rows = rows / groups;
  const std::size_t together = kPieceWeights / std::max<std::size_t>(group_rows * fan_in, 1);
  // Fewer rows would have the kernels pack the Gram matrix for too little work, more would leave threads idle.
  const std::size_t step = groups > 1 && together > 1 ? together * group_rows : group_rows >= 512 ? 128 : 64;
  const std::size_t period = groups > 1 && together > 1 ? rows : group_rows;
  for (std::size_t first = 0; first < rows;) {
    const std::size_t last = std::min({first + step, (first / period + 1) * period, rows});
    ranges.push_back({first, last});
    first = last;
  }
  return ranges;
}

std::vector<RowRange> row_pieces(std::size_t rows) {
  constexpr std::size_t kTogether = 64;
  std::vector<RowRange> pieces;
  for (std::size_t first = 0; first < rows; first += kTogether)
    pieces.push_back({first, std::min(first + kTogether, rows)});
  return pieces;
}

std::vector<float> dequantized(const QuantizedWeights& weights, RowRange rows, const std::int32_t* integers) {
  const std::size_t k = weights.fan_in;
  std::vector<float> values(rows.count() * k);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = weights.dequantize(rows.first + i / k, i % k, integers[i]);
  return values;
}

Quadratic::Quadratic(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias, bool best_bias)
    : form_(form),
      best_bias_(best_bias && form.positions > 0),
      fan_in_(weights.fan_in),
      group_rows_(weights.rows / form.groups),
      positions_(static_cast<double>(form.positions)),
      input_sum_(form.input_sum.size()),
      linear_(weights.rows),
      constant_(weights.rows),
      input_power_(form.groups) {
  const bool fits = form.gram.size() == form.groups * fan_in_ * fan_in_ && weights.rows % form.groups == 0 &&
                    form.cross.size() == weights.rows * fan_in_ && form.input_sum.size() == form.groups * fan_in_ &&
                    form.target_sum.size() == weights.rows && form.target_norm.size() == weights.rows &&
                    weights.values.size() == weights.rows * fan_in_ && (bias.empty() || bias.size() == weights.rows);
  if (!fits) throw internal_error("weights, bias and Gram form do not belong together");
  std::transform(form.input_sum.begin(), form.input_sum.end(), input_sum_.begin(),
                 [](double sum) { return static_cast<float>(sum); });
  for (std::size_t m = 0; m < weights.rows; ++m) {
    const double target = form.target_sum[m];
    const double b = best_bias_ ? target / positions_ : bias.empty() ? 0.0 : static_cast<double>(bias[m]);
    linear_[m] = b;
    constant_[m] = form.target_norm[m] - (best_bias_ ? b * target : 2 * b * target - positions_ * b * b);
  }
  for (std::size_t group = 0; group < form.groups && form.positions > 0; ++group) {
    for (std::size_t j = 0; j < fan_in_; ++j) input_power_[group] += diagonal(group, j);
    input_power_[group] /= static_cast<double>(fan_in_) * positions_;
  }
}

void Quadratic::product(const Kernels& kernels, RowRange rows, const float* values, float* out) const {
  for (std::size_t first = rows.first; first < rows.last;) {
    const std::size_t group = group_of(first);
    const std::size_t last = std::min(rows.last, (group + 1) * group_rows_);
    const float* gram = form_.gram.data() + group * fan_in_ * fan_in_;
    const float* in = values + (first - rows.first) * fan_in_;
    float* to = out + (first - rows.first) * fan_in_;
    if (fan_in_ <= kSmallFanIn) {
      for (std::size_t r = 0; r < last - first; ++r) {
        std::fill_n(to + r * fan_in_, fan_in_, 0.0F);
        for (std::size_t j = 0; j < fan_in_; ++j) {
          add_scaled(to + r * fan_in_, in[r * fan_in_ + j], gram + j * fan_in_, fan_in_);
        }
      }
    } else {
      kernels.gemm(gemm_of(last - first, fan_in_, fan_in_, false), in, fan_in_, gram, fan_in_, to, fan_in_);
    }
    for (std::size_t r = 0; best_bias_ && r < last - first; ++r) {
      const float* sums = input_sum_.data() + group * fan_in_;
      const double mean = dot_double(in + r * fan_in_, sums, fan_in_) / positions_;
      add_scaled(to + r * fan_in_, static_cast<float>(-mean), sums, fan_in_);
    }
    first = last;
  }
}

void Quadratic::residual(const Kernels& kernels, RowRange rows, const float* values, float* out) const {
  product(kernels, rows, values, out);
  for (std::size_t row = rows.first; row < rows.last; ++row) {
    float* to = out + (row - rows.first) * fan_in_;
    add_scaled(to, -1.0F, form_.cross.data() + row * fan_in_, fan_in_);
    add_scaled(to, static_cast<float>(linear_[row]), input_sum_.data() + group_of(row) * fan_in_, fan_in_);
  }
}

void Quadratic::add_row(std::size_t group, std::size_t j, float factor, float* out) const {
  const std::size_t rest = fan_in_ - j;
  add_scaled(out + j, factor, form_.gram.data() + (group * fan_in_ + j) * fan_in_ + j, rest);
  if (!best_bias_) return;
  const float* sums = input_sum_.data() + group * fan_in_;
  add_scaled(out + j, static_cast<float>(-factor * (sums[j] / positions_)), sums + j, rest);
}

float Quadratic::diagonal(std::size_t group, std::size_t j) const {
  const double value = form_.gram[(group * fan_in_ + j) * fan_in_ + j];
  const double sum = form_.input_sum[group * fan_in_ + j];
  return static_cast<float>(best_bias_ ? std::max(value - sum * sum / positions_, 0.0) : value);
}

void Quadratic::row(std::size_t group, std::size_t i, float* out) const {
  std::copy_n(form_.gram.data() + (group * fan_in_ + i) * fan_in_, fan_in_, out);
  if (!best_bias_) return;
  const float* sums = input_sum_.data() + group * fan_in_;
  add_scaled(out, static_cast<float>(-sums[i] / positions_), sums, fan_in_);
}

void Quadratic::linear(RowRange rows, float* out) const {
  for (std::size_t row = rows.first; row < rows.last; ++row, out += fan_in_) {
    std::copy_n(form_.cross.data() + row * fan_in_, fan_in_, out);
    add_scaled(out, static_cast<float>(-linear_[row]), input_sum_.data() + group_of(row) * fan_in_, fan_in_);
  }
}

std::vector<double> Quadratic::errors(const QuantizedWeights& weights, std::span<const std::int32_t> integers,
                                      RowRange rows) const {
  std::vector<double> errors(rows.count());
  std::vector<double> values(kErrorRows * fan_in_);
  std::vector<double> gram(fan_in_);  // one row, shared by those of the weights
  std::vector<double> squares(kErrorRows);
  for (std::size_t first = rows.first; first < rows.last;) {
    const std::size_t group = group_of(first);
    const std::size_t last = std::min({first + kErrorRows, rows.last, (group + 1) * group_rows_});
    for (std::size_t m = first, at = 0; m < last; ++m) {
      for (std::size_t k = 0; k < fan_in_; ++k) values[at++] = weights.dequantize(m, k, integers[m * fan_in_ + k]);
    }
    std::fill(squares.begin(), squares.end(), 0.0);
    for (std::size_t j = 0; j < fan_in_; ++j) {
      // Half of a symmetric matrix says it all.
      std::copy_n(form_.gram.data() + (group * fan_in_ + j) * fan_in_, j + 1, gram.data());
      for (std::size_t r = 0; r < last - first; ++r) {
        const double* w = values.data() + r * fan_in_;
        squares[r] += w[j] * (2 * dot_double(w, gram.data(), j) + gram[j] * w[j]);
      }
    }
    for (std::size_t m = first; m < last; ++m) {
      const double* w = values.data() + (m - first) * fan_in_;
      const double sum = dot_double(w, form_.input_sum.data() + group * fan_in_, fan_in_);
      const double cross = dot_double(w, form_.cross.data() + m * fan_in_, fan_in_) - linear_[m] * sum;
      errors[m - rows.first] =
          squares[m - first] - (best_bias_ ? sum * sum / positions_ : 0.0) - 2 * cross + constant_[m];
    }
    first = last;
  }
  return errors;
}

}  // namespace detent::solve
