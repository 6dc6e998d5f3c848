#include "quantization/block_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/vector_clones.h"
#include "onnx/wire.h"

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

// Rows of the tensor become columns, in tiles that fit the cache.
void transpose(const onnx::Tensor& tensor, const BlockTensor& shape, std::int64_t first, std::int64_t last,
               std::span<float> columns) {
  constexpr std::int64_t kTile = 32;
  constexpr std::int64_t kRelease = 512;  // rows
  const std::byte* bytes = tensor.data.bytes().data();
  const auto rows = shape.rows, pitch = shape.columns;
  float tile[kTile];
  for (std::int64_t k0 = 0; k0 < rows; k0 += kTile) {
    const auto k1 = std::min(k0 + kTile, rows);
    for (std::int64_t n0 = first; n0 < last; n0 += kTile) {
      const auto width = static_cast<std::size_t>(std::min(n0 + kTile, last) - n0);
      for (std::int64_t k = k0; k < k1; ++k) {
        std::memcpy(tile, bytes + static_cast<std::size_t>(k * pitch + n0) * sizeof(float), width * sizeof(float));
        float* out = columns.data() + (n0 - first) * rows + k;
        for (std::size_t i = 0; i < width; ++i) out[static_cast<std::int64_t>(i) * rows] = tile[i];
      }
    }
    if (k1 % kRelease == 0 || k1 == rows) {
      const auto begin = static_cast<std::size_t>((k1 - 1) / kRelease * kRelease * pitch) * sizeof(float);
      release(tensor, begin, static_cast<std::size_t>(k1 * pitch) * sizeof(float) - begin);
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

void append(BlockWeight& all, BlockWeight&& part) {
  if (all.columns == 0) {
    all = std::move(part);
    return;
  }
  all.columns += part.columns;
  all.integers.insert(all.integers.end(), part.integers.begin(), part.integers.end());
  all.scales.insert(all.scales.end(), part.scales.begin(), part.scales.end());
  all.zero_points.insert(all.zero_points.end(), part.zero_points.begin(), part.zero_points.end());
}

}  // namespace

void read_columns(const onnx::Tensor& tensor, const BlockTensor& shape, std::int64_t first, std::int64_t last,
                  std::span<float> columns) {
  if (shape.by_columns) {
    const auto begin = static_cast<std::size_t>(first * shape.rows) * sizeof(float);
    std::memcpy(columns.data(), tensor.data.bytes().data() + begin, columns.size_bytes());
    release(tensor, begin, columns.size_bytes());
  } else {
    transpose(tensor, shape, first, last, columns);
  }
  if (!all_finite(columns.data(), columns.size()))
    throw bad_input(fmt::format("weight '{}' holds NaN or infinite values", printable(tensor.name)),
                    "leave its node in float with --exclude-nodes, or mend the model");
}

// Parts are of a fixed size, so that sums do not depend on threads.
BlockErrors BlockStream::for_each(const std::function<void(std::int64_t first, const BlockWeight& stripe)>& fn) const {
  constexpr std::int64_t kParts = 8;
  const std::int64_t part = std::max<std::int64_t>(1, kStripeValues / kParts / std::max<std::int64_t>(1, shape_.rows));
  const std::int64_t parts = (shape_.columns + part - 1) / part;
  BlockErrors sums;
  for (std::int64_t begin = 0; begin < parts; begin += kParts) {
    const auto count = static_cast<std::size_t>(std::min(kParts, parts - begin));
    std::vector<BlockWeight> found(count);
    std::vector<BlockErrors> errors(count);
    parallel_for(count, threads_, [&](std::size_t i) {
      const auto first = (begin + static_cast<std::int64_t>(i)) * part;
      const auto last = std::min(first + part, shape_.columns);
      std::vector<float> columns(static_cast<std::size_t>((last - first) * shape_.rows));
      read_columns(tensor_, shape_, first, last, columns);
      found[i] = solve_(columns, first);
      errors[i] = errors_of(columns, found[i]);
    });
    BlockWeight stripe;
    for (std::size_t i = 0; i < count; ++i) {
      append(stripe, std::move(found[i]));
      sums.squares += errors[i].squares;
      sums.errors += errors[i].errors;
    }
    fn(begin * part, stripe);
  }
  return sums;
}

}  // namespace detent::quantization
