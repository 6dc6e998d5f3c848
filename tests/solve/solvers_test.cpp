// What every rounding method has to keep to, by iteration over their table.
#include "solve/solvers.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "solve/layers/streamed.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

FinetuneConfig config_of(const Solver& solver) {
  FinetuneConfig config;
  config.rounding = solver.rounding;
  config.num_iterations = 200;
  if (solver.rounding == WeightSolver::adaquant) config.learning_rate = 1e-3;
  return config;
}

TEST(Solvers, HaveEachAWordOfTheirOwn) {
  std::set<WeightSolver> words;
  for (const Solver* solver : all_solvers()) {
    EXPECT_TRUE(tunes(solver->rounding)) << solver->name;
    EXPECT_TRUE(words.insert(solver->rounding).second) << solver->name;
    EXPECT_EQ(find_solver(solver->rounding), solver);
  }
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant, WeightSolver::gptq}) {
    EXPECT_TRUE(words.contains(rounding));
  }
  EXPECT_EQ(find_solver(WeightSolver::nearest), nullptr);
  EXPECT_EQ(find_solver(WeightSolver::automatic), nullptr);
}

TEST(Solvers, GainOnDataThatTheyHaveNotSeen) {
  for (const std::size_t block : {0U, 16U}) {
    Layer layer = make_layer(product(64, 24), {64, 64}, 8, 4, 5);
    Layer held_back = make_layer(product(64, 24), {64, 64}, 4, 4, 5, 90000);
    if (block > 0) layer.weights = held_back.weights = in_blocks(layer.weights, block);
    const double plain = naive_mean(held_back, nearest(layer.weights, layer.bias));
    for (const Solver* solver : all_solvers()) {
      SCOPED_TRACE(solver->name);
      const auto solved = [&](std::size_t threads) {
        SolveControl control;
        control.threads = threads;
        return solve(layer.weights, layer.gram(), layer.bias, config_of(*solver), kernels(), control);
      };
      const Solution found = solved(1);
      EXPECT_LT(naive_mean(held_back, found), 0.75 * plain);
      EXPECT_EQ(solved(3).integers, found.integers);
      for (const std::int32_t q : found.integers) {
        ASSERT_GE(q, layer.weights.lowest);
        ASSERT_LE(q, layer.weights.highest);
      }
    }
  }
}

TEST(Solvers, StopWhenAsked) {
  const Layer layer = make_layer(product(32, 8), {40, 32}, 2, 4, 7);
  std::stop_source stop;
  stop.request_stop();
  SolveControl control;
  control.stop = stop.get_token();
  for (const Solver* solver : all_solvers()) {
    EXPECT_THROW((void)solve(layer.weights, layer.gram(), layer.bias, config_of(*solver), kernels(), control), Error)
        << solver->name;
  }
}

TEST(Solvers, WithoutAStreamedFormSaySo) {
  const Layer layer = make_layer(product(32, 8), {40, 32}, 2, 4, 7);
  InMemory samples(layer);
  for (const Solver* solver : all_solvers()) {
    const auto streamed = [&] {
      (void)solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config_of(*solver), kernels(), {});
    };
    if (solver->has_streamed_form) {
      EXPECT_NO_THROW(streamed()) << solver->name;
    } else {
      EXPECT_THROW(streamed(), Error) << solver->name;
    }
  }
}

TEST(Solvers, CostMoreForLargerLayers) {
  for (const Solver* solver : all_solvers()) {
    SCOPED_TRACE(solver->name);
    const auto cost = [&](std::int64_t fan_in) {
      return gram_cost(product(fan_in, 64), {1 << 16, fan_in}, 16, config_of(*solver), 2);
    };
    EXPECT_GT(cost(1024).flops, 2 * cost(512).flops);
    EXPECT_GT(cost(4096).bytes, 2 * cost(1024).bytes);
    EXPECT_GT(cost(4096).bytes, std::uint64_t{4096} * 4096 * sizeof(float));
  }
}

}  // namespace
}  // namespace detent::solve
