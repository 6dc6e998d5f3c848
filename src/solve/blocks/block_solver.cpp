#include "solve/blocks/block_solver.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/parallel.h"
#include "quantization/blocks/block_search.h"

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

}  // namespace

std::size_t usual_refinements(std::size_t rows) { return rows <= 1024 ? 4 : 2; }

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

}  // namespace detent::solve
