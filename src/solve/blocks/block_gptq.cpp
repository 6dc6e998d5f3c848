#include "solve/blocks/block_gptq.h"

#include <algorithm>

#include "base/parallel.h"
#include "base/vector_clones.h"
#include "solve/blocks/block_factor.h"

namespace detent::solve {
namespace {

using quantization::BlockFormat;
using quantization::BlockScale;
using quantization::BlockWeight;

// The diagonal of A is above all that rounding leaves, so no weight counts as dependent on others.
constexpr double kLeastPivot = 1e-10;

// Rounds the places [first, last), the last of them first. All arrays begin at place `begin`; `entries` holds those of
// the error so far. `steps` gets integers without their zero points, with keep_zeros 0 for weights of 0.
DETENT_VECTOR_CLONES
void round_places(const Cholesky& factor, std::size_t begin, std::size_t first, std::size_t last,
                  const BlockGrids& grids, const Lanes* weights, bool keep_zeros, Lanes* entries, Lanes* difference,
                  Lanes* steps) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  const BlockGrids g = grids;
  for (std::size_t j = last; j-- > first;) {
    const float* line = factor.row(j) + begin;
    const std::size_t c = j - begin;
    Lanes change;
    for (std::size_t l = 0; l < kLanes; ++l) {
      float x = (weights[c].at[l] - entries[c].at[l] / line[c]) * g.inverse.at[l];
      x = x < g.low.at[l] ? g.low.at[l] : x;
      x = x > g.high.at[l] ? g.high.at[l] : x;
      const float m = keep_zeros && weights[c].at[l] == 0 ? 0.0F : (x + kShift) - kShift;
      change.at[l] = g.scale.at[l] * m - weights[c].at[l];
      steps[c].at[l] = m;
    }
    difference[c] = change;
    for (std::size_t i = 0; i <= c; ++i) {
      for (std::size_t l = 0; l < kLanes; ++l) entries[i].at[l] += change.at[l] * line[i];
    }
  }
}

std::vector<BlockChunk> chunks_of(const std::vector<std::size_t>& order, std::size_t block) {
  const std::size_t longest = block > BlockGptq::kLongestBlock ? Cholesky::kBlock : block;
  std::vector<BlockChunk> chunks;
  for (std::size_t end = order.size(); end > 0;) {
    const std::size_t number = order[end - 1] / block, length = std::min(block, order.size() - number * block);
    const std::size_t stop = end - length;
    for (bool opens = true; end > stop; opens = false) {
      const BlockPart part{.first = end - std::min(longest, end - stop), .last = end, .block = number, .opens = opens};
      const bool fits = !chunks.empty() && chunks.back().last - part.first <= Cholesky::kBlock;
      if (!fits) chunks.push_back({.first = part.first, .last = part.last, .parts = {}});
      chunks.back().first = part.first;
      chunks.back().parts.push_back(part);
      end = part.first;
    }
  }
  return chunks;
}

std::size_t longest_of(const std::vector<BlockChunk>& chunks) {
  std::size_t most = 0;
  for (const auto& chunk : chunks) most = std::max(most, chunk.last - chunk.first);
  return most;
}

}  // namespace

// What a thread works with: rows of kColumnsTogether values, and of kLanes columns those of a chunk.
struct BlockGptq::Work : BlockColumns {
  std::vector<float> difference = {};  // Ŵ − W
  std::vector<float> sums = {};        // of a chunk: what rounded weights add to (Ŵ − W) L
  std::vector<Lanes> wanted = {}, entries = {}, changes = {}, rounded = {}, spare = {};
};

BlockGptq::BlockGptq(const Gram& gram, const Damping& damping, const BlockFormat& format,
                     const BlockGptqOptions& options, const Kernels& kernels, std::size_t threads)
    : rows_(gram.rows),
      format_(format),
      options_(options),
      threads_(threads),
      importance_(damping.diagonal),
      order_(rounding_order(importance_,
                            static_cast<std::size_t>(format.block_of(static_cast<std::int64_t>(gram.rows))),
                            options.activation_order)),
      chunks_(chunks_of(order_, static_cast<std::size_t>(format.block_of(static_cast<std::int64_t>(gram.rows))))),
      factor_(damped_matrix(gram, damping, order_), gram.rows, kernels, threads, kLeastPivot),
      refinement_(factor_, chunks_, options.keep_zeros, kernels) {}

// Scales of the block that a part opens, for its weights as they are or as they best become.
void BlockGptq::find_scales(Work& work, const BlockChunk& chunk, const BlockPart& part, std::size_t column) const {
  const auto size = static_cast<std::size_t>(format_.block_of(static_cast<std::int64_t>(rows_)));
  const std::size_t begin = part.block * size, length = std::min(size, rows_ - begin);
  const std::size_t count = std::min(kLanes, work.count - column), last = part.last, first = last - length;
  std::vector<float> values(kLanes * length);
  for (std::size_t j = first; j < last; ++j) {
    const float* from = work.weights.data() + j * kColumnsTogether + column;
    for (std::size_t l = 0; l < count; ++l) values[l * length + order_[j] - begin] = from[l];
  }
  const bool whole = part.last - part.first == length;
  if (whole && !options_.scales_first) {
    std::copy_n(work.entries.data() + (first - chunk.first), length, work.spare.data());
    propagate_error(factor_, first, last, work.spare.data(), work.changes.data());
    for (std::size_t c = 0; c < length; ++c) {
      const std::size_t k = order_[first + c] - begin;
      for (std::size_t l = 0; l < count; ++l) {
        float& value = values[l * length + k];
        if (!options_.keep_zeros || value != 0) value += work.changes[c].at[l];
      }
    }
  }
  BlockScale found[kLanes];
  quantization::search_blocks({values.data(), length, count, length}, format_,
                              std::span(importance_).subspan(begin, length), {found, count}, nullptr, 0,
                              options_.turns > 0);
  const auto blocks = static_cast<std::size_t>(work.made.blocks());
  for (std::size_t l = 0; l < count; ++l) {
    work.made.scales[(work.first + column + l) * blocks + part.block] = found[l].scale;
    work.made.zero_points[(work.first + column + l) * blocks + part.block] = found[l].zero_point;
  }
}

// A chunk of up to kLanes columns, the first of which is `column` of the piece.
void BlockGptq::round_lanes(Work& work, const BlockChunk& chunk, std::size_t column) const {
  const std::size_t count = std::min(kLanes, work.count - column);
  copy_in(work.weights.data(), chunk.first, chunk.last, column, work.wanted.data());
  copy_in(work.sums.data(), 0, chunk.last - chunk.first, column, work.entries.data());
  for (const BlockPart& part : chunk.parts) {
    if (part.opens) find_scales(work, chunk, part, column);
    const auto grids = grids_of(work.made, work.first + column, count, part.block);
    const std::size_t at = part.first - chunk.first;
    round_places(factor_, chunk.first, part.first, part.last, grids, work.wanted.data(), options_.keep_zeros,
                 work.entries.data(), work.spare.data(), work.rounded.data());
    copy_out(work.spare.data() + at, part.first, part.last, column, work.difference.data());
  }
  copy_out(work.rounded.data(), chunk.first, chunk.last, column, work.steps.data());
  copy_out(work.entries.data(), chunk.first, chunk.last, column, work.errors.data());
}

void BlockGptq::round_piece(std::span<const float> columns, std::size_t first, BlockWeight& made) const {
  const std::size_t count = std::min(kColumnsTogether, columns.size() / rows_ - first), most = longest_of(chunks_);
  const std::vector<float> zeros(kColumnsTogether * rows_);  // all columns, so that products have one shape
  Work work{{.count = count, .first = first, .made = made, .weights = zeros, .steps = zeros, .errors = zeros}};
  work.difference = zeros;
  work.sums.resize(kColumnsTogether * most);
  for (auto* lanes : {&work.wanted, &work.entries, &work.changes, &work.rounded, &work.spare}) lanes->resize(most);
  for (std::size_t j = 0; j < rows_; ++j) {
    for (std::size_t n = 0; n < count; ++n)
      work.weights[j * kColumnsTogether + n] = columns[(first + n) * rows_ + order_[j]];
  }
  for (const auto& chunk : chunks_) {
    factor_.columns_below(work.difference.data(), kColumnsTogether, chunk.first, chunk.last, work.sums.data());
    for (std::size_t column = 0; column < count; column += kLanes) round_lanes(work, chunk, column);
  }
  work.difference = {};
  refinement_.run(work, options_.turns);
  store_integers(work, order_);
}

BlockWeight BlockGptq::round(std::span<const float> columns) const {
  const std::size_t count = rows_ > 0 ? columns.size() / rows_ : 0;
  auto made = quantization::make_blocks(static_cast<std::int64_t>(rows_), static_cast<std::int64_t>(count), format_);
  parallel_for((count + kColumnsTogether - 1) / kColumnsTogether, threads_,
               [&](std::size_t piece) { round_piece(columns, piece * kColumnsTogether, made); });
  return made;
}

}  // namespace detent::solve
