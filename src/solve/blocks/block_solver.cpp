#include "solve/blocks/block_solver.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"

namespace detent::solve {
namespace {

using quantization::BlockFormat;
using quantization::BlockWeight;

// Puts `part`, which begins at a column of `whole`, where it belongs.
void place(const BlockWeight& part, std::size_t first, BlockWeight& whole) {
  const auto rows = static_cast<std::size_t>(whole.rows), blocks = static_cast<std::size_t>(whole.blocks());
  std::copy(part.integers.begin(), part.integers.end(), whole.integers.data() + first * rows);
  std::copy(part.scales.begin(), part.scales.end(), whole.scales.data() + first * blocks);
  std::copy(part.zero_points.begin(), part.zero_points.end(), whole.zero_points.data() + first * blocks);
}

void copy_column(const BlockWeight& from, std::size_t column, BlockWeight& to) {
  const auto rows = static_cast<std::size_t>(to.rows), blocks = static_cast<std::size_t>(to.blocks());
  std::copy_n(from.integers.data() + column * rows, rows, to.integers.data() + column * rows);
  std::copy_n(from.scales.data() + column * blocks, blocks, to.scales.data() + column * blocks);
  std::copy_n(from.zero_points.data() + column * blocks, blocks, to.zero_points.data() + column * blocks);
}

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// A turn of long rows takes longer.
std::size_t usual_refinements(std::size_t rows) { return rows <= 1024 ? 4 : 2; }

}  // namespace

BlockSolver::BlockSolver(const Gram& gram, const std::optional<GramOrInputRows>& held_back, const BlockFormat& format,
                         const BlockSolverOptions& options, const Kernels& kernels, std::size_t threads)
    : gram_(gram),
      judge_(held_back ? *held_back : GramOrInputRows(gram)),
      format_(format),
      options_(options),
      kernels_(kernels),
      threads_(threads),
      damping_(gram, options.damping.value_or(usual_damping(gram.positions))) {
  if (options.method == BlockMethod::gptq || options.method == BlockMethod::automatic) {
    gptq_.emplace(gram, damping_, format,
                  BlockGptqOptions{.keep_zeros = options.keep_zeros,
                                   .turns = options.turns.value_or(usual_refinements(gram.rows))},
                  kernels, threads);
  }
}

BlockWeight BlockSolver::searched(std::span<const float> columns) const {
  const std::size_t count = gram_.rows > 0 ? columns.size() / gram_.rows : 0;
  auto made =
      quantization::make_blocks(static_cast<std::int64_t>(gram_.rows), static_cast<std::int64_t>(count), format_);
  parallel_for((count + kColumnsTogether - 1) / kColumnsTogether, threads_, [&](std::size_t piece) {
    const std::size_t first = piece * kColumnsTogether, some = std::min(kColumnsTogether, count - first);
    place(quantization::search(columns.subspan(first * gram_.rows, some * gram_.rows), made.rows, format_,
                               damping_.diagonal),
          first, made);
  });
  return made;
}

BlockSolution BlockSolver::solve(std::span<const float> columns, std::span<const float> against) const {
  BlockSolution solution;
  const auto errors_of = [&](const BlockWeight& weight) {
    return column_errors(judge_, against.empty() ? columns : against, weight, kernels_, threads_);
  };
  const auto rows = static_cast<std::int64_t>(gram_.rows);
  if (options_.method != BlockMethod::automatic) {
    const auto method = options_.method;
    solution.weight = method == BlockMethod::nearest  ? quantization::nearest(columns, rows, format_)
                      : method == BlockMethod::search ? searched(columns)
                                                      : rounded(columns);
    solution.error = sum_of(errors_of(solution.weight));
    return solution;
  }
  solution.weight = rounded(columns);
  auto best = errors_of(solution.weight);
  solution.error_gptq = sum_of(best);
  std::vector<BlockMethod> methods(best.size(), BlockMethod::gptq);
  const auto take_better = [&](const BlockWeight& other, BlockMethod method) {
    const auto errors = errors_of(other);
    for (std::size_t n = 0; n < best.size(); ++n) {
      if (!(errors[n] < best[n])) continue;
      best[n] = errors[n];
      methods[n] = method;
      copy_column(other, n, solution.weight);
    }
    return sum_of(errors);
  };
  solution.error_search = take_better(searched(columns), BlockMethod::search);
  solution.error_nearest = take_better(quantization::nearest(columns, rows, format_), BlockMethod::nearest);
  solution.error = sum_of(best);
  solution.column_errors = std::move(best);
  solution.column_methods = std::move(methods);
  return solution;
}

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

namespace {

using quantization::BlockScale;

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
      order_(rounding_order({importance_.begin(), importance_.end()},
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

namespace {

std::vector<float> factors_of(const Gram& gram, double exponent) {
  constexpr float kMost = 1e4F;
  double trace = 0;
  for (std::size_t k = 0; k < gram.rows; ++k) trace += std::max(gram.at(k, k), 0.0F);
  std::vector<float> factors(gram.rows, 1.0F);
  if (!(trace > 0)) return factors;
  const double mean = trace / static_cast<double>(gram.rows);
  for (std::size_t k = 0; k < gram.rows; ++k) {
    const double power = std::max(static_cast<double>(gram.at(k, k)) / mean, 1e-8);
    factors[k] = static_cast<float>(std::pow(power, exponent / 2));
  }
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  const float middle = std::sqrt(*least * *most);
  for (auto& v : factors) v = std::clamp(v / middle, 1 / kMost, kMost);
  return factors;
}

// The error of some columns with these factors.
double error_of(const Gram& gram, std::span<const float> columns, const BlockFormat& format, bool search,
                const std::vector<float>& factors, const Kernels& kernels) {
  const std::size_t rows = gram.rows, count = columns.size() / rows;
  std::vector<float> scaled(columns.begin(), columns.end()), power(rows);
  for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= factors[i % rows];
  for (std::size_t k = 0; k < rows; ++k) power[k] = std::max(gram.at(k, k), 0.0F) / (factors[k] * factors[k]);
  const auto k = static_cast<std::int64_t>(rows);
  const auto rounded =
      search ? quantization::search(scaled, k, format, power) : quantization::nearest(scaled, k, format);
  std::vector<float> difference(kColumnsTogether * rows), product(difference.size());
  stored_difference(scaled, rounded, 0, count, difference.data());
  for (std::size_t i = 0; i < count * rows; ++i) difference[i] /= factors[i % rows];
  kernels.gemm(gemm_of(kColumnsTogether, rows, rows, false), difference.data(), rows, gram.values.data(), rows,
               product.data(), rows);
  return std::max(dot_double(difference.data(), product.data(), count * rows), 0.0);
}

}  // namespace

InputScales best_input_scales(const Gram& gram, std::span<const float> columns, const BlockFormat& format, bool search,
                              const Kernels& kernels, std::size_t threads) {
  constexpr int kSteps = 10;
  const std::size_t count = gram.rows > 0 ? columns.size() / gram.rows : 0;
  if (columns.size() != gram.rows * count || gram.values.size() != gram.rows * gram.rows) {
    throw internal_error("a Gram matrix and columns do not belong together");
  }
  InputScales best;
  std::vector<double> errors((count + kColumnsTogether - 1) / kColumnsTogether);
  for (int step = 0; step <= kSteps; ++step) {
    const double exponent = static_cast<double>(step) / kSteps;
    auto factors = factors_of(gram, exponent);
    parallel_for(errors.size(), threads, [&](std::size_t piece) {
      const std::size_t first = piece * kColumnsTogether, some = std::min(kColumnsTogether, count - first);
      errors[piece] =
          error_of(gram, columns.subspan(first * gram.rows, some * gram.rows), format, search, factors, kernels);
    });
    const double error = std::accumulate(errors.begin(), errors.end(), 0.0);
    if (step == 0) best.error = best.error_before = error;
    if (!(error < best.error)) continue;
    best.error = error;
    best.exponent = exponent;
    best.factors = std::move(factors);
  }
  return best;
}

}  // namespace detent::solve
