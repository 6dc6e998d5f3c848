#include "quantization/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "base/numbers.h"
#include "onnx/packed_numbers.h"

namespace detent::quantization {
namespace {

using calibration::KeyRange;

// Values that follow one another in memory, and their parameters: `first` for all of them, or, where neighbours have
// parameters of their own, as many from `first` on.
struct Run {
  std::size_t length = 0;
  std::size_t first = 0;
};

// The tensor seen as [outer, along, inner], with scales that are cut along the middle: where the parameters of each
// value are.
class Layout {
 public:
  Layout(const Granularity& granularity, const std::vector<std::int64_t>& dims) {
    const bool in_blocks = granularity.kind == Granularity::Kind::blocks;
    if (granularity.is_tensor() || (!in_blocks && dims.at(granularity.axis) == 1)) return;  // one run
    along_ = static_cast<std::size_t>(dims.at(granularity.axis));
    inner_ = 1;
    for (std::size_t d = granularity.axis + 1; d < dims.size(); ++d) inner_ *= static_cast<std::size_t>(dims[d]);
    if (in_blocks) {
      block_ = static_cast<std::size_t>(granularity.block);
      alternates_ = inner_ > 1;
      outer_stride_ = (along_ + block_ - 1) / block_ * inner_;
    } else if (inner_ == 1) {  // rows of one value for each channel
      inner_ = along_;
      along_ = 1;
      alternates_ = true;
    }
  }

  /// Whether neighbours have parameters of their own.
  bool alternates() const noexcept { return alternates_; }

  Run run_at(std::size_t position) const noexcept {
    const std::size_t within = position % inner_;
    const std::size_t row = position / inner_;
    const std::size_t i = row % along_;
    const std::size_t block = i / block_;
    const std::size_t before = row / along_ * outer_stride_;
    if (alternates_) return {inner_ - within, before + block * inner_ + within};
    if (inner_ == 1) return {std::min((block + 1) * block_, along_) - i, before + block};
    return {inner_ - within, before + block};
  }

 private:
  std::size_t along_ = 1;
  std::size_t inner_ = std::numeric_limits<std::size_t>::max();
  std::size_t block_ = 1;
  std::size_t outer_stride_ = 0;  // of parameters
  bool alternates_ = false;
};

// Splits a piece of the flat tensor into runs: fn(first parameter, values).
template <class Fn>
void for_each_run(std::span<const float> values, std::size_t position, const Layout& layout, Fn fn) {
  for (std::size_t at = 0; at < values.size();) {
    const Run run = layout.run_at(position + at);
    const std::size_t length = std::min(run.length, values.size() - at);
    fn(run.first, values.subspan(at, length));
    at += length;
  }
}

// x + 1.5*2^23 - 1.5*2^23 rounds half to even for |x| < 2^22; clipping first keeps x small and cannot change the
// result, since the bounds lie a whole step outside of the stored range.
DETENT_VECTOR_CLONES
void quantize_run(const float* values, std::size_t count, float scale, float zero, float min, float max,
                  std::int16_t* out) {
  constexpr float kRound = 12582912.0F;
  const float low = min - zero - 1.0F;
  const float high = max - zero + 1.0F;
  for (std::size_t i = 0; i < count; ++i) {
    float x = values[i] / scale;
    x = x < low ? low : x;
    x = x > high ? high : x;
    float q = (x + kRound) - kRound + zero;
    q = q < min ? min : q;
    q = q > max ? max : q;
    out[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(q));
  }
}

// The same with a scale of its own for each value.
DETENT_VECTOR_CLONES
void quantize_each(const float* values, std::size_t count, const float* scales, const float* zeros, float min,
                   float max, std::int16_t* out) {
  constexpr float kRound = 12582912.0F;
  for (std::size_t i = 0; i < count; ++i) {
    float x = values[i] / scales[i];
    const float low = min - zeros[i] - 1.0F;
    const float high = max - zeros[i] + 1.0F;
    x = x < low ? low : x;
    x = x > high ? high : x;
    float q = (x + kRound) - kRound + zeros[i];
    q = q < min ? min : q;
    q = q > max ? max : q;
    out[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(q));
  }
}

DETENT_VECTOR_CLONES
void merge_keys(const float* values, std::size_t count, std::int32_t* mins, std::int32_t* maxs) {
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t bits = 0;
    __builtin_memcpy(&bits, values + i, sizeof bits);
    const std::int32_t key = calibration::order_key(bits);
    mins[i] = key < mins[i] ? key : mins[i];
    maxs[i] = key > maxs[i] ? key : maxs[i];
  }
}

std::vector<KeyRange> extremes_of_neighbours(const onnx::Tensor& weight, const Layout& layout, std::size_t slices) {
  std::vector<std::int32_t> mins(slices, KeyRange{}.min);
  std::vector<std::int32_t> maxs(slices, KeyRange{}.max);
  onnx::for_each_float(weight.data, [&](std::span<const float> values, std::int64_t first) {
    for_each_run(values, static_cast<std::size_t>(first), layout, [&](std::size_t slice, std::span<const float> run) {
      merge_keys(run.data(), run.size(), mins.data() + slice, maxs.data() + slice);
    });
  });
  std::vector<KeyRange> extremes(slices);
  for (std::size_t s = 0; s < slices; ++s) extremes[s] = {mins[s], maxs[s]};
  return extremes;
}

// The codes of floats. `step`: 0 for one scale, 1 for one for each value.
void encode_run(std::span<const float> values, const float* scales, std::size_t step, const onnx::SmallFloat& type,
                std::int16_t* out) {
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = onnx::to_small_float(values[i] / scales[i * step], type);
}

// Scales and zero points of all slices, as the kernels want them.
struct SliceParams {
  std::vector<float> scales, zeros;
  explicit SliceParams(const std::vector<ScaleZeroPoint>& params) {
    for (const auto& p : params) {
      scales.push_back(p.scale);
      zeros.push_back(static_cast<float>(p.zero_point));
    }
  }
};

// The integers as they are stored, in `bytes` where they are narrower.
std::span<const std::byte> narrowed(const std::vector<std::int16_t>& integers, QuantType type,
                                    std::vector<std::byte>& bytes) {
  if (is_16_bit(type)) return std::as_bytes(std::span<const std::int16_t>(integers));
  if (is_4_bit(type)) {
    bytes.clear();
    onnx::append_nibbles(std::span<const std::int16_t>(integers), bytes);
    return bytes;
  }
  bytes.resize(integers.size());
  std::transform(integers.begin(), integers.end(), bytes.begin(), [](std::int16_t v) { return std::byte(v & 0xff); });
  return bytes;
}

}  // namespace

std::vector<KeyRange> weight_extremes(const onnx::Tensor& weight, const Granularity& granularity) {
  const Layout layout(granularity, weight.dims);
  const std::size_t slices = slice_count(granularity, weight.dims);
  if (layout.alternates()) return extremes_of_neighbours(weight, layout, slices);
  std::vector<KeyRange> extremes(slices);
  onnx::for_each_float(weight.data, [&](std::span<const float> values, std::int64_t first) {
    for_each_run(values, static_cast<std::size_t>(first), layout,
                 [&](std::size_t slice, std::span<const float> run) { extremes[slice].merge(calibration::scan(run)); });
  });
  return extremes;
}

std::vector<ScaleZeroPoint> weight_params(const std::vector<KeyRange>& extremes, const WeightFormat& format) {
  std::vector<ScaleZeroPoint> params;
  params.reserve(extremes.size());
  for (const auto& e : extremes) {
    params.push_back(e.empty() ? ScaleZeroPoint{} : compute_params(e.lowest(), e.highest(), format));
  }
  return params;
}

onnx::Tensor quantized_weight(const onnx::Tensor& weight, std::string name, const WeightFormat& format,
                              const std::vector<ScaleZeroPoint>& params) {
  const auto type = data_type(format.type);
  const auto size = onnx::byte_count(type, weight.count()).value_or(0);
  const Layout layout(format.granularity, weight.dims);
  const IntRange clip = full_range(format.type);
  auto produce = [data = weight.data, layout, clip, stored = format.type, params](const onnx::Sink& sink) {
    const SliceParams slices(params);
    const float* scales = slices.scales.data();
    const float* zeros = slices.zeros.data();
    const auto min = static_cast<float>(clip.min);
    const auto max = static_cast<float>(clip.max);
    std::vector<std::int16_t> integers;
    std::vector<std::byte> bytes;
    // Pieces have even sizes but for the last, so 4-bit integers never share a byte across two.
    onnx::for_each_float(data, [&](std::span<const float> values, std::int64_t first) {
      integers.resize(values.size());
      std::int16_t* out = integers.data();
      for_each_run(values, static_cast<std::size_t>(first), layout, [&](std::size_t slice, std::span<const float> run) {
        if (is_float(stored)) {
          encode_run(run, scales + slice, layout.alternates() ? 1 : 0, small_float(stored), out);
        } else if (layout.alternates()) {
          quantize_each(run.data(), run.size(), scales + slice, zeros + slice, min, max, out);
        } else {
          quantize_run(run.data(), run.size(), scales[slice], zeros[slice], min, max, out);
        }
        out += run.size();
      });
      sink(narrowed(integers, stored, bytes));
    });
  };
  return {std::move(name), type, weight.dims, onnx::TensorData::produced(size, std::move(produce)), {}, false};
}

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
