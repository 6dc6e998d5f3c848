#include "finetune/block_gptq.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/vector_clones.h"
#include "finetune/block_factor.h"

namespace detent::finetune {
namespace {

using quantization::BlockFormat;
using quantization::BlockScale;
using quantization::BlockWeight;

// The grids of a block of several columns.
struct Grids {
  Lanes scale, inverse, low, high;
};

Grids grids_of(const BlockWeight& made, std::size_t first_column, std::size_t columns, std::size_t block) {
  Grids grids{};
  for (std::size_t l = 0; l < columns; ++l) {
    const std::size_t at = (first_column + l) * static_cast<std::size_t>(made.blocks()) + block;
    const float scale = made.scales[at], inverse = 1.0F / scale;
    const int zero = made.zero_points[at];
    grids.scale.at[l] = scale;
    grids.inverse.at[l] = scale != 0 && std::isfinite(inverse) ? inverse : 0.0F;
    grids.low.at[l] = static_cast<float>(-zero);
    grids.high.at[l] = static_cast<float>(made.format.largest() - zero);
  }
  return grids;
}

// Rounds the places [first, last), the last of them first. All arrays begin at place `begin`; `sums` holds entries of
// the error so far. `steps` gets integers without their zero points, with keep_zeros 0 for weights of 0.
DETENT_VECTOR_CLONES
void round_places(const Cholesky& factor, std::size_t begin, std::size_t first, std::size_t last, const Grids& grids,
                  const Lanes* weights, bool keep_zeros, Lanes* sums, Lanes* difference, Lanes* steps) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  const Grids g = grids;
  for (std::size_t j = last; j-- > first;) {
    const float* line = factor.row(j) + begin;
    const std::size_t c = j - begin;
    Lanes change;
    for (std::size_t l = 0; l < kLanes; ++l) {
      float x = (weights[c].at[l] - sums[c].at[l] / line[c]) * g.inverse.at[l];
      x = x < g.low.at[l] ? g.low.at[l] : x;
      x = x > g.high.at[l] ? g.high.at[l] : x;
      const float m = keep_zeros && weights[c].at[l] == 0 ? 0.0F : (x + kShift) - kShift;
      change.at[l] = g.scale.at[l] * m - weights[c].at[l];
      steps[c].at[l] = m;
    }
    difference[c] = change;
    for (std::size_t i = 0; i < c; ++i) {
      for (std::size_t l = 0; l < kLanes; ++l) sums[i].at[l] += change.at[l] * line[i];
    }
  }
}

}  // namespace

// What a thread works with. Rows of `difference` and `sums` are columns of the weight.
struct BlockGptq::Work {
  std::span<const float> columns;  // of this piece
  std::size_t count = 0;           // of them
  std::size_t first = 0;           // the first of them in `made`
  BlockWeight& made;
  std::vector<float> difference;  // Ŵ − W, kColumnsTogether × rows, by place
  std::vector<float> sums;        // kColumnsTogether × places of a chunk: what rounded weights add to (Ŵ − W) L
  // Of kLanes columns and the places of a chunk.
  std::vector<Lanes> weights, entries, changes, steps, spare;
};

BlockGptq::BlockGptq(const Gram& gram, const Damping& damping, const BlockFormat& format,
                     const BlockGptqOptions& options, const Kernels& kernels, std::size_t threads)
    : rows_(gram.rows),
      format_(format),
      options_(options),
      threads_(threads),
      importance_(damping.diagonal),
      order_(order_of_turns(importance_,
                            static_cast<std::size_t>(format.block_of(static_cast<std::int64_t>(gram.rows))),
                            options.activation_order)),
      chunks_(chunks_of(order_, static_cast<std::size_t>(format.block_of(static_cast<std::int64_t>(gram.rows))))),
      factor_(damped_matrix(gram, damping, order_), gram.rows, kernels, threads) {}

std::vector<BlockGptq::Chunk> BlockGptq::chunks_of(const std::vector<std::size_t>& order, std::size_t block) {
  const std::size_t longest = block > kLongestBlock ? Cholesky::kBlock : block;
  std::vector<Chunk> chunks;
  for (std::size_t end = order.size(); end > 0;) {
    const std::size_t number = order[end - 1] / block, length = std::min(block, order.size() - number * block);
    const std::size_t stop = end - length;
    for (bool opens = true; end > stop; opens = false) {
      const Part part{.first = end - std::min(longest, end - stop), .last = end, .block = number, .opens = opens};
      const bool fits = !chunks.empty() && chunks.back().last - part.first <= Cholesky::kBlock;
      if (!fits) chunks.push_back({.first = part.first, .last = part.last, .parts = {}});
      chunks.back().first = part.first;
      chunks.back().parts.push_back(part);
      end = part.first;
    }
  }
  return chunks;
}

// Scales of the block that a part opens, for its weights as they are or as they best become.
void BlockGptq::find_scales(Work& work, const Chunk& chunk, const Part& part, std::size_t column) const {
  const bool whole = format_.block > 0 && static_cast<std::size_t>(format_.block) <= kLongestBlock;
  const auto size = static_cast<std::size_t>(format_.block_of(static_cast<std::int64_t>(rows_)));
  const std::size_t begin = part.block * size, length = std::min(size, rows_ - begin);
  const std::size_t count = std::min(kLanes, work.count - column);
  std::vector<float> values(kLanes * length);
  for (std::size_t l = 0; l < count; ++l) {
    std::copy_n(work.columns.data() + (column + l) * rows_ + begin, length, values.data() + l * length);
  }
  if (whole && !options_.scales_first) {
    const std::size_t at = part.first - chunk.first;
    std::copy_n(work.entries.data() + at, length, work.spare.data());
    make_up(factor_, part.first, part.last, work.spare.data(), work.changes.data());
    for (std::size_t c = 0; c < length; ++c) {
      const std::size_t k = order_[part.first + c] - begin;
      for (std::size_t l = 0; l < count; ++l) {
        float& value = values[l * length + k];
        if (!options_.keep_zeros || value != 0) value += work.changes[c].at[l];
      }
    }
  }
  BlockScale found[kLanes];
  quantization::search_blocks({values.data(), length, count, length}, format_,
                              std::span(importance_).subspan(begin, length), {found, count}, nullptr, 0);
  const auto blocks = static_cast<std::size_t>(work.made.blocks());
  for (std::size_t l = 0; l < count; ++l) {
    work.made.scales[(work.first + column + l) * blocks + part.block] = found[l].scale;
    work.made.zero_points[(work.first + column + l) * blocks + part.block] = found[l].zero_point;
  }
}

// A chunk of up to kLanes columns, the first of which is `column` of the piece.
void BlockGptq::round_lanes(Work& work, const Chunk& chunk, std::size_t column) const {
  const std::size_t places = chunk.last - chunk.first, count = std::min(kLanes, work.count - column);
  for (std::size_t c = 0; c < places; ++c) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float* values = work.columns.data() + (column + l) * rows_;
      work.weights[c].at[l] = l < count ? values[order_[chunk.first + c]] : 0.0F;
      work.entries[c].at[l] = work.sums[(column + l) * places + c];
    }
  }
  for (const Part& part : chunk.parts) {
    if (part.opens) find_scales(work, chunk, part, column);
    const Grids grids = grids_of(work.made, work.first + column, count, part.block);
    round_places(factor_, chunk.first, part.first, part.last, grids, work.weights.data(), options_.keep_zeros,
                 work.entries.data(), work.changes.data(), work.steps.data());
    for (std::size_t j = part.first; j < part.last; ++j) {
      const std::size_t c = j - chunk.first;
      for (std::size_t l = 0; l < count; ++l) {
        work.difference[(column + l) * rows_ + j] = work.changes[c].at[l];
        const float integer = work.steps[c].at[l] - grids.low.at[l];
        work.made.integers[(work.first + column + l) * rows_ + order_[j]] = static_cast<std::uint8_t>(integer);
      }
    }
  }
}

void BlockGptq::round_piece(std::span<const float> columns, std::size_t first, BlockWeight& made) const {
  const std::size_t count = std::min(kColumnsTogether, columns.size() / rows_ - first);
  std::size_t most = 0;
  for (const auto& chunk : chunks_) most = std::max(most, chunk.last - chunk.first);
  Work work{.columns = columns.subspan(first * rows_, count * rows_),
            .count = count,
            .first = first,
            .made = made,
            .difference = std::vector<float>(kColumnsTogether * rows_),  // all of them, so that products have one shape
            .sums = std::vector<float>(kColumnsTogether * most),
            .weights = std::vector<Lanes>(most),
            .entries = std::vector<Lanes>(most),
            .changes = std::vector<Lanes>(most),
            .steps = std::vector<Lanes>(most),
            .spare = std::vector<Lanes>(most)};

  for (const auto& chunk : chunks_) {
    factor_.product_below(work.difference.data(), kColumnsTogether, chunk.first, chunk.last, work.sums.data());
    for (std::size_t column = 0; column < count; column += kLanes) round_lanes(work, chunk, column);
  }
}

BlockWeight BlockGptq::round(std::span<const float> columns) const {
  const std::size_t count = rows_ > 0 ? columns.size() / rows_ : 0;
  auto made = quantization::make_blocks(static_cast<std::int64_t>(rows_), static_cast<std::int64_t>(count), format_);
  parallel_for((count + kColumnsTogether - 1) / kColumnsTogether, threads_,
               [&](std::size_t piece) { round_piece(columns, piece * kColumnsTogether, made); });
  return made;
}

}  // namespace detent::finetune
