#include "quantization/blocks/block_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/vector_clones.h"
#include "onnx/half.h"
#include "onnx/wire.h"
#include "quantization/blocks/element_blocks.h"

namespace detent::quantization {
namespace {

constexpr std::int64_t kStripeValues = std::int64_t{1} << 24;

DETENT_VECTOR_CLONES
bool all_finite(const float* values, std::size_t count) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    bad |= (bits & 0x7F800000U) == 0x7F800000U ? 1U : 0U;
  }
  return bad == 0;
}

void release(const onnx::Tensor& tensor, std::size_t first, std::size_t size) {
  if (const auto& file = tensor.data.file()) file->release(tensor.data.bytes().subspan(first, size));
}

std::size_t element_size(const onnx::Tensor& tensor) { return tensor.type == onnx::DataType::float32 ? 4 : 2; }

// So many elements of the tensor, from one of them on, as float32.
void read_values(const onnx::Tensor& tensor, std::size_t first, std::span<float> values) {
  const std::byte* bytes = tensor.data.bytes().data() + first * element_size(tensor);
  if (tensor.type == onnx::DataType::float32) {
    std::memcpy(values.data(), bytes, values.size_bytes());
    return;
  }
  const auto raise = tensor.type == onnx::DataType::float16 ? onnx::from_float16 : onnx::from_bfloat16;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t low;
    std::memcpy(&low, bytes + i * sizeof(low), sizeof(low));
    values[i] = raise(low);
  }
}

// Rows of the tensor become columns, in tiles that fit the cache.
void transpose(const onnx::Tensor& tensor, const BlockTensor& shape, std::int64_t first, std::int64_t last,
               std::span<float> columns) {
  constexpr std::int64_t kTile = 32;
  constexpr std::int64_t kRelease = 512;  // rows
  const auto rows = shape.rows, pitch = shape.columns;
  const auto size = element_size(tensor);
  float tile[kTile];
  for (std::int64_t k0 = 0; k0 < rows; k0 += kTile) {
    const auto k1 = std::min(k0 + kTile, rows);
    for (std::int64_t n0 = first; n0 < last; n0 += kTile) {
      const auto width = static_cast<std::size_t>(std::min(n0 + kTile, last) - n0);
      for (std::int64_t k = k0; k < k1; ++k) {
        read_values(tensor, static_cast<std::size_t>(k * pitch + n0), std::span(tile, width));
        float* out = columns.data() + (n0 - first) * rows + k;
        for (std::size_t i = 0; i < width; ++i) out[static_cast<std::int64_t>(i) * rows] = tile[i];
      }
    }
    if (k1 % kRelease == 0 || k1 == rows) {
      const auto begin = static_cast<std::size_t>((k1 - 1) / kRelease * kRelease * pitch) * size;
      release(tensor, begin, static_cast<std::size_t>(k1 * pitch) * size - begin);
    }
  }
}

void multiply(const BlockTensor& shape, std::int64_t first, std::int64_t last, std::span<float> columns) {
  const auto rows = static_cast<std::size_t>(shape.rows);
  for (std::int64_t n = first; n < last; ++n) {
    float* column = columns.data() + static_cast<std::size_t>(n - first) * rows;
    if (!shape.row_factors.empty()) {
      for (std::size_t k = 0; k < rows; ++k) column[k] *= shape.row_factors[k];
    }
    if (!shape.column_factors.empty()) {
      const float factor = shape.column_factors[static_cast<std::size_t>(n)];
      for (std::size_t k = 0; k < rows; ++k) column[k] *= factor;
    }
  }
}

DETENT_VECTOR_CLONES
void add_errors(const float* values, const float* stored, std::size_t count, double* squares, double* errors) {
  constexpr std::size_t kLanes = 8;
  double s[kLanes] = {}, e[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const double v = values[i + l], d = v - static_cast<double>(stored[i + l]);
      s[l] += v * v;
      e[l] += d * d;
    }
  }
  for (; i < count; ++i) {
    const double v = values[i], d = v - static_cast<double>(stored[i]);
    s[0] += v * v;
    e[0] += d * d;
  }
  for (std::size_t l = 0; l < kLanes; ++l) {
    *squares += s[l];
    *errors += e[l];
  }
}

BlockErrors errors_of(std::span<const float> columns, const BlockWeight& found) {
  std::vector<float> stored(columns.size());
  dequantize(found, stored);
  BlockErrors sums;
  add_errors(columns.data(), stored.data(), columns.size(), &sums.squares, &sums.errors);
  return sums;
}

}  // namespace

void read_columns(const onnx::Tensor& tensor, const BlockTensor& shape, std::int64_t first, std::int64_t last,
                  std::span<float> columns) {
  if (shape.by_columns) {
    const auto begin = static_cast<std::size_t>(first * shape.rows);
    read_values(tensor, begin, columns);
    release(tensor, begin * element_size(tensor), columns.size() * element_size(tensor));
  } else {
    transpose(tensor, shape, first, last, columns);
  }
  multiply(shape, first, last, columns);
  if (!all_finite(columns.data(), columns.size()))
    throw bad_input(fmt::format("weight '{}' holds NaN or infinite values", printable(tensor.name)),
                    "leave its node in float with --exclude-nodes, or mend the model");
}

float largest_value(const onnx::Tensor& tensor, const BlockTensor& shape) {
  const std::int64_t part = std::max<std::int64_t>(1, kStripeValues / 8 / std::max<std::int64_t>(1, shape.rows));
  float largest = 0;
  std::vector<float> columns;
  for (std::int64_t first = 0; first < shape.columns; first += part) {
    const auto last = std::min(first + part, shape.columns);
    columns.resize(static_cast<std::size_t>((last - first) * shape.rows));
    read_columns(tensor, shape, first, last, columns);
    for (const float value : columns) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

void round_scales(BlockWeight& found, std::span<const float> columns, onnx::DataType type, float tolerance) {
  if (type == onnx::DataType::float32 || found.format.scales != ScaleType::as_weight) return;
  constexpr float kSmallest = 5.9604645e-8F;  // of float16
  const auto rows = static_cast<std::size_t>(found.rows), blocks = static_cast<std::size_t>(found.blocks());
  const auto block = static_cast<std::size_t>(found.format.block_of(found.rows));
  for (std::size_t s = 0; s < found.scales.size(); ++s) {
    const float scale = found.scales[s];
    float stored = type == onnx::DataType::float16 ? onnx::from_float16(onnx::to_float16(scale))
                                                   : onnx::from_bfloat16(onnx::to_bfloat16(scale));
    if (stored == 0 && scale != 0) stored = std::copysign(kSmallest, scale);
    found.scales[s] = stored;
    if (std::abs(stored - scale) <= tolerance * std::abs(scale)) continue;
    const std::size_t first = s / blocks * rows + s % blocks * block;
    const std::size_t count = std::min(block, rows - s % blocks * block);
    const auto values = columns.subspan(first, count);
    if (found.format.floats) {
      round_elements(values, stored, found.format, found.integers.data() + first);
    } else {
      round_block(values, {stored, found.zero_points[s]}, found.format.bits, found.integers.data() + first);
    }
  }
}

// Parts are of a fixed size, so that sums do not depend on threads.
BlockErrors BlockStream::for_each(std::int64_t begin, std::int64_t end,
                                  const std::function<void(std::int64_t first, const BlockWeight& stripe)>& fn) const {
  constexpr std::int64_t kParts = 8;
  constexpr float kLastBits = 1.0F / 128;  // integers that make up for each other's errors stay, as far as scales do
  const std::int64_t part = std::max<std::int64_t>(1, kStripeValues / kParts / std::max<std::int64_t>(1, shape_.rows));
  const std::int64_t parts = (end - begin + part - 1) / part;
  BlockErrors sums;
  for (std::int64_t p = 0; p < parts; p += kParts) {
    const auto count = static_cast<std::size_t>(std::min(kParts, parts - p));
    std::vector<BlockWeight> found(count);
    std::vector<BlockErrors> errors(count);
    parallel_for(count, threads_, [&](std::size_t i) {
      const auto first = begin + (p + static_cast<std::int64_t>(i)) * part;
      const auto last = std::min(first + part, end);
      std::vector<float> columns(static_cast<std::size_t>((last - first) * shape_.rows));
      read_columns(tensor_, shape_, first, last, columns);
      found[i] = solve_(columns, first);
      round_scales(found[i], columns, shape_.type, kLastBits);
      errors[i] = errors_of(columns, found[i]);
    });
    for (std::size_t i = 0; i < count; ++i) {
      sums.squares += errors[i].squares;
      sums.errors += errors[i].errors;
      fn(begin + (p + static_cast<std::int64_t>(i)) * part, found[i]);
      found[i] = {};
    }
  }
  return sums;
}

// Blocks lie along columns, so that the factor of a column is one of its scales.
BlockSolver scaled(BlockSolver solve, const std::vector<float>& factors) {
  if (factors.empty()) return solve;
  return [solve = std::move(solve), factors](std::span<const float> columns, std::int64_t first) {
    auto made = solve(columns, first);
    const auto blocks = static_cast<std::size_t>(made.blocks());
    for (std::size_t i = 0; i < made.scales.size(); ++i)
      made.scales[i] *= factors[static_cast<std::size_t>(first) + i / blocks];
    return made;
  };
}

}  // namespace detent::quantization
