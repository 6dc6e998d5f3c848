#include "solve/blocks/block_refinement.h"

#include <algorithm>
#include <cmath>

#include "base/vector_clones.h"
#include "solve/blocks/block_error.h"

namespace detent::solve {
namespace {

// A part of L Lᵀ: that of neighbouring places.
struct Near {
  const float* values = nullptr;
  std::size_t places = 0;

  const float* row(std::size_t i) const noexcept { return values + i * places; }
};

// kLanes values as one value: the compiler would make vectors of the wrong loop in what follows.
using Vector [[gnu::vector_size(sizeof(Lanes)), gnu::may_alias]] = float;

// product_i = sum over j in [first, last) of A_ij x_j, for i in [begin, end).
DETENT_VECTOR_CLONES
void multiply(const Near& near, std::size_t first, std::size_t last, std::size_t begin, std::size_t end, const Lanes* x,
              Lanes* product) {
  constexpr std::size_t kRows = 4;  // sums that do not wait for each other
  const auto* from = reinterpret_cast<const Vector*>(x);
  auto* to = reinterpret_cast<Vector*>(product);
  std::size_t i = begin;
  for (; i + kRows <= end; i += kRows) {
    const float *p = near.row(i), *q = near.row(i + 1), *r = near.row(i + 2), *s = near.row(i + 3);
    Vector a{}, b{}, c{}, d{};
    for (std::size_t j = first; j < last; ++j) {
      a += p[j] * from[j];
      b += q[j] * from[j];
      c += r[j] * from[j];
      d += s[j] * from[j];
    }
    to[i] = a;
    to[i + 1] = b;
    to[i + 2] = c;
    to[i + 3] = d;
  }
  for (; i < end; ++i) {
    Vector sum{};
    for (std::size_t j = first; j < last; ++j) sum += near.row(i)[j] * from[j];
    to[i] = sum;
  }
}

// Half of the first and of the second derivative of the error by the scale of [first, last), of each lane.
DETENT_VECTOR_CLONES
void derivatives(std::size_t first, std::size_t last, const Lanes* steps, const Lanes* product, const Lanes* residual,
                 Lanes& half, Lanes& curve) {
  Lanes gradient{}, square{};
  for (std::size_t j = first; j < last; ++j) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      gradient.at[l] += steps[j].at[l] * residual[j].at[l];
      square.at[l] += steps[j].at[l] * product[j].at[l];
    }
  }
  half = gradient;
  curve = square;
}

DETENT_VECTOR_CLONES
void move_scale(std::size_t first, std::size_t last, const Lanes& by, const Lanes* steps, const Lanes* product,
                Lanes* residual, Lanes* change) {
  const Lanes d = by;
  for (std::size_t j = first; j < last; ++j) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      residual[j].at[l] += d.at[l] * product[j].at[l];
      change[j].at[l] += d.at[l] * steps[j].at[l];
    }
  }
}

// Gives each of the places [first, last) its best integer, the last of them first. `kept`: weights of 0 keep theirs;
// null: none do. A change has to be worth more than the rounding errors of float sums.
DETENT_VECTOR_CLONES
void refine_integers(const Near& near, std::size_t first, std::size_t last, const BlockGrids& grids, const Lanes* kept,
                     Lanes* steps, Lanes* residual, Lanes* change) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  constexpr float kHalf = 0.5001F;
  const BlockGrids g = grids;
  for (std::size_t j = last; j-- > first;) {
    const float* line = near.row(j);
    const float inverse = 1.0F / line[j];
    Lanes moved;
    float any = 0;
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float now = steps[j].at[l];
      const float step = -residual[j].at[l] * inverse * g.inverse.at[l];
      const float size = step < 0 ? -step : step;
      float x = now + step;
      x = x < g.low.at[l] ? g.low.at[l] : x;
      x = x > g.high.at[l] ? g.high.at[l] : x;
      const float m = size > kHalf ? (x + kShift) - kShift : now;
      moved.at[l] = m - now;
    }
    for (std::size_t l = 0; l < kLanes && kept != nullptr; ++l) moved.at[l] = kept[j].at[l] == 0 ? 0.0F : moved.at[l];
    for (std::size_t l = 0; l < kLanes; ++l) any = moved.at[l] != 0 ? 1.0F : any;
    if (any == 0) continue;
    for (std::size_t l = 0; l < kLanes; ++l) {
      steps[j].at[l] += moved.at[l];
      moved.at[l] *= g.scale.at[l];
      change[j].at[l] += moved.at[l];
    }
    for (std::size_t i = first; i < last; ++i) {
      for (std::size_t l = 0; l < kLanes; ++l) residual[i].at[l] += moved.at[l] * line[i];
    }
  }
}

DETENT_VECTOR_CLONES
void add_lanes(const Lanes* from, std::size_t count, Lanes* to) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t l = 0; l < kLanes; ++l) to[i].at[l] += from[i].at[l];
  }
}

// The scale moved along its gradient to where the error is least: by how much, as a float has it. 0 where it would get
// another sign, or where nothing is gained.
float best_scale_change(float scale, double gradient, double curve, int largest) {
  if (!(curve > 0) || scale == 0) return 0;
  const auto made = static_cast<float>(scale - gradient / curve);
  if (!std::isfinite(made * static_cast<float>(largest)) || !(made / scale > 0)) return 0;
  const double moved = static_cast<double>(made) - scale;
  return moved * (2 * gradient + moved * curve) < 0 ? made - scale : 0;
}

}  // namespace

// Of kLanes columns and the places of a chunk, but the first three, which have kColumnsTogether.
struct BlockRefinement::Work {
  std::vector<float> residual, change, spare;
  std::vector<Lanes> gradient, steps, weights, moved, product;
};

BlockRefinement::BlockRefinement(const Cholesky& factor, const std::vector<BlockChunk>& chunks, bool keep_zeros,
                                 const Kernels& kernels)
    : factor_(factor), chunks_(chunks), keep_zeros_(keep_zeros), near_(chunks.size()) {
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const auto& chunk = chunks[c];
    const std::size_t places = chunk.last - chunk.first;
    near_[c].resize(places * places);
    kernels.gemm(gemm_of(places, places, chunk.last, true), factor.row(chunk.first), factor.size(),
                 factor.row(chunk.first), factor.size(), near_[c].data(), places);
    for (const auto& part : chunk.parts) {
      parts_of_.resize(std::max(parts_of_.size(), part.block + 1));
      ++parts_of_[part.block];
    }
  }
}

void BlockRefinement::run(BlockColumns& columns, std::size_t turns) const {
  if (turns == 0) return;
  std::size_t most = 0;
  for (const auto& chunk : chunks_) most = std::max(most, chunk.last - chunk.first);
  Work work;
  for (auto* values : {&work.residual, &work.change}) values->resize(most * kColumnsTogether);
  for (auto* lanes : {&work.gradient, &work.steps, &work.weights, &work.moved, &work.product}) lanes->resize(most);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    fit_long_blocks(columns, work);
    for (std::size_t c = chunks_.size(); c-- > 0;) refine(columns, work, c);
  }
  fit_long_blocks(columns, work);
}

void BlockRefinement::refine(BlockColumns& columns, Work& work, std::size_t c) const {
  const auto& chunk = chunks_[c];
  factor_.rows_times(chunk.first, chunk.last, columns.errors.data(), kColumnsTogether, work.residual.data());
  std::fill(work.change.begin(), work.change.end(), 0.0F);
  for (std::size_t column = 0; column < columns.count; column += kLanes) refine(columns, work, c, column);
  factor_.add_rows_transposed(chunk.first, chunk.last, work.change.data(), kColumnsTogether, columns.errors.data());
}

void BlockRefinement::refine(BlockColumns& columns, Work& work, std::size_t c, std::size_t column) const {
  constexpr int kSweeps = 2;
  const auto& chunk = chunks_[c];
  const std::size_t places = chunk.last - chunk.first;
  const Near near{near_[c].data(), places};
  copy_in(work.residual.data(), 0, places, column, work.gradient.data());
  copy_in(columns.steps.data(), chunk.first, chunk.last, column, work.steps.data());
  if (keep_zeros_) copy_in(columns.weights.data(), chunk.first, chunk.last, column, work.weights.data());
  std::fill_n(work.moved.data(), places, Lanes{});
  for (std::size_t p = chunk.parts.size(); p-- > 0;) {
    const auto& part = chunk.parts[p];
    const std::size_t first = part.first - chunk.first, last = part.last - chunk.first;
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      fit_scale(columns, work, c, part, column);
      const auto grids =
          grids_of(columns.made, columns.first + column, std::min(kLanes, columns.count - column), part.block);
      refine_integers(near, first, last, grids, keep_zeros_ ? work.weights.data() : nullptr, work.steps.data(),
                      work.gradient.data(), work.moved.data());
    }
    fit_scale(columns, work, c, part, column);
    multiply(near, first, last, last, places, work.moved.data(), work.product.data());
    add_lanes(work.product.data() + last, places - last, work.gradient.data() + last);
  }
  copy_out(work.steps.data(), chunk.first, chunk.last, column, columns.steps.data());
  copy_out(work.moved.data(), 0, places, column, work.change.data());
}

void BlockRefinement::fit_scale(BlockColumns& columns, Work& work, std::size_t c, const BlockPart& part,
                                std::size_t column) const {
  if (is_long(part.block)) return;
  const auto& chunk = chunks_[c];
  const std::size_t first = part.first - chunk.first, last = part.last - chunk.first;
  multiply({near_[c].data(), chunk.last - chunk.first}, first, last, first, last, work.steps.data(),
           work.product.data());
  Lanes gradient, curve, by{};
  derivatives(first, last, work.steps.data(), work.product.data(), work.gradient.data(), gradient, curve);
  auto& made = columns.made;
  const auto blocks = static_cast<std::size_t>(made.blocks());
  for (std::size_t l = 0; l < std::min(kLanes, columns.count - column); ++l) {
    float& scale = made.scales[(columns.first + column + l) * blocks + part.block];
    by.at[l] = best_scale_change(scale, gradient.at[l], curve.at[l], made.format.largest());
    scale += by.at[l];
  }
  move_scale(first, last, by, work.steps.data(), work.product.data(), work.gradient.data(), work.moved.data());
}

// With Ŵ = s m of the block and u = m L the error is |E + d u|² once the scale has moved by d.
void BlockRefinement::fit_long_blocks(BlockColumns& columns, Work& work) const {
  auto& made = columns.made;
  const auto blocks = static_cast<std::size_t>(made.blocks());
  for (std::size_t block = 0; block < parts_of_.size(); ++block) {
    if (!is_long(block)) continue;
    work.spare.assign(columns.errors.size(), 0.0F);
    for (const auto& chunk : chunks_) {
      for (const auto& part : chunk.parts) {
        if (part.block != block) continue;
        factor_.add_rows_transposed(part.first, part.last, columns.steps.data() + part.first * kColumnsTogether,
                                    kColumnsTogether, work.spare.data());
      }
    }
    for (std::size_t n = 0; n < columns.count; ++n) {
      double gradient = 0, curve = 0;
      for (std::size_t i = n; i < work.spare.size(); i += kColumnsTogether) {
        gradient += static_cast<double>(work.spare[i]) * columns.errors[i];
        curve += static_cast<double>(work.spare[i]) * work.spare[i];
      }
      float& scale = made.scales[(columns.first + n) * blocks + block];
      const float by = best_scale_change(scale, gradient, curve, made.format.largest());
      scale += by;
      for (std::size_t i = n; i < work.spare.size(); i += kColumnsTogether) columns.errors[i] += by * work.spare[i];
    }
  }
}

}  // namespace detent::solve
