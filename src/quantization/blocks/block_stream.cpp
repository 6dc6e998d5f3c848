#include "quantization/blocks/block_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "onnx/packed_numbers.h"
#include "onnx/wire.h"
#include "quantization/blocks/block_search.h"
#include "quantization/blocks/blocks.h"

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

BlockErrors errors_of(std::span<const float> columns, const BlockWeight& found, std::int64_t rows) {
  BlockErrors sums;
  std::vector<float> stored;
  const auto add = [&](std::size_t first) {
    add_errors(columns.data() + first, stored.data(), stored.size(), &sums.squares, &sums.errors);
  };
  if (found.rows != rows) {
    stored.resize(columns.size());
    dequantize_sums(found, rows, stored);
    add(0);
    return sums;
  }
  // Column by column: what is stored of one stays in the cache.
  const auto length = static_cast<std::size_t>(rows), blocks = static_cast<std::size_t>(found.blocks());
  auto one = make_blocks(rows, 1, found.format);
  stored.resize(length);
  for (std::size_t n = 0; n < static_cast<std::size_t>(found.columns); ++n) {
    std::copy_n(found.integers.data() + n * length, length, one.integers.data());
    std::copy_n(found.scales.data() + n * blocks, blocks, one.scales.data());
    std::copy_n(found.zero_points.data() + n * blocks, blocks, one.zero_points.data());
    dequantize(one, stored);
    add(n * length);
  }
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
      const auto size = static_cast<std::size_t>((last - first) * shape_.rows);
      const auto values = std::make_unique_for_overwrite<float[]>(size);
      const std::span columns(values.get(), size);
      read_columns(tensor_, shape_, first, last, columns);
      found[i] = solve_(columns, first);
      round_scales(found[i], columns, shape_.type, kLastBits);
      errors[i] = errors_of(columns, found[i], shape_.rows);
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

namespace {

using Options = std::vector<BitOption>;

// Positions of the options on the lower convex hull of error over bytes, from the smallest on.
std::vector<std::size_t> hull_of(const Options& options) {
  std::vector<std::size_t> order(options.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto &p = options[a], &q = options[b];
    return p.bytes != q.bytes ? p.bytes < q.bytes : p.error < q.error;
  });
  // Gain for each byte between two options.
  const auto slope = [&](std::size_t a, std::size_t b) {
    return (options[a].error - options[b].error) / static_cast<double>(options[b].bytes - options[a].bytes);
  };
  std::vector<std::size_t> hull;
  for (const auto next : order) {
    if (!hull.empty() && !(options[next].error < options[hull.back()].error)) continue;
    while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), next)) hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

struct Step {
  std::size_t group = 0, from = 0, to = 0;  // options
  double gain = 0;                          // for each byte
};

std::vector<Step> steps_of(std::span<const Options> groups, const std::vector<std::vector<std::size_t>>& hulls) {
  std::vector<Step> steps;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 1; i < hulls[g].size(); ++i) {
      const auto &from = groups[g][hulls[g][i - 1]], &to = groups[g][hulls[g][i]];
      steps.push_back(
          {g, hulls[g][i - 1], hulls[g][i], (from.error - to.error) / static_cast<double>(to.bytes - from.bytes)});
    }
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.gain > b.gain; });
  return steps;
}

// The change of one group that lowers the error most and fits.
std::optional<Step> best_single(std::span<const Options> groups, const std::vector<std::size_t>& chosen,
                                std::int64_t left) {
  std::optional<Step> best;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& now = groups[g][chosen[g]];
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const auto& other = groups[g][i];
      const double gain = now.error - other.error;
      if (other.bytes - now.bytes <= left && gain > (best ? best->gain : 0)) best = Step{g, chosen[g], i, gain};
    }
  }
  return best;
}

using Choice = std::vector<std::size_t>;

std::int64_t bytes_of(std::span<const Options> groups, const Choice& chosen) {
  std::int64_t sum = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) sum += groups[g][chosen[g]].bytes;
  return sum;
}

double error_of(std::span<const Options> groups, const Choice& chosen) {
  double sum = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) sum += groups[g][chosen[g]].error;
  return sum;
}

// What is left over goes to single changes.
Choice spend_remaining_bytes(std::span<const Options> groups, Choice chosen, std::int64_t budget) {
  std::int64_t left = budget - bytes_of(groups, chosen);
  while (const auto step = best_single(groups, chosen, left)) {
    left -= groups[step->group][step->to].bytes - groups[step->group][step->from].bytes;
    chosen[step->group] = step->to;
  }
  return chosen;
}

Choice along_hulls(std::span<const Options> groups, const std::vector<std::vector<std::size_t>>& hulls, Choice chosen,
                   std::int64_t budget) {
  std::int64_t left = budget - bytes_of(groups, chosen);
  for (const auto& step : steps_of(groups, hulls)) {
    const auto bytes = groups[step.group][step.to].bytes - groups[step.group][step.from].bytes;
    if (chosen[step.group] != step.from || bytes > left) continue;
    left -= bytes;
    chosen[step.group] = step.to;
  }
  return chosen;
}

// The best of all choices, with bytes beyond the smallest rounded up to units of which `budget` leaves a few thousand.
Choice by_table(std::span<const Options> groups, const Choice& smallest, std::int64_t budget) {
  constexpr std::size_t kEntries = std::size_t{1} << 24;
  const auto units = static_cast<std::int64_t>(std::clamp<std::size_t>(kEntries / groups.size(), 256, 16384));
  const std::int64_t left = budget - bytes_of(groups, smallest), unit = std::max<std::int64_t>(1, left / units);
  const auto size = static_cast<std::size_t>(left / unit) + 1;
  std::vector<double> least(size, 0.0), next(size);  // by the units that groups so far may take
  std::vector<std::uint8_t> taken(groups.size() * size);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::fill(next.begin(), next.end(), std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const auto more = groups[g][i].bytes - groups[g][smallest[g]].bytes;
      const auto cost = static_cast<std::size_t>((more + unit - 1) / unit);
      for (std::size_t at = cost; at < size; ++at) {
        const double error = least[at - cost] + groups[g][i].error;
        if (!(error < next[at])) continue;
        next[at] = error;
        taken[g * size + at] = static_cast<std::uint8_t>(i);
      }
    }
    least.swap(next);
  }
  Choice chosen(groups.size());
  std::size_t at = size - 1;
  for (std::size_t g = groups.size(); g-- > 0;) {
    chosen[g] = taken[g * size + at];
    const auto more = groups[g][chosen[g]].bytes - groups[g][smallest[g]].bytes;
    at -= static_cast<std::size_t>((more + unit - 1) / unit);
  }
  return chosen;
}

}  // namespace

std::optional<std::vector<std::size_t>> choose_bits(std::span<const Options> groups, std::int64_t budget) {
  std::vector<std::vector<std::size_t>> hulls;
  Choice smallest;
  for (const auto& options : groups) {
    hulls.push_back(hull_of(options));
    smallest.push_back(hulls.back().front());
  }
  if (bytes_of(groups, smallest) > budget) return std::nullopt;
  if (groups.empty()) return smallest;
  const auto one = spend_remaining_bytes(groups, along_hulls(groups, hulls, smallest, budget), budget);
  const auto other = spend_remaining_bytes(groups, by_table(groups, smallest, budget), budget);
  return error_of(groups, other) < error_of(groups, one) ? other : one;
}

namespace {

// Between `low`, which is too small, and `high`, which is enough.
std::uint64_t with_expected(double wanted, std::uint64_t low, std::uint64_t high,
                            const std::function<double(std::uint64_t)>& expected) {
  constexpr int kSteps = 12;
  for (int i = 0; i < kSteps && high - low > 1; ++i) {
    const auto middle = low + (high - low) / 2;
    (expected(middle) <= wanted ? high : low) = middle;
  }
  return high;
}

}  // namespace

std::optional<std::uint64_t> smallest_size(const SizeSearch& search,
                                           const std::function<double(std::uint64_t)>& expected,
                                           const std::function<double(std::uint64_t)>& measured,
                                           std::vector<SizeTrial>& trials) {
  constexpr std::uint64_t kNear = 100;  // a part of the size
  std::optional<std::uint64_t> best;
  std::uint64_t low = search.smallest == 0 ? 0 : search.smallest - 1, high = search.largest;
  std::uint64_t size = std::clamp(search.first, low + 1, high);
  for (int trial = 0; trial < search.most_trials; ++trial) {
    const double loss = measured(size);
    trials.push_back({size, loss});
    if (loss <= search.most_loss)
      best = high = size;
    else
      low = size;
    const auto step = std::max<std::uint64_t>(1, low / (2 * kNear));
    if (high <= low + 2 * step) break;
    constexpr double kMuchMore = 16;
    const double factor = expected(size);
    const double wanted = loss > 0 ? factor * search.most_loss / loss : kMuchMore * factor;
    size = std::clamp(with_expected(wanted, low, high, expected), low + step, high - step);
  }
  return best;
}

}  // namespace detent::quantization
