#include "quantize/weights.h"

#include <algorithm>
#include <cstring>

#include "base/vector_clones.h"
#include "onnx/nibbles.h"

namespace detent::quantization {
namespace {

using calibration::KeyRange;

// The weight seen as [outer, channels, inner] with the quantized axis in the middle.
struct Layout {
  std::size_t channels = 1;
  std::size_t inner = 1;
};

Layout layout_of(const onnx::Tensor& weight, const Granularity& granularity) {
  if (granularity.is_tensor()) return {1, static_cast<std::size_t>(std::max<std::int64_t>(weight.count(), 1))};
  Layout layout{static_cast<std::size_t>(weight.dims.at(granularity.axis)), 1};
  // One channel is the whole tensor, in long runs.
  for (std::size_t d = layout.channels == 1 ? 0 : granularity.axis + 1; d < weight.dims.size(); ++d) {
    layout.inner *= static_cast<std::size_t>(weight.dims[d]);
  }
  return layout;
}

// Splits a piece of the flat tensor into runs that belong to one channel: fn(channel, values).
template <class Fn>
void for_each_run(std::span<const float> values, std::size_t first, const Layout& layout, Fn fn) {
  for (std::size_t at = 0; at < values.size();) {
    const std::size_t position = first + at;
    const std::size_t run = std::min(layout.inner - position % layout.inner, values.size() - at);
    fn(position / layout.inner % layout.channels, values.subspan(at, run));
    at += run;
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

// The same with a scale of its own for each value: weights whose channels alternate from value to value.
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

// Splits a piece of a tensor whose last dimension is the channel into rows: fn(first_channel, values).
template <class Fn>
void for_each_row(std::span<const float> values, std::size_t first, std::size_t channels, Fn fn) {
  for (std::size_t at = 0; at < values.size();) {
    const std::size_t channel = (first + at) % channels;
    const std::size_t run = std::min(channels - channel, values.size() - at);
    fn(channel, values.subspan(at, run));
    at += run;
  }
}

std::vector<KeyRange> extremes_of_columns(const onnx::Tensor& weight, std::size_t channels) {
  std::vector<std::int32_t> mins(channels, KeyRange{}.min);
  std::vector<std::int32_t> maxs(channels, KeyRange{}.max);
  onnx::for_each_float(weight.data, [&](std::span<const float> values, std::int64_t first) {
    for_each_row(values, static_cast<std::size_t>(first), channels,
                 [&](std::size_t channel, std::span<const float> row) {
                   merge_keys(row.data(), row.size(), mins.data() + channel, maxs.data() + channel);
                 });
  });
  std::vector<KeyRange> extremes(channels);
  for (std::size_t c = 0; c < channels; ++c) extremes[c] = {mins[c], maxs[c]};
  return extremes;
}

// Scales and zero points of all channels, as the kernels want them.
struct Columns {
  std::vector<float> scales, zeros;
  explicit Columns(const std::vector<ScaleZeroPoint>& params) {
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
  const Layout layout = layout_of(weight, granularity);
  if (layout.inner == 1) return extremes_of_columns(weight, layout.channels);
  std::vector<KeyRange> extremes(layout.channels);
  onnx::for_each_float(weight.data, [&](std::span<const float> values, std::int64_t first) {
    for_each_run(values, static_cast<std::size_t>(first), layout, [&](std::size_t channel, std::span<const float> run) {
      extremes[channel].merge(calibration::scan(run));
    });
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
  const Layout layout = layout_of(weight, format.granularity);
  const IntRange clip = full_range(format.type);
  auto produce = [data = weight.data, layout, clip, stored = format.type, params](const onnx::Sink& sink) {
    const Columns columns(params);
    const auto min = static_cast<float>(clip.min);
    const auto max = static_cast<float>(clip.max);
    std::vector<std::int16_t> integers;
    std::vector<std::byte> bytes;
    // Pieces have even sizes but for the last, so 4-bit integers never share a byte across two.
    onnx::for_each_float(data, [&](std::span<const float> values, std::int64_t first) {
      integers.resize(values.size());
      std::int16_t* out = integers.data();
      const auto position = static_cast<std::size_t>(first);
      if (layout.inner == 1) {
        for_each_row(values, position, layout.channels, [&](std::size_t channel, std::span<const float> row) {
          quantize_each(row.data(), row.size(), columns.scales.data() + channel, columns.zeros.data() + channel, min,
                        max, out);
          out += row.size();
        });
      } else {
        for_each_run(values, position, layout, [&](std::size_t channel, std::span<const float> run) {
          quantize_run(run.data(), run.size(), columns.scales[channel], columns.zeros[channel], min, max, out);
          out += run.size();
        });
      }
      sink(narrowed(integers, stored, bytes));
    });
  };
  return {std::move(name), type, weight.dims, onnx::TensorData::produced(size, std::move(produce)), {}, false};
}

}  // namespace detent::quantization
