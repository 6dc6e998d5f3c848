#include "quantization/pairs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "base/vector_clones.h"

namespace detent::quantization {
namespace {

std::size_t product(std::vector<std::int64_t>::const_iterator first, std::vector<std::int64_t>::const_iterator last) {
  return static_cast<std::size_t>(std::accumulate(first, last, std::int64_t{1}, std::multiplies<>()));
}

bool fits(float a, float b, float scale) {
  return std::nearbyint(a / scale) + std::nearbyint(b / scale) <= static_cast<float>(kMostOfPair);
}

// Of two magnitudes, by halving the positive floats between one that is too small and one that is large enough: each
// rounding changes the sum by at most one half.
float least_scale(float a, float b) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  constexpr auto kMost = static_cast<float>(kMostOfPair);
  std::uint32_t low = bits(a / (kMost + 2) + b / (kMost + 2));
  std::uint32_t high = bits(std::nextafter(a / (kMost - 1) + b / (kMost - 1), std::numeric_limits<float>::infinity()));
  while (low + 1 < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    (fits(a, b, std::bit_cast<float>(middle)) ? high : low) = middle;
  }
  return std::bit_cast<float>(high);
}

// Whether any pair may need a larger scale; as a rule none does once some rows have been seen.
DETENT_VECTOR_CLONES
bool any_passes(const float* a, const float* b, const float* scales, std::size_t count) {
  constexpr float kMost = kMostOfPair - 1;
  int any = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool same_sign = (std::bit_cast<std::int32_t>(a[i]) ^ std::bit_cast<std::int32_t>(b[i])) >= 0;
    any |= static_cast<int>(same_sign) & static_cast<int>(std::abs(a[i]) + std::abs(b[i]) > kMost * scales[i]);
  }
  return any != 0;
}

// Takes a weight in pieces of any size, and looks at it as soon as it has all weights of some pairs.
class PairScan {
 public:
  static constexpr std::size_t kPairs = 16;  // that are looked at together

  PairScan(const Granularity& granularity, const std::vector<std::int64_t>& dims, const Summation& summation)
      : summation_(summation), pairs_(summation.pairs()), scales_(slice_count(granularity, dims)) {
    if (granularity.is_tensor()) return;
    const auto axis = dims.begin() + static_cast<std::ptrdiff_t>(granularity.axis);
    slice_stride_ = product(axis + 1, dims.end());
    if (granularity.kind == Granularity::Kind::blocks) slice_stride_ *= static_cast<std::size_t>(granularity.block);
  }

  void take(std::span<const float> values) {
    while (!values.empty()) {
      const std::size_t count = std::min(values.size(), panel_size() - panel_.size());
      panel_.insert(panel_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
      values = values.subspan(count);
      if (panel_.size() == panel_size()) finish_panel();
    }
  }
  std::vector<float> scales() && { return std::move(scales_); }

 private:
  // A whole sum, or two rows of weights of neighbouring outputs.
  std::size_t panel_size() const noexcept {
    if (summation_.outputs == 1) return summation_.fan_in();
    return std::min<std::size_t>(summation_.channels - row_, 2) * summation_.outputs;
  }

  void finish_panel() {
    if (summation_.outputs == 1) {
      float& scale = scales_[slice_of(begin_)];
      for (const auto& [a, b] : pairs_) raise(scale, panel_[a], panel_[b]);
    } else {
      const std::size_t n = summation_.outputs, rows = panel_.size() / n;
      const bool is_slice = slice_stride_ == 1 && scales_.size() == n;  // each output; divisions take long
      for (std::size_t first = 0; first < n && rows == 2; first += kPairs) {
        const std::size_t last = std::min(first + kPairs, n);
        if (is_slice && !any_passes(&panel_[first], &panel_[n + first], &scales_[first], last - first)) continue;
        for (std::size_t i = first; i < last; ++i)
          raise(scales_[is_slice ? i : slice_of(begin_ + i)], panel_[i], panel_[n + i]);
      }
      row_ = (row_ + rows) % summation_.channels;
    }
    begin_ += panel_.size();
    panel_.clear();
  }

  std::size_t slice_of(std::size_t position) const { return position / slice_stride_ % scales_.size(); }

  static void raise(float& scale, float a, float b) {
    if (std::signbit(a) != std::signbit(b)) return;
    a = std::abs(a);
    b = std::abs(b);
    if (!(a + b > static_cast<float>(kMostOfPair - 1) * scale) || (scale > 0 && fits(a, b, scale))) return;
    scale = least_scale(a, b);
  }

  Summation summation_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;
  std::vector<float> scales_;
  std::size_t slice_stride_ = 1;
  std::size_t begin_ = 0;  // of the panel
  std::size_t row_ = 0;
  std::vector<float> panel_;
};

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> Summation::pairs() const {
  const auto in_memory = [&](std::size_t k) { return k % channels * positions + k / channels; };
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t k = 0; k + 1 < fan_in(); k += 2) pairs.emplace_back(in_memory(k), in_memory(k + 1));
  return pairs;
}

std::optional<Summation> summation_of(const onnx::Node& node, const std::vector<std::int64_t>& dims) {
  const std::size_t rank = dims.size();
  const auto dim = [&](std::size_t d) { return static_cast<std::size_t>(dims[d]); };
  if (node.is("Conv") && rank > 2) {
    const bool depthwise = dims[1] == 1 && dims[0] == node.int_or("group", 1);
    if (depthwise) return std::nullopt;
    return Summation{dim(1), product(dims.begin() + 2, dims.end()), 1};
  }
  if (node.is("MatMul") && rank > 0) return Summation{dim(rank > 1 ? rank - 2 : 0), 1, rank > 1 ? dim(rank - 1) : 1};
  if (node.is("Gemm") && rank == 2) {
    if (node.int_or("transB", 0) != 0) return Summation{dim(1), 1, 1};
    return Summation{dim(0), 1, dim(1)};
  }
  return std::nullopt;
}

std::vector<float> pair_scales(const onnx::Tensor& weight, const Granularity& granularity, const Summation& summation) {
  PairScan scan(granularity, weight.dims, summation);
  onnx::for_each_float(weight.data, [&](std::span<const float> values, std::int64_t) { scan.take(values); });
  return std::move(scan).scales();
}

}  // namespace detent::quantization
