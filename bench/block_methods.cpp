// Weights in blocks, method by method: weights per second of one core and SQNR, on made-up weights and inputs.
//   bench_block_methods [ROWS [COLUMNS [BITS [BLOCK]]]]
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "quantization/blocks/block_search.h"
#include "random_values.h"
#include "solve/blocks/block_solver.h"

namespace {

using namespace detent;
using bench::normal;
using quantization::BlockWeight;

// Sums over inputs that are mixtures of an eighth as many, and a little noise.
std::vector<float> synthetic_sums(std::size_t rows, std::size_t positions, const solve::Kernels& kernels) {
  const std::size_t rank = rows / 8;
  auto inputs = normal(positions * rows, 1);
  const auto mix = normal(rank * rows, 2), latent = normal(positions * rank, 3);
  auto shape = solve::gemm_of(positions, rows, rank, false, 0.1F);
  shape.alpha = 1 / std::sqrt(static_cast<float>(rank));
  kernels.gemm(shape, latent.data(), rank, mix.data(), rows, inputs.data(), rows);
  std::vector<float> sums(rows * rows);
  shape = solve::gemm_of(rows, rows, positions, false);
  shape.transpose_a = true;
  kernels.gemm(shape, inputs.data(), rows, inputs.data(), rows, sums.data(), rows);
  return sums;
}

}  // namespace

int main(int count, char** given) {
  const auto argument = [&](int at, long otherwise) { return count > at ? std::atol(given[at]) : otherwise; };
  const auto rows = static_cast<std::size_t>(argument(1, 2048)), columns = static_cast<std::size_t>(argument(2, 512));
  const quantization::BlockFormat format{
      .bits = static_cast<int>(argument(3, 4)), .block = argument(4, 32), .symmetric = false};
  const auto& kernels = solve::cpu_kernels();
  const auto weight = normal(rows * columns, 4);
  const auto sums = synthetic_sums(rows, 4 * rows, kernels);
  const solve::Gram gram{sums, rows, 4 * rows};
  const solve::Damping damping(gram, solve::usual_damping(gram.positions));
  const auto k = static_cast<std::int64_t>(rows);
  const auto total = [&](const BlockWeight& made) {
    double sum = 0;
    for (const double e : solve::column_errors(gram, weight, made, kernels, 1)) sum += e;
    return sum;
  };
  const double power = total(quantization::make_blocks(k, static_cast<std::int64_t>(columns), format));
  BlockWeight made;
  const auto report = [&](const char* name, const auto& step) {
    const auto begin = std::clock();
    step();
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::vector<float> stored(weight.size());
    dequantize(made, stored);
    double signal = 0, noise = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      signal += static_cast<double>(weight[i]) * weight[i];
      noise += (static_cast<double>(weight[i]) - stored[i]) * (static_cast<double>(weight[i]) - stored[i]);
    }
    std::printf("%-28s %7.1f M weights/s   weights %6.2f dB   results %6.2f dB\n", name,
                static_cast<double>(weight.size()) / seconds / 1e6, 10 * std::log10(signal / noise),
                10 * std::log10(power / total(made)));
  };
  std::printf("%zu x %zu weights, %d bits, blocks of %ld\n", rows, columns, format.bits, format.block);
  report("nearest", [&] { made = quantization::nearest(weight, k, format); });
  report("search", [&] { made = quantization::search(weight, k, format); });
  report("search, weighted", [&] { made = quantization::search(weight, k, format, damping.diagonal); });
  const solve::BlockGptq gptq(gram, damping, format, {}, kernels, 1);
  report("GPTQ", [&] { made = gptq.round(weight); });
  for (const std::size_t turns : {1, 2, 3}) {
    const solve::BlockGptq refined(gram, damping, format, {.turns = turns}, kernels, 1);
    report(turns == 1 ? "GPTQ and a turn" : fmt::format("GPTQ and {} turns", turns).c_str(),
           [&] { made = refined.round(weight); });
  }
  report("automatic", [&] { made = solve::BlockSolver(gram, {}, format, {}, kernels, 1).solve(weight).weight; });
  return 0;
}
