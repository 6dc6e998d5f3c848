// The Gram form on a device that is the host, against the CPU's.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cuda/gram_methods.h"
#include "cuda/gram_sums.h"
#include "cuda/support.h"
#include "solve/layers/solver.h"

namespace detent::cuda {
namespace {

using solve::GramForm;
using solve::Integers;
using solve::SolveControl;

template <class T>
void expect_near(const std::vector<T>& ours, const std::vector<T>& theirs, double tolerance, const char* what) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  double largest = 0;
  for (const T value : theirs) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < ours.size(); ++i)
    ASSERT_NEAR(ours[i], theirs[i], tolerance * largest) << what << ' ' << i;
}

GramForm on_device(const Layer& layer) {
  const Devices all = devices();
  GramSumsOnDevice sums(*all[0], layer.geometry);
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) sums.add(layer.shape, layer.inputs[i], layer.targets[i]);
  return sums.take();
}

TEST(GramSums, AreThoseOfTheCpuForAllKinds) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    const GramForm ours = on_device(layer), theirs = layer.gram();
    EXPECT_EQ(ours.groups, theirs.groups);
    EXPECT_EQ(ours.positions, theirs.positions);
    expect_near(ours.gram, theirs.gram, 1e-5, "gram");
    expect_near(ours.cross, theirs.cross, 1e-5, "cross");
    expect_near(ours.input_sum, theirs.input_sum, 1e-6, "input sum");
    expect_near(ours.target_sum, theirs.target_sum, 1e-6, "target sum");
    expect_near(ours.target_norm, theirs.target_norm, 1e-6, "target norm");
  }
}

TEST(GramSums, OfSomePositionsAreThoseOfTheCpu) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    const Devices all = devices();
    GramSumsOnDevice sums(*all[0], layer.geometry);
    solve::GramAccumulator on_cpu(layer.geometry, kernels(), 1);
    const std::size_t positions = solve::Patches(layer.geometry, layer.shape).positions();
    std::vector<std::size_t> drawn;
    for (std::size_t i = 1; i < positions; i += 3) drawn.push_back(positions - i);
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      sums.add(layer.shape, layer.inputs[i], layer.targets[i], drawn);
      on_cpu.add(layer.shape, layer.inputs[i], layer.targets[i], drawn);
    }
    const GramForm ours = sums.take(), theirs = on_cpu.take();
    EXPECT_EQ(ours.positions, theirs.positions);
    expect_near(ours.gram, theirs.gram, 1e-5, "gram");
    expect_near(ours.cross, theirs.cross, 1e-5, "cross");
    expect_near(ours.target_norm, theirs.target_norm, 1e-6, "target norm");
  }
}

// Several tiles, samples across their borders, and blocks of a large matrix.
TEST(GramSums, GoOverBordersOfTilesAndBlocks) {
  const Layer wide = make_layer(solve::product(2060, 3), {40, 2060}, 1, 4, 7);
  expect_near(on_device(wide).gram, wide.gram().gram, 1e-5, "wide");
  const Layer longer = make_layer(solve::convolution(2, 3, 1, {3, 3}), {3, 2, 40, 41}, 2, 4, 7);
  const GramForm ours = on_device(longer), theirs = longer.gram();
  EXPECT_GT(ours.positions, 8192U);
  expect_near(ours.gram, theirs.gram, 1e-5, "longer");
  expect_near(ours.target_sum, theirs.target_sum, 1e-6, "longer");
  const Layer rows = make_layer(solve::product(8, 3), {5000, 8}, 2, 4, 7);
  expect_near(on_device(rows).cross, rows.gram().cross, 1e-5, "rows");
}

TEST(GramSums, KeepToTheBudget) {
  const Devices all = devices(1, 100 << 10);
  try {
    GramSumsOnDevice sums(*all[0], solve::product(512, 512));
    ADD_FAILURE() << "it was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    EXPECT_NE(e.hint().find("--set device-memory-budget"), std::string::npos);
  }
  EXPECT_EQ(all[0]->memory().used(), 0U);
}

TEST(GramSums, TakeWhatWasPredicted) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 2, 4, 7);
    const Devices all = devices();
    GramSumsOnDevice sums(*all[0], layer.geometry);
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) sums.add(layer.shape, layer.inputs[i], layer.targets[i]);
    const std::uint64_t predicted = solve::gram_sums_bytes(c.geometry, c.input);
    EXPECT_LE(all[0]->memory().peak(), predicted);
    EXPECT_GE(all[0]->memory().peak() + all[0]->memory().peak() / 20 + 16 * kMemoryUnit, predicted);
  }
}

FinetuneConfig config_of(WeightSolver rounding, std::size_t iterations = 100) {
  FinetuneConfig config;
  config.rounding = rounding;
  config.num_iterations = iterations;
  return config;
}

struct Problem {
  Layer layer;
  GramForm form;

  Problem(const solve::LayerGeometry& g, const solve::Shape& shape, std::size_t samples = 4)
      : layer(make_layer(g, shape, samples, 4, 7)), form(layer.gram()) {}

  /// The same with several scales for each row.
  Problem in_blocks(std::size_t size) const {
    Problem other = *this;
    other.layer.weights = solve::in_blocks(layer.weights, size);
    return other;
  }

  solve::Solution solve(const FinetuneConfig& config, std::size_t device_count = 1,
                        DevicePrecision precision = DevicePrecision::float32, const SolveControl& control = {}) const {
    Devices all = devices(device_count);
    GramMethodsOnDevices methods(all, layer.weights, form, layer.bias, precision, kernels(), control);
    return solve::solve(layer.weights, form, layer.bias, config, methods);
  }
  solve::Solution solve_on_cpu(const FinetuneConfig& config) const {
    return solve::solve(layer.weights, form, layer.bias, config, kernels(), {});
  }
  double error(const solve::Solution& s) const { return solve::mean_squared_output_error(layer.weights, form, s); }
};

class Methods : public testing::TestWithParam<WeightSolver> {};

// The same steps with other roundings of the last bits: nearly all integers are the same, and the error is as small.
TEST_P(Methods, FindWhatTheCpuFinds) {
  for (const Case& c : all_kinds()) {
    for (const bool update_bias : {false, true}) {
      SCOPED_TRACE(c.name);
      const Problem problem(c.geometry, c.input);
      FinetuneConfig config = config_of(GetParam());
      config.update_bias = update_bias;
      config.learning_rate = GetParam() == WeightSolver::adaquant ? 1e-3 : 0.1;
      config.coordinate_sweeps = 0;
      const auto ours = problem.solve(config), theirs = problem.solve_on_cpu(config);
      EXPECT_LE(differences(ours.integers, theirs.integers), 1 + ours.integers.size() / 20);
      EXPECT_LE(problem.error(ours), 1.05 * problem.error(theirs) + 1e-9);
      EXPECT_EQ(ours.bias.empty(), theirs.bias.empty());
    }
  }
}

TEST_P(Methods, ShareRowsAmongDevices) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Problem problem(c.geometry, c.input);
    FinetuneConfig config = config_of(GetParam(), 40);
    config.learning_rate = GetParam() == WeightSolver::adaquant ? 1e-3 : 0.1;
    const auto one = problem.solve(config);
    for (const std::size_t count : {2U, 3U, 8U})
      EXPECT_LE(differences(problem.solve(config, count).integers, one.integers), shared_rows_may_differ(one));
  }
}

// Blocks of whole packs of four weights and of others, the last of a row shorter.
TEST_P(Methods, TakeBlocksOfScales) {
  const Problem product(solve::product(40, 10), {60, 40});
  const Problem convolution(solve::convolution(8, 12, 2, {3, 3}), {2, 8, 9, 9});
  FinetuneConfig config = config_of(GetParam(), 200);
  config.learning_rate = GetParam() == WeightSolver::adaquant ? 1e-3 : 0.1;
  config.coordinate_sweeps = 0;
  for (const Problem& rows : {product, convolution}) {
    for (const std::size_t size : {16U, 6U}) {
      SCOPED_TRACE(size);
      const Problem problem = rows.in_blocks(size);
      const auto ours = problem.solve(config), theirs = problem.solve_on_cpu(config);
      EXPECT_LE(differences(ours.integers, theirs.integers), 1 + ours.integers.size() / 20);
      EXPECT_LE(problem.error(ours), 1.05 * problem.error(theirs));
      EXPECT_LT(problem.error(ours), 0.9 * problem.error(solve::nearest(problem.layer.weights, problem.layer.bias)));
      EXPECT_LE(differences(problem.solve(config, 3).integers, ours.integers), shared_rows_may_differ(ours));
      EXPECT_LT(problem.error(problem.solve(config, 2, DevicePrecision::bfloat16)), 1.15 * problem.error(ours));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Methods, testing::Values(WeightSolver::adaround, WeightSolver::adaquant),
                         [](const auto& method) {
                           return method.param == WeightSolver::adaround ? "AdaRound" : "AdaQuant";
                         });

TEST(GramMethods, EachPrecisionIsBetterThanNearest) {
  const Problem problem(solve::convolution(8, 12, 1, {3, 3}), {2, 8, 9, 9});
  const double nearest = problem.error(solve::nearest(problem.layer.weights, problem.layer.bias));
  const FinetuneConfig config = config_of(WeightSolver::adaround, 300);
  const double exact = problem.error(problem.solve(config));
  EXPECT_LT(exact, 0.8 * nearest);
  for (const auto precision : {DevicePrecision::tf32, DevicePrecision::bfloat16}) {
    EXPECT_LT(problem.error(problem.solve(config, 2, precision)), 1.1 * exact);
  }
}

TEST(GramMethods, CoordinateDescentIsThatOfTheCpu) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Problem problem(c.geometry, c.input);
    FinetuneConfig config = config_of(WeightSolver::nearest);
    config.coordinate_sweeps = 3;
    const auto ours = problem.solve(config, 2), theirs = problem.solve_on_cpu(config);
    EXPECT_LE(differences(ours.integers, theirs.integers), ours.integers.size() / 50);
    EXPECT_NEAR(problem.error(ours), problem.error(theirs), 0.01 * problem.error(theirs) + 1e-9);
  }
}

TEST(GramMethods, CoordinateDescentTakesBlocksOfScales) {
  FinetuneConfig config = config_of(WeightSolver::nearest);
  config.coordinate_sweeps = 3;
  for (const std::size_t size : {16U, 7U}) {
    const Problem problem = Problem(solve::product(40, 10), {60, 40}).in_blocks(size);
    const auto ours = problem.solve(config, 2), theirs = problem.solve_on_cpu(config);
    EXPECT_LE(differences(ours.integers, theirs.integers), ours.integers.size() / 50);
    EXPECT_LT(problem.error(ours), 0.8 * problem.error(solve::nearest(problem.layer.weights, problem.layer.bias)));
  }
}

TEST(GramMethods, GptqIsSolvedByTheCpu) {
  const Problem problem(solve::product(24, 10), {30, 24});
  const FinetuneConfig config = config_of(WeightSolver::gptq);
  const auto ours = problem.solve(config), theirs = problem.solve_on_cpu(config);
  EXPECT_LE(differences(ours.integers, theirs.integers), 2U);
}

class KeptState final : public solve::SolverState {
 public:
  explicit KeptState(std::size_t at) : at_(at) {}
  Stored load() override { return {nullptr, bytes}; }
  bool is_due() const override { return asked_++ == at_; }
  void save(std::span<const std::span<const std::byte>> parts) override {
    bytes.clear();
    for (const auto part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
  }
  std::vector<std::byte> bytes;

 private:
  std::size_t at_;
  mutable std::size_t asked_ = 0;
};

TEST(GramMethods, GoOnWhereTheyWere) {
  const Problem problem(solve::convolution(4, 6, 1, {3, 3}), {2, 4, 7, 7});
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
    FinetuneConfig config = config_of(rounding);
    config.learning_rate = rounding == WeightSolver::adaquant ? 1e-3 : 0.1;
    for (const auto precision : {DevicePrecision::float32, DevicePrecision::bfloat16}) {
      const auto straight = problem.solve(config, 2, precision);
      KeptState state(4);
      SolveControl control;
      control.state = &state;
      EXPECT_EQ(problem.solve(config, 2, precision, control).integers, straight.integers);
      ASSERT_FALSE(state.bytes.empty());
      KeptState resumed(1000);
      resumed.bytes = state.bytes;
      control.state = &resumed;
      EXPECT_EQ(problem.solve(config, 2, precision, control).integers, straight.integers);
    }
  }
}

TEST(GramMethods, TellTheLossAndStop) {
  const Problem problem(solve::product(24, 10), {30, 24});
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
    FinetuneConfig config = config_of(rounding);
    config.coordinate_sweeps = 0;
    config.learning_rate = rounding == WeightSolver::adaquant ? 1e-3 : 0.1;
    std::vector<double> ours, theirs;
    SolveControl control;
    control.progress = [&](std::size_t, double loss) { ours.push_back(loss); };
    problem.solve(config, 2, DevicePrecision::float32, control);
    control.progress = [&](std::size_t, double loss) { theirs.push_back(loss); };
    solve::solve(problem.layer.weights, problem.form, problem.layer.bias, config, kernels(), control);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 0.15 * theirs[i]) << i;

    std::stop_source stop;
    stop.request_stop();
    control.stop = stop.get_token();
    config.num_iterations = 1000;
    EXPECT_THROW(problem.solve(config, 1, DevicePrecision::float32, control), Error);
  }
}

TEST(GramMethods, TakeNoMoreThanWasPredicted) {
  for (const Case& c : all_kinds()) {
    for (const auto precision : {DevicePrecision::float32, DevicePrecision::bfloat16}) {
      SCOPED_TRACE(c.name);
      const Problem problem(c.geometry, c.input);
      for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
        const FinetuneConfig config = config_of(rounding);
        Devices all = devices();
        const SolveControl control;
        GramMethodsOnDevices methods(all, problem.layer.weights, problem.form, problem.layer.bias, precision, kernels(),
                                     control);
        solve::solve(problem.layer.weights, problem.form, problem.layer.bias, config, methods);
        const auto predicted = solve::gram_rows_bytes(problem.layer.weights.rows, problem.form.groups,
                                                      problem.layer.weights.fan_in, config.num_iterations, precision);
        EXPECT_LE(all[0]->memory().peak(), predicted + (has_plain_products() ? 0 : solve::kMatmulScratch));
      }
    }
  }
}

}  // namespace
}  // namespace detent::cuda
