#include "solve/blocks/block_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "solve/block_support.h"

namespace detent::solve {
namespace {

using quantization::BlockFormat;

BlockSolution solved(const Product& product, const BlockFormat& format, BlockMethod method, bool held_back = true,
                     std::size_t threads = 1) {
  const auto other = held_back ? std::optional(product.held_back()) : std::nullopt;
  return BlockSolver(product.gram(), other, format, {.method = method}, kernels(), threads).solve(product.weight);
}

// What is gained over nearest rounding and GPTQ alone on inputs that no method has seen.
TEST(BlockSolver, EachRungGainsOnHeldBackInputs) {
  struct Row {
    Inputs inputs;
    int bits;
    std::int64_t block;
    double gain;  // of the whole ladder over search, in dB
  };
  for (const Row& row :
       {Row{Inputs::outliers, 4, 32, 0}, Row{Inputs::outliers, 2, 128, 0}, Row{Inputs::low_rank, 4, 32, 11},
        Row{Inputs::low_rank, 2, 128, 10}, Row{Inputs::both, 4, 128, 14}, Row{Inputs::both, 2, 32, 11}}) {
    const auto product = make_product(row.inputs, 256, 64, 1024);
    const BlockFormat format{.bits = row.bits, .block = row.block, .symmetric = false};
    const auto best = solved(product, format, BlockMethod::automatic);
    const auto db = [&](double error) { return 10 * std::log10(best.error_nearest / error); };
    std::printf("%d, %d bits, block %d: over nearest: search %.2f, gptq %.2f, automatic %.2f dB\n",
                static_cast<int>(row.inputs), row.bits, static_cast<int>(row.block), db(best.error_search),
                db(best.error_gptq), db(best.error));
    EXPECT_GT(db(best.error), db(best.error_search) + row.gain);
    EXPECT_LE(best.error, best.error_search);
    EXPECT_LE(best.error, best.error_nearest);
    EXPECT_LE(best.error, best.error_gptq);
  }
}

TEST(BlockSolver, NoColumnIsWorseThanASearchedOne) {
  const auto product = make_product(Inputs::both, 100, 40, 60);  // few positions
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = true};
  for (const bool held_back : {false, true}) {
    const Gram judge = held_back ? product.held_back() : product.gram();
    const auto best = solved(product, format, BlockMethod::automatic, held_back);
    const auto errors = column_errors(judge, product.weight, best.weight, kernels(), 1);
    for (const auto method : {BlockMethod::search, BlockMethod::nearest, BlockMethod::gptq}) {
      const auto other = column_errors(judge, product.weight, solved(product, format, method).weight, kernels(), 1);
      for (std::size_t n = 0; n < 40; ++n) EXPECT_LE(errors[n], other[n]) << n;
    }
    EXPECT_EQ(errors, best.column_errors);
  }
}

TEST(BlockSolver, MethodsAloneAreThoseOfTheLadder) {
  const auto product = make_product(Inputs::low_rank, 96, 20, 400);
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = false};
  const auto best = solved(product, format, BlockMethod::automatic);
  EXPECT_EQ(solved(product, format, BlockMethod::nearest).error, best.error_nearest);
  EXPECT_EQ(solved(product, format, BlockMethod::search).error, best.error_search);
  EXPECT_EQ(solved(product, format, BlockMethod::gptq).error, best.error_gptq);
  EXPECT_EQ(solved(product, format, BlockMethod::nearest).weight.integers,
            quantization::nearest(product.weight, 96, format).integers);
}

TEST(BlockSolver, ThreadsAndStripesChangeNothing) {
  const auto product = make_product(Inputs::both, 130, 300, 400);
  const BlockFormat format{.bits = 2, .block = 32, .symmetric = false};
  const auto whole = solved(product, format, BlockMethod::automatic, true, 3);
  const BlockSolver solver(product.gram(), product.held_back(), format, {}, kernels(), 1);
  for (const std::size_t first : {std::size_t{0}, std::size_t{128}}) {
    const std::size_t count = first == 0 ? 128 : 172, blocks = 5;
    const auto stripe = solver.solve(std::span(product.weight).subspan(first * 130, count * 130));
    EXPECT_TRUE(std::equal(stripe.weight.integers.begin(), stripe.weight.integers.end(),
                           whole.weight.integers.data() + first * 130));
    EXPECT_TRUE(std::equal(stripe.weight.scales.begin(), stripe.weight.scales.end(),
                           whole.weight.scales.data() + first * blocks));
  }
}

TEST(BlockSolver, NothingIsNothing) {
  for (const std::size_t rows : {std::size_t{0}, std::size_t{40}}) {
    const std::vector<float> sums(rows * rows);
    const BlockSolver solver({sums, rows, 0}, {}, {}, {}, kernels(), 2);
    EXPECT_TRUE(solver.solve({}).weight.integers.empty());
  }
}

}  // namespace
}  // namespace detent::solve
