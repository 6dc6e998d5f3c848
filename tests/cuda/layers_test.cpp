#include <gtest/gtest.h>

#include "base/error.h"
#include "cuda/gram_methods.h"
#include "cuda/gram_sums.h"
#include "cuda/layer_pass.h"
#include "cuda/pass_rows.h"
#include "cuda/streamed.h"
#include "cuda/support.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "store/spool.h"
#include "store/support.h"

namespace detent::cuda {
namespace {

// The Gram form on a device that is the host, against the CPU's.

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
  config.solver = rounding;
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

// Mini-batches on a device that is the host, against the CPU's.

using solve::RowRange;
using solve::Solution;

std::vector<PassKind> ways(const Case& c) {
  if (!Convolution::supports(c.geometry, c.input)) return {PassKind::patches};
  return {PassKind::patches, PassKind::nchw, PassKind::nhwc};
}

TEST(Convolution, TakesWhatPadsBothEndsAlike) {
  std::size_t made = 0;
  for (const Case& c : all_kinds()) made += Convolution::supports(c.geometry, c.input) ? 1 : 0;
  EXPECT_GE(made, 3U);
  EXPECT_LT(made, all_kinds().size() - 1);
  auto same = solve::convolution(3, 4, 1, {3});
  same.pads_begin = {0};
  same.pads_end = {1};
  EXPECT_FALSE(Convolution::supports(same, {1, 3, 7}));
  same.strides = {2};
  EXPECT_TRUE(Convolution::supports(same, {1, 3, 7}));  // the last element is not reached
  EXPECT_FALSE(Convolution::supports(same, {1, 3, 8}));
}

/// Loss and gradient by the quantized weights and biases of some rows for one sample.
struct Found {
  double loss;
  std::vector<float> gradient;
  std::vector<double> by_bias;
};

Found pass_once(const Layer& layer, RowRange rows, PassKind way, const std::vector<float>& weights,
                const std::vector<float>& bias) {
  const Devices all = devices();
  Device& device = *all[0];
  solve::QuantizedWeights plain = layer.weights;  // so that filters are the weights themselves
  plain.scale.assign(plain.rows, 1.0F);
  PassRows pass(device, plain, layer.geometry, rows, way, DevicePrecision::float32);
  const LayerSample sample{&layer.shape, layer.inputs[0], layer.targets[0]};
  LayerPass& chosen = pass.pass_for({&sample, 1});
  const auto soft = pass.array<float>(pass.values()), biases = pass.array<float>(rows.count());
  const auto sums = pass.array<double>(rows.count());
  upload<float>(device.stream(), soft, weights);
  upload<float>(device.stream(), biases, bias);
  clear(device.stream(), sums);
  pass.fill_filter(chosen, nullptr, soft.data());
  PassRows::Task task;
  task.bias = biases.data();
  task.factor = 1;
  task.row_sums = sums.data();
  task.backward = true;
  pass.run(chosen, sample, task);
  const std::vector<float> gradient = on_host(device, pass.gradient(chosen), pass.values());
  return {pass.take_losses(), gradient, on_host(device, sums.data(), rows.count())};
}

TEST(LayerPass, GradientIsThatOfTheLossInEveryWay) {
  for (const Case& c : all_kinds()) {
    const Layer layer = make_layer(c.geometry, c.input, 1, 4, 7);
    const auto groups = static_cast<std::size_t>(c.geometry.groups);
    for (const RowRange rows : share_rows(layer.weights.rows, groups, 2)) {
      const auto fan_in = static_cast<std::ptrdiff_t>(layer.weights.fan_in);
      std::vector<float> w(layer.weights.values.begin() + static_cast<std::ptrdiff_t>(rows.first) * fan_in,
                           layer.weights.values.begin() + static_cast<std::ptrdiff_t>(rows.last) * fan_in);
      for (float& v : w) v *= 0.1F;
      std::vector<float> b(rows.count(), 0.1F);
      for (const PassKind way : ways(c)) {
        SCOPED_TRACE(std::string(c.name) + ", way " + std::to_string(static_cast<int>(way)));
        const auto loss = [&] { return pass_once(layer, rows, way, w, b); };
        const Found found = loss();
        const auto check = [&](float& value, double slope) {
          const float kept = value;
          value = kept + 0.01F;
          const double above = loss().loss;
          value = kept - 0.01F;
          const double below = loss().loss;
          value = kept;
          EXPECT_NEAR(slope, (above - below) / 0.02, 0.02 * (1 + std::abs(slope)));
        };
        for (std::size_t i = 0; i < w.size(); i += 5) check(w[i], found.gradient[i]);
        for (std::size_t i = 0; i < b.size(); ++i) check(b[i], found.by_bias[i]);
      }
    }
  }
}

FinetuneConfig streamed_config(WeightSolver rounding) {
  FinetuneConfig config;
  config.solver = rounding;
  config.num_iterations = 60;
  config.batch_size = 2;
  config.learning_rate = rounding == WeightSolver::adaquant ? 1e-3 : 0.1;
  return config;
}

Solution on_device(const Layer& layer, const FinetuneConfig& config, std::size_t count = 1, DeviceConfig on = {},
                   const SolveControl& control = {}) {
  Devices all = devices(count);
  InMemory samples(layer);
  return solve_streamed(all, on, {layer.weights, layer.geometry, samples}, layer.bias, config, kernels(), control);
}

double error_on_device(const Layer& layer, const Solution& solution, std::size_t count = 1) {
  Devices all = devices(count);
  InMemory samples(layer);
  return reconstruction_error(all, {layer.weights, layer.geometry, samples}, solution, {});
}

TEST(Reconstruction, ErrorIsThatOfTheCpu) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    const Solution solution = solve::nearest(layer.weights, layer.bias);
    EXPECT_NEAR(error_on_device(layer, solution), solve::naive_mean(layer, solution),
                1e-5 * solve::naive_mean(layer, solution));
    EXPECT_NEAR(error_on_device(layer, solution, 3), error_on_device(layer, solution),
                has_plain_products() ? 1e-9 : 1e-6 * solve::naive_mean(layer, solution));
    InMemory samples(layer);
    const double theirs = solve::reconstruction_error(layer.weights, layer.geometry, solution, samples, kernels(), {});
    EXPECT_NEAR(error_on_device(layer, solution, 2), theirs, 1e-5 * theirs);
  }
}

// The CPU's mini-batches are of positions from many samples, a device's of whole samples: the ends are alike, not the
// ways.
TEST(StreamedOnDevice, EndsAsNearAsTheCpu) {
  for (const Case& c : all_kinds()) {
    for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
      SCOPED_TRACE(c.name);
      const Layer layer = make_layer(c.geometry, c.input, 5, 4, 7);
      FinetuneConfig config = streamed_config(rounding);
      config.num_iterations = 300;
      config.update_bias = true;
      InMemory samples(layer);
      const auto theirs =
          solve::solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, kernels(), {});
      const double nearest = solve::naive_mean(layer, solve::nearest(layer.weights, layer.bias));
      for (const auto layout : {DeviceLayout::nchw, DeviceLayout::nhwc}) {
        DeviceConfig on;
        on.layout = layout;
        const double ours = solve::naive_mean(layer, on_device(layer, config, 1, on));
        EXPECT_LT(ours, 0.95 * nearest);
        // Descent ends where no single integer is better, in another place by another order; of seven weights each
        // decides much.
        EXPECT_LE(ours, (layer.weights.fan_in < 8 ? 1.5 : 1.15) * solve::naive_mean(layer, theirs) + 1e-9);
      }
    }
  }
}

TEST(StreamedOnDevice, TakesBlocksOfScales) {
  for (const auto& [geometry, shape] : {std::pair{solve::product(40, 16), solve::Shape{30, 40}},
                                        {solve::convolution(8, 12, 2, {3, 3}), solve::Shape{2, 8, 9, 9}}}) {
    Layer layer = make_layer(geometry, shape, 5, 4, 7);
    layer.weights = solve::in_blocks(layer.weights, 10);
    const Solution rounded = solve::nearest(layer.weights, layer.bias);
    const double nearest = solve::naive_mean(layer, rounded);
    EXPECT_NEAR(error_on_device(layer, rounded, 2), nearest, 1e-5 * nearest);
    for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
      FinetuneConfig config = streamed_config(rounding);
      config.num_iterations = 300;
      InMemory samples(layer);
      const auto theirs =
          solve::solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, kernels(), {});
      for (const auto layout : {DeviceLayout::nchw, DeviceLayout::nhwc}) {
        DeviceConfig on;
        on.layout = layout;
        const double ours = solve::naive_mean(layer, on_device(layer, config, 2, on));
        EXPECT_LT(ours, 0.85 * nearest);
        EXPECT_LE(ours, 1.15 * solve::naive_mean(layer, theirs));
      }
    }
  }
}

TEST(SampleBatches, BringEachSampleOnceInARound) {
  const Layer layer = make_layer(solve::convolution(3, 4, 1, {3}), {1, 3, 9}, 5, 4, 7);
  InMemory samples(layer);
  FinetuneConfig config = streamed_config(WeightSolver::adaround);
  config.batch_size = 5;
  SampleBatches batches(samples, layer.geometry, config, 1, true);
  std::vector<std::vector<const float*>> rounds;
  for (std::size_t i = 0; i < 6; ++i) {
    auto& round = rounds.emplace_back();
    for (const auto& drawn : batches.load(i)) round.push_back(drawn.input());
  }
  EXPECT_NE(rounds[0], rounds[1]);
  for (auto& round : rounds) {
    std::sort(round.begin(), round.end());
    EXPECT_EQ(std::unique(round.begin(), round.end()) - round.begin(), 5);
    EXPECT_EQ(round, rounds[0]);
  }
}

TEST(SampleBatches, MixBothBranches) {
  const Layer layer = make_layer(solve::convolution(3, 4, 1, {3}), {4, 3, 400}, 2, 4, 7);
  InMemory samples(layer);
  FinetuneConfig config = streamed_config(WeightSolver::adaround);
  config.batch_size = 1;
  config.drop_ratio = 0.7;
  SampleBatches batches(samples, layer.geometry, config, 2, true);
  const auto batch = batches.load(0);
  const auto& sample = batch.front().sample;
  std::size_t quantized = 0;
  for (std::size_t i = 0; i < sample.input.size(); ++i) {
    const float value = batch.front().input()[i];
    EXPECT_TRUE(value == sample.input[i] || value == sample.float_input[i]);
    quantized += value == sample.input[i] ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(quantized) / static_cast<double>(sample.input.size()), 0.7, 0.04);
}

// Of a sample's loss by weights with many digits: what is rounded to eight bits shows, and no more than that.
TEST(StreamedOnDevice, ProductsOfLongRowsAreMadeInBfloat16) {
  const auto loss = [](const solve::LayerGeometry& geometry, const solve::Shape& shape, DevicePrecision precision) {
    const Layer layer = make_layer(geometry, shape, 1, 4, 7);
    const Devices all = devices();
    PassRows pass(*all[0], layer.weights, layer.geometry, {0, layer.weights.rows}, PassKind::patches, precision);
    const LayerSample sample{&layer.shape, layer.inputs[0], layer.targets[0]};
    LayerPass& chosen = pass.pass_for({&sample, 1});
    const auto soft = pass.array<float>(pass.values());
    upload<float>(all[0]->stream(), soft, solve::normal(pass.values(), 3, 3));
    pass.fill_filter(chosen, nullptr, soft.data());
    PassRows::Task task;
    task.backward = true;
    task.factor = 1;
    pass.run(chosen, sample, task);
    const auto gradient = on_host(*all[0], pass.gradient(chosen), pass.values());
    double norm = pass.take_losses();
    for (const float g : gradient) norm += static_cast<double>(g) * g;
    return norm;
  };
  const auto product = [&](DevicePrecision precision) { return loss(solve::product(24, 16), {30, 24}, precision); };
  const double exact = product(DevicePrecision::float32), narrow = product(DevicePrecision::bfloat16);
  EXPECT_NE(narrow, product(DevicePrecision::tf32));
  EXPECT_NEAR(narrow, exact, 0.02 * exact);
  EXPECT_GT(std::abs(narrow - exact), 1e-6 * exact);
  // Rows that have no 16 bytes, and convolutions.
  for (const auto& [geometry, shape] : {std::pair{solve::product(23, 16), solve::Shape{30, 23}},
                                        {solve::convolution(8, 8, 1, {1}), solve::Shape{1, 8, 32}}}) {
    EXPECT_EQ(loss(geometry, shape, DevicePrecision::bfloat16), loss(geometry, shape, DevicePrecision::tf32));
  }
}

TEST(StreamedOnDevice, NarrowProductsEndAsNear) {
  const Layer layer = make_layer(solve::product(24, 16), {30, 24}, 5, 4, 7);
  FinetuneConfig config = streamed_config(WeightSolver::adaround);
  config.num_iterations = 300;
  DeviceConfig narrow;
  narrow.precision = DevicePrecision::bfloat16;
  const double exact = solve::naive_mean(layer, on_device(layer, config));
  EXPECT_LE(solve::naive_mean(layer, on_device(layer, config, 1, narrow)), 1.05 * exact);
}

TEST(StreamedOnDevice, SharesRowsAmongDevices) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 4, 4, 7);
    const FinetuneConfig config = streamed_config(WeightSolver::adaround);
    const auto one = on_device(layer, config);
    for (const std::size_t count : {2U, 5U})
      EXPECT_LE(differences(on_device(layer, config, count).integers, one.integers), shared_rows_may_differ(one));
  }
}

TEST(StreamedOnDevice, GoesOnWhereItWasInTheWayItChose) {
  class KeptAtEnd final : public solve::SolverState {
   public:
    Stored load() override { return {nullptr, first}; }
    bool is_due() const override { return true; }
    void save(std::span<const std::span<const std::byte>> parts) override {
      if (++saves != 3) return;
      for (const auto part : parts) kept.insert(kept.end(), part.begin(), part.end());
    }
    std::vector<std::byte> first, kept;
    int saves = 0;
  };
  const Layer layer = make_layer(solve::convolution(4, 6, 1, {3, 3}), {2, 4, 7, 7}, 5, 4, 7);
  for (const WeightSolver rounding : {WeightSolver::adaround, WeightSolver::adaquant}) {
    FinetuneConfig config = streamed_config(rounding);
    config.update_bias = true;
    const auto straight = on_device(layer, config, 2);
    KeptAtEnd state;
    SolveControl control;
    control.state = &state;
    EXPECT_EQ(on_device(layer, config, 2, {}, control).integers, straight.integers);
    KeptAtEnd resumed;
    resumed.first = state.kept;
    control.state = &resumed;
    const auto again = on_device(layer, config, 2, {}, control);
    EXPECT_EQ(again.integers, straight.integers);
    EXPECT_EQ(again.bias, straight.bias);
  }
}

std::vector<Case> with_rows_of_16_bytes() {
  std::vector<Case> cases = all_kinds();
  cases.push_back({"narrow product", solve::product(24, 16), {30, 24}});
  return cases;
}

TEST(StreamedOnDevice, TakesNoMoreThanWasPredicted) {
  for (const Case& c : with_rows_of_16_bytes()) {
    for (const auto& [layout, precision] :
         {std::pair{DeviceLayout::nchw, DevicePrecision::float32}, {DeviceLayout::nhwc, DevicePrecision::bfloat16}}) {
      SCOPED_TRACE(c.name);
      const Layer layer = make_layer(c.geometry, c.input, 4, 4, 7);
      FinetuneConfig config = streamed_config(WeightSolver::adaquant);
      config.update_bias = true;
      Devices all = devices();
      InMemory samples(layer);
      DeviceConfig on;
      on.layout = layout;
      on.precision = precision;
      solve_streamed(all, on, {layer.weights, layer.geometry, samples}, layer.bias, config, kernels(), {});
      const auto predicted = solve::device_need(c.geometry, c.input, true, config, on.precision, 1).peak();
      const auto not_taken = has_plain_products() ? solve::kMatmulScratch + solve::kConvolutionScratch : 0;
      EXPECT_LE(all[0]->memory().peak() + not_taken, predicted);
    }
  }
}

// The same samples, in the spool's files.
class OnDisk final : public solve::LayerSamples {
 public:
  explicit OnDisk(const Layer& layer) : spool_(options()), lane_(spool_.open("layer")) {
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
      const auto array = [](const std::vector<float>& values, const solve::Shape& shape) {
        const auto bytes = std::as_bytes(std::span(values));
        const auto kept = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
        return data::Array{onnx::DataType::float32, shape, *kept, kept};
      };
      spool_.put(
          lane_, i,
          {array(layer.inputs[i], layer.shape), array(layer.targets[i], layer.geometry.output_shape(layer.shape))});
    }
    spool_.sync();
    count_ = layer.inputs.size();
  }
  std::size_t count() const override { return count_; }
  solve::SampleRef get(std::size_t i) override {
    ++through_host;
    const auto held = std::make_shared<store::Record>(spool_.get(lane_, i).value());
    const auto values = [&](std::size_t part) {
      const auto& bytes = (*held)[part].bytes;
      return std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    };
    return {(*held)[0].shape, values(0), {}, values(1), held};
  }
  std::optional<store::RecordOnDisk> resting(std::size_t i) const override { return spool_.resting(lane_, i); }
  const std::filesystem::path& directory() const { return folder_.path(); }

  std::size_t through_host = 0;

 private:
  store::SpoolOptions options() const {
    store::SpoolOptions options;
    options.directory = folder_.path();
    options.residency = store::Residency::disk;
    return options;
  }

  TempDir folder_{std::filesystem::current_path()};
  store::Spool spool_;
  store::Spool::Lane lane_;
  std::size_t count_ = 0;
};

TEST(StreamedOnDevice, TakesSamplesFromDiskPastTheSolver) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 5, 4, 7);
    const FinetuneConfig config = streamed_config(WeightSolver::adaround);
    OnDisk samples(layer);
    for (const std::size_t count : {1U, 2U}) {
      Devices all = devices(count);
      RecordReaders readers(all, GdsMode::off);
      const auto found = solve_streamed(all, {}, {layer.weights, layer.geometry, samples, &readers}, layer.bias, config,
                                        kernels(), {});
      EXPECT_EQ(found.integers, on_device(layer, config, count).integers);
      EXPECT_EQ(readers.notes().size(), std::min(count, share_rows(layer.weights.rows, 1, count).size()));
    }
    // Not for steps: for the inputs' power, the choice of a layout, and the descent afterwards.
    EXPECT_LT(samples.through_host, 2 * (2 * 5 + 1 + 5) + 1);
  }
}

class StagingFrom : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Memory, StagingFrom, testing::Bool(),
                         [](const auto& pins) { return pins.param ? "pinned" : "other"; });

TEST_P(StagingFrom, HandsOutTwoPlacesInTurn) {
  Device device(0, std::uint64_t{1} << 30, nullptr, GetParam());
  Staging staging(device);
  const std::vector<float> a{1, 2}, b{3}, longer(1000, 7.0F);
  const auto put = [&](std::span<const float> x, std::span<const float> y) { return staging.put(std::array{x, y}); };
  const auto seen = [&](const float* from, std::size_t count) { return on_host(device, from, count); };
  const float* const first = put(a, b);
  EXPECT_EQ(seen(first, 3), std::vector<float>({1, 2, 3}));
  const float* const second = put(b, a);
  EXPECT_EQ(seen(second, 3), std::vector<float>({3, 1, 2}));
  EXPECT_EQ(seen(first, 3), std::vector<float>({1, 2, 3}));
  const float* const third = put(longer, {});
  EXPECT_EQ(seen(third, 1000), longer);
  EXPECT_EQ(seen(second, 3), std::vector<float>({3, 1, 2}));
}

TEST(ShareRows, GivesWholeGroups) {
  const auto pieces = [](std::size_t rows, std::size_t groups, std::size_t devices) {
    std::vector<std::size_t> ends;
    for (const auto r : share_rows(rows, groups, devices)) ends.push_back(r.last);
    return ends;
  };
  EXPECT_EQ(pieces(10, 1, 3), std::vector<std::size_t>({3, 6, 10}));
  EXPECT_EQ(pieces(12, 3, 2), std::vector<std::size_t>({4, 12}));
  EXPECT_EQ(pieces(12, 3, 8), std::vector<std::size_t>({4, 8, 12}));
  EXPECT_EQ(pieces(2, 1, 4), std::vector<std::size_t>({1, 2}));
}

}  // namespace
}  // namespace detent::cuda
