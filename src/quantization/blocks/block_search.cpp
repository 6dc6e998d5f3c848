#include "quantization/blocks/block_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"
#include "onnx/packed_numbers.h"

namespace detent::quantization {
namespace {

constexpr std::size_t kLanes = 16;  // columns that are searched together
// Values of a column that are at hand at a time: those of a longer block are taken anew for each trial.
constexpr std::size_t kAtHand = std::size_t{1} << 16;

struct alignas(64) Lanes {
  float at[kLanes];
};

// One block of kLanes columns, each divided by a power of two that brings its largest value into [0.5, 1): no square
// overflows, and no result depends on the unit of the weights.
struct Tile {
  const float* columns[kLanes];
  std::size_t length = 0;
  std::vector<Lanes> values;  // those from `first` on
  std::size_t first = 0;
  Lanes once, again;              // by which they are multiplied
  std::vector<float> importance;  // largest in [0.5, 1); empty: all 1
  Lanes min, max;                 // of a range that includes zero
  int exponent[kLanes];
  float levels = 15;  // the integers of a block are 0 to this

  // Has the values from one of them on at hand; how many.
  std::size_t take(std::size_t begin) {
    const std::size_t count = std::min(kAtHand, length - begin);
    if (begin != first || count != values.size()) load(begin, count);
    return count;
  }
  void load(std::size_t begin, std::size_t count);
};

// Which scales are tried: range / steps, where the range is that of the values (symmetric: of the largest value).
struct Trials {
  std::vector<float> steps;
  float fine = 0;  // a part of the best scale: a quarter of the distance between two of them
  bool symmetric = true;
  int zero_points = 0;  // on either side of the first guess
};

struct Found {
  Lanes error, scale, zero;
};

// Numbers of steps on an even grid. With weights, narrower ranges can be better: they clip what counts little.
Trials trials_of(const BlockFormat& format, bool weighted, bool quick) {
  struct Grid {
    double first, last;
    int count;
  };
  Grid grid{};
  Trials trials{.steps = {}, .fine = 0, .symmetric = format.symmetric, .zero_points = 0};
  if (format.bits == 8) {
    grid = weighted ? Grid{0.96, 1.3, 64} : Grid{0.97, 1.1, 32};
  } else if (format.symmetric) {
    grid = weighted ? Grid{0.7, 2.5, 32} : Grid{format.bits == 2 ? 0.4 : 0.8, 1.6, 24};
  } else {
    grid = weighted ? Grid{0.85, format.bits == 2 ? 4.0 : 2.8, 20} : Grid{0.88, 1.65, 24};
    trials.zero_points = weighted ? 2 : format.bits == 2 ? 1 : 0;
  }
  if (quick) grid.count = (grid.count + 1) / 2;
  const double whole = format.symmetric ? format.middle() : format.largest();
  for (int i = 0; i < grid.count; ++i) {
    trials.steps.push_back(static_cast<float>(whole * (grid.first + (grid.last - grid.first) * i / (grid.count - 1))));
  }
  trials.fine = static_cast<float>((grid.last - grid.first) / (4 * (grid.count - 1)));
  return trials;
}

// To the nearest integer, halves to even, for |x| < 2^22.
[[gnu::always_inline]] inline float rounded(float x) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

[[gnu::always_inline]] inline float clipped(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// Keeps scale and zero point of the lanes where they are better than the best so far. With integers m for the scale s,
// and r = value / s - m, the best scale for these integers is s (1 + Σrm / Σm²), and its error s² (Σr² - (Σrm)² / Σm²).
template <bool weighted>
[[gnu::always_inline]] inline void attempt(Tile& tile, const Lanes& scale, const Lanes& zero, Found& best) {
  Lanes inverse, low, high;
  float rr[kLanes] = {}, rm[kLanes] = {}, mm[kLanes] = {};
  for (std::size_t l = 0; l < kLanes; ++l) {
    inverse.at[l] = 1.0F / scale.at[l];
    low.at[l] = -zero.at[l];
    high.at[l] = tile.levels - zero.at[l];
  }
  for (std::size_t first = 0; first < tile.length; first += kAtHand) {
    const std::size_t count = tile.take(first);
    const Lanes* values = tile.values.data();
    const float* importance = weighted ? tile.importance.data() + first : nullptr;
    for (std::size_t k = 0; k < count; ++k) {
      const float weight = weighted ? importance[k] : 1.0F;
      for (std::size_t l = 0; l < kLanes; ++l) {
        const float x = values[k].at[l] * inverse.at[l];
        const float m = rounded(clipped(x, low.at[l], high.at[l]));
        const float r = x - m;
        const float wm = weighted ? weight * m : m;
        rr[l] += weighted ? weight * r * r : r * r;
        rm[l] += wm * r;
        mm[l] += wm * m;
      }
    }
  }
  for (std::size_t l = 0; l < kLanes; ++l) {
    const float more = rm[l] / (mm[l] > 0 ? mm[l] : 1.0F);
    const float error = scale.at[l] * scale.at[l] * (rr[l] - more * rm[l]);
    const bool better = error < best.error.at[l];
    best.error.at[l] = better ? error : best.error.at[l];
    best.scale.at[l] = better ? scale.at[l] + scale.at[l] * more : best.scale.at[l];
    best.zero.at[l] = better ? zero.at[l] : best.zero.at[l];
  }
}

// Tries scales next to the best one, then what least squares make of it.
template <bool weighted>
[[gnu::always_inline]] inline void refine(Tile& tile, float fine, Found& best) {
  constexpr int kNeighbours = 3, kRepeats = 2;
  const Lanes around = best.scale;
  for (int i = -kNeighbours; i <= kNeighbours + kRepeats; ++i) {
    Lanes scale = best.scale;
    const Lanes zero = best.zero;
    const float factor = 1 + fine * static_cast<float>(i);
    for (std::size_t l = 0; l < kLanes && i <= kNeighbours; ++l) scale.at[l] = around.at[l] * factor;
    attempt<weighted>(tile, scale, zero, best);
  }
}

template <bool weighted>
[[gnu::always_inline]] inline void try_all(Tile& tile, const Trials& trials, Found& best) {
  Lanes scale, zero, first, range;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const float farther = tile.max.at[l] > -tile.min.at[l] ? tile.max.at[l] : -tile.min.at[l];
    const float size = trials.symmetric ? farther : tile.max.at[l] - tile.min.at[l];
    range.at[l] = size > 0 ? size : 1.0F;
    zero.at[l] = (tile.levels + 1) / 2;
  }
  for (const float steps : trials.steps) {
    if (trials.symmetric) {
      for (const float sign : {-1.0F, 1.0F}) {
        for (std::size_t l = 0; l < kLanes; ++l) scale.at[l] = range.at[l] / (sign * steps);
        attempt<weighted>(tile, scale, zero, best);
      }
      continue;
    }
    const float beyond = steps > tile.levels ? (steps - tile.levels) / 2 : 0.0F;  // clipped at either end
    for (std::size_t l = 0; l < kLanes; ++l) {
      scale.at[l] = range.at[l] / steps;
      first.at[l] = rounded(-tile.min.at[l] / scale.at[l] - beyond);
    }
    for (int shift = -trials.zero_points; shift <= trials.zero_points; ++shift) {
      for (std::size_t l = 0; l < kLanes; ++l) {
        zero.at[l] = clipped(first.at[l] + static_cast<float>(shift), 0.0F, tile.levels);
      }
      attempt<weighted>(tile, scale, zero, best);
    }
  }
  refine<weighted>(tile, trials.fine, best);
}

DETENT_VECTOR_CLONES
void try_plain(Tile& tile, const Trials& trials, Found& best) { try_all<false>(tile, trials, best); }

DETENT_VECTOR_CLONES
void try_weighted(Tile& tile, const Trials& trials, Found& best) { try_all<true>(tile, trials, best); }

// Integers of what is at hand for these scales, and the errors of what will be stored, added up as exactly as float64
// has them.
DETENT_VECTOR_CLONES
void round_values(const Tile& tile, const Lanes& scale, const Lanes& zero, double* errors, std::uint8_t* integers) {
  // Copies, since bytes that are written might be any of these for all that a compiler knows.
  const Lanes s = scale, z = zero;
  const float levels = tile.levels;
  Lanes inverse, low, high;
  double sums[kLanes];
  std::copy_n(errors, kLanes, sums);
  for (std::size_t l = 0; l < kLanes; ++l) {
    inverse.at[l] = s.at[l] != 0 ? 1.0F / s.at[l] : 0.0F;
    low.at[l] = -z.at[l];
    high.at[l] = levels - z.at[l];
  }
  for (std::size_t k = 0; k < tile.values.size(); ++k) {
    const double weight = tile.importance.empty() ? 1.0 : static_cast<double>(tile.importance[tile.first + k]);
    const Lanes values = tile.values[k];
    std::int32_t found[kLanes];
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float m = rounded(clipped(values.at[l] * inverse.at[l], low.at[l], high.at[l]));
      const double r = values.at[l] - s.at[l] * m;
      sums[l] += weight * (r * r);
      found[l] = static_cast<std::int32_t>(m + z.at[l]);
    }
    for (std::size_t l = 0; l < kLanes; ++l) integers[k * kLanes + l] = static_cast<std::uint8_t>(found[l]);
  }
  for (std::size_t l = 0; l < kLanes; ++l) errors[l] = sums[l];
}

int exponent_of(float value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return exponent;
}

// The weights of a block, so that the largest is in [0.5, 1). Those that are all the same say nothing.
std::vector<float> scaled(std::span<const float> importance) {
  if (importance.empty()) return {};
  const auto [least, most] = std::minmax_element(importance.begin(), importance.end());
  if (!(*most > *least)) return {};
  const int exponent = exponent_of(*most);
  std::vector<float> made(importance.begin(), importance.end());
  for (auto& v : made) v = std::ldexp(v, -exponent);
  return made;
}

// Widens the extremes of the lanes by what is at hand; false where a value is not finite.
DETENT_VECTOR_CLONES
bool widen_extremes(Tile& tile) {
  Lanes low = tile.min, high = tile.max, wrong{};
  for (const auto& row : tile.values) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float v = row.at[l];
      low.at[l] = v < low.at[l] ? v : low.at[l];
      high.at[l] = v > high.at[l] ? v : high.at[l];
      wrong.at[l] += v * 0.0F;
    }
  }
  tile.min = low;
  tile.max = high;
  return std::all_of(std::begin(wrong.at), std::end(wrong.at), [](float w) { return w == 0; });
}

// By two factors, since one alone would not be a float for the smallest values.
DETENT_VECTOR_CLONES
void scale_lanes(std::span<Lanes> values, const Lanes& once, const Lanes& again) {
  for (auto& row : values) {
    for (std::size_t l = 0; l < kLanes; ++l) row.at[l] = row.at[l] * once.at[l] * again.at[l];
  }
}

void Tile::load(std::size_t begin, std::size_t count) {
  first = begin;
  values.resize(count);
  for (std::size_t l = 0; l < kLanes; ++l) {
    const float* column = columns[l] + begin;
    for (std::size_t k = 0; k < count; ++k) values[k].at[l] = column[k];
  }
  scale_lanes(values, once, again);
}

// Lanes to spare repeat a column.
void fill_tile(const BlockOfColumns& of, std::size_t first, std::size_t columns, Tile& tile) {
  for (std::size_t l = 0; l < kLanes; ++l) tile.columns[l] = of.values + (first + std::min(l, columns - 1)) * of.stride;
  tile.length = of.length;
  tile.min = tile.max = {};  // of a range that includes zero
  std::fill_n(tile.once.at, kLanes, 1.0F);
  tile.again = tile.once;
  for (std::size_t begin = 0; begin < of.length; begin += kAtHand) {
    tile.load(begin, std::min(kAtHand, of.length - begin));
    if (!widen_extremes(tile)) throw bad_input("weights are not finite");
  }
  auto &once = tile.once, &again = tile.again;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const int exponent = exponent_of(std::max(tile.max.at[l], -tile.min.at[l]));
    once.at[l] = std::ldexp(1.0F, -exponent / 2);
    again.at[l] = std::ldexp(1.0F, -exponent - -exponent / 2);
    tile.exponent[l] = exponent;
    tile.min.at[l] = tile.min.at[l] * once.at[l] * again.at[l];
    tile.max.at[l] = tile.max.at[l] * once.at[l] * again.at[l];
  }
  if (of.length <= kAtHand)
    scale_lanes(tile.values, once, again);
  else
    tile.load(0, kAtHand);
}

// A scale as it will be stored: as float32, and with finite levels only.
BlockScale storable(float scale, float zero, const Tile& tile, std::size_t lane) {
  BlockScale made{.scale = std::ldexp(scale, tile.exponent[lane]), .zero_point = static_cast<std::uint8_t>(zero)};
  const float most = std::numeric_limits<float>::max() / std::max({zero, tile.levels - zero, 1.0F});
  made.scale = std::clamp(made.scale, -most, most);
  return made;
}

// What nearest() takes, where the range is a float.
BlockScale plain_scale(const Tile& tile, std::size_t lane, const BlockFormat& format) {
  const auto made = block_scale(tile.min.at[lane], tile.max.at[lane], format);
  return storable(made.scale, made.zero_point, tile, lane);
}

// Where the integers of a tile go: of each column to a place of its own.
struct Target {
  std::uint8_t* integers;  // nullptr: nowhere
  std::size_t stride;
  std::vector<std::uint8_t> at_hand;
};

// Searches the columns of a tile.
void search_tile(Tile& tile, const Trials& trials, const BlockFormat& format, std::size_t columns, BlockScale* found,
                 Target& target) {
  Found best;
  std::fill_n(best.error.at, kLanes, std::numeric_limits<float>::infinity());
  (tile.importance.empty() ? try_plain : try_weighted)(tile, trials, best);
  struct Candidate {
    BlockScale stored[kLanes];
    Lanes scale, zero;
    double errors[kLanes] = {};
  };
  Candidate searched, plain;
  for (std::size_t l = 0; l < kLanes; ++l) {
    searched.stored[l] = storable(best.scale.at[l], best.zero.at[l], tile, l);
    plain.stored[l] = plain_scale(tile, l, format);
  }
  for (auto* candidate : {&searched, &plain}) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      candidate->scale.at[l] = std::ldexp(candidate->stored[l].scale, -tile.exponent[l]);
      candidate->zero.at[l] = candidate->stored[l].zero_point;
    }
  }
  const auto each_part = [&](const auto& use) {
    for (std::size_t first = 0; first < tile.length; first += kAtHand) {
      target.at_hand.resize(tile.take(first) * kLanes);
      use();
    }
  };
  for (auto* candidate : {&searched, &plain}) {
    each_part([&] { round_values(tile, candidate->scale, candidate->zero, candidate->errors, target.at_hand.data()); });
  }
  for (std::size_t l = 0; l < kLanes; ++l) {
    const bool better = searched.errors[l] < plain.errors[l];
    if (l < columns) found[l] = better ? searched.stored[l] : plain.stored[l];
    if (better) continue;
    searched.scale.at[l] = plain.scale.at[l];
    searched.zero.at[l] = plain.zero.at[l];
  }
  if (target.integers == nullptr) return;
  each_part([&] {
    round_values(tile, searched.scale, searched.zero, searched.errors, target.at_hand.data());
    const std::size_t count = tile.values.size();  // not looked up again for each byte that is written
    const std::uint8_t* from = target.at_hand.data();
    for (std::size_t l = 0; l < columns; ++l) {
      std::uint8_t* to = target.integers + l * target.stride + tile.first;
      for (std::size_t k = 0; k < count; ++k) to[k] = from[k * kLanes + l];
    }
  });
}

}  // namespace

void search_blocks(const BlockOfColumns& of, const BlockFormat& format, std::span<const float> importance,
                   std::span<BlockScale> found, std::uint8_t* integers, std::size_t integer_stride, bool quick) {
  if (of.length == 0) return;
  Tile tile;
  tile.importance = scaled(importance);
  tile.levels = static_cast<float>(format.largest());
  const auto trials = trials_of(format, !tile.importance.empty(), quick);
  Target target{integers, integer_stride, {}};
  for (std::size_t first = 0; first < of.columns; first += kLanes) {
    const std::size_t columns = std::min(kLanes, of.columns - first);
    fill_tile(of, first, columns, tile);
    search_tile(tile, trials, format, columns, found.data() + first, target);
    if (integers != nullptr) target.integers += kLanes * integer_stride;
  }
}

BlockWeight search(std::span<const float> columns, std::int64_t rows, const BlockFormat& format,
                   std::span<const float> importance) {
  const auto count = rows > 0 ? static_cast<std::int64_t>(columns.size()) / rows : 0;
  auto made = make_blocks(rows, count, format);
  const auto blocks = made.blocks(), block = format.block_of(rows);
  std::vector<BlockScale> found(static_cast<std::size_t>(count));
  for (std::int64_t b = 0; b < blocks && count > 0; ++b) {
    const auto first = static_cast<std::size_t>(b * block), stride = static_cast<std::size_t>(rows);
    const auto length = static_cast<std::size_t>(std::min(block, rows - b * block));
    search_blocks({columns.data() + first, stride, found.size(), length}, format,
                  importance.empty() ? importance : importance.subspan(first, length), found,
                  made.integers.data() + first, stride);
    for (std::size_t n = 0; n < found.size(); ++n) {
      const auto at = n * static_cast<std::size_t>(blocks) + static_cast<std::size_t>(b);
      made.scales[at] = found[n].scale;
      made.zero_points[at] = found[n].zero_point;
    }
  }
  return made;
}

namespace {

struct ValueGrid {
  float first = 0, distance = 0;
};

// The coarsest of at most `levels` steps; values may be off by what float16 rounds.
std::optional<ValueGrid> grid_of(std::span<const float> values, int levels) {
  constexpr float kOff = 0.02F;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const float first = *least, range = *most - first;
  if (!(range > 0)) return ValueGrid{first, 0};
  for (int steps = 1; steps <= levels; ++steps) {
    const float inverse = static_cast<float>(steps) / range;
    if (std::all_of(values.begin(), values.end(), [&](float v) {
          const float at = (v - first) * inverse;
          return std::abs(at - std::nearbyint(at)) < kOff;
        }))
      return ValueGrid{first, range / static_cast<float>(steps)};
  }
  return std::nullopt;
}

// As scales are stored.
float as_float16(float scale) { return onnx::from_float16(onnx::to_float16(scale)); }

}  // namespace

bool lie_on_grids(std::span<const float> columns, std::int64_t rows, const BlockFormat& format) {
  const auto block = static_cast<std::size_t>(format.block_of(rows));
  if (rows == 0 || static_cast<std::size_t>(rows) % block != 0) return false;
  bool any = false;  // blocks of one number are exact without
  for (std::size_t at = 0; at < columns.size(); at += block) {
    const auto grid = grid_of(columns.subspan(at, block), format.largest());
    any = any || (grid && grid->distance > 0);
    // Nearer than float16 rounds but where it has fewer digits, or none.
    if (!grid || std::abs(as_float16(grid->distance) - grid->distance) > grid->distance / (1 << 11)) return false;
  }
  return any;
}

BlockWeight blocks_on_grids(std::span<const float> columns, std::int64_t rows, const BlockFormat& format) {
  const auto found = search(columns, rows, format);
  const auto blocks = static_cast<std::size_t>(found.blocks()), block = static_cast<std::size_t>(format.block_of(rows));
  const auto row_count = static_cast<std::size_t>(rows), longer = row_count + blocks;
  auto made = make_blocks(static_cast<std::int64_t>(longer), found.columns, format);
  const auto all_blocks = static_cast<std::size_t>(made.blocks());
  std::vector<float> off(static_cast<std::size_t>(found.columns) * blocks);
  for (std::size_t n = 0; n < static_cast<std::size_t>(found.columns); ++n) {
    for (std::size_t b = 0; b < blocks; ++b) {
      const auto values = columns.subspan(n * row_count + b * block, block);
      auto* integers = made.integers.data() + n * longer + b * block;
      auto& scale = made.scales[n * all_blocks + b];
      auto& zero = made.zero_points[n * all_blocks + b];
      scale = found.scales[n * blocks + b];
      zero = found.zero_points[n * blocks + b];
      std::copy_n(found.integers.data() + n * row_count + b * block, block, integers);
      const auto grid = grid_of(values, format.largest());
      if (!grid) continue;
      const auto [first, distance] = *grid;
      scale = distance;
      const auto largest = static_cast<float>(format.largest());
      const float at = distance > 0 ? std::clamp(std::nearbyint(-first / distance), 0.0F, largest) : 0.0F;
      zero = static_cast<std::uint8_t>(at);
      off[n * blocks + b] = first + at * distance;
      for (std::size_t k = 0; k < block; ++k)
        integers[k] = static_cast<std::uint8_t>(distance > 0 ? std::nearbyint((values[k] - first) / distance) : 0);
    }
  }
  const auto sums = search(off, static_cast<std::int64_t>(blocks), format);
  const auto sum_blocks = static_cast<std::size_t>(sums.blocks());
  for (std::size_t n = 0; n < static_cast<std::size_t>(found.columns); ++n) {
    std::copy_n(sums.integers.data() + n * blocks, blocks, made.integers.data() + n * longer + row_count);
    std::copy_n(sums.scales.data() + n * sum_blocks, sum_blocks, made.scales.data() + n * all_blocks + blocks);
    std::copy_n(sums.zero_points.data() + n * sum_blocks, sum_blocks,
                made.zero_points.data() + n * all_blocks + blocks);
  }
  for (float& scale : made.scales) scale = as_float16(scale);
  return made;
}

void dequantize_sums(const BlockWeight& weight, std::int64_t rows, std::span<float> values) {
  const auto row_count = static_cast<std::size_t>(rows), longer = static_cast<std::size_t>(weight.rows);
  const auto block = static_cast<std::size_t>(weight.format.block_of(rows));
  std::vector<float> all(longer * static_cast<std::size_t>(weight.columns));
  dequantize(weight, all);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto n = i / row_count, k = i % row_count;
    values[i] = all[n * longer + k] + all[n * longer + row_count + k / block];
  }
}

}  // namespace detent::quantization
