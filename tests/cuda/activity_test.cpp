// What the solver tells a run's log, on a device that is the host: its events have the host's clock.
#include "cuda/device.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cuda/plugin_calls.h"
#include "cuda/support.h"

namespace detent::cuda {
namespace {

using profile::DeviceActivity;

constexpr std::size_t kSamples = 5, kIterations = 70;

/// Both forms of a layer, with sums and errors.
void solve_all(solve::LayerSolver& solver, const Layer& layer, DeviceActivity* activity) {
  FinetuneConfig config;
  config.rounding = WeightSolver::adaround;
  config.num_iterations = kIterations;
  config.batch_size = 1;
  if (activity != nullptr) activity->begin("a layer");
  auto sums = solver.sums(layer.geometry, 1);
  for (std::size_t i = 0; i < kSamples; ++i) sums->add(layer.shape, layer.inputs[i], layer.targets[i]);
  const solve::GramForm form = sums->take();
  sums.reset();
  solver.solve(layer.weights, form, layer.bias, config, {});
  InMemory samples(layer);
  const auto solution = solver.solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, {});
  solver.reconstruction_error(layer.weights, layer.geometry, solution, samples, {});
}

DeviceConfig on(std::vector<int> numbers) {
  DeviceConfig config;
  config.cuda = std::move(numbers);
  config.memory_budget = std::uint64_t{1} << 30;
  return config;
}

TEST(Activity, TellsWhatEachLaneDid) {
  const Layer layer = make_layer(solve::convolution(4, 6, 1, {3, 3}), {1, 4, 9, 9}, kSamples, 4, 7);
  DeviceActivity activity(DeviceActivity::Clock::now());
  const auto solver = make_solver(on({0}), kernels(), &activity);
  solve_all(*solver, layer, &activity);
  std::map<std::pair<DeviceLane, std::string>, profile::DeviceTotal> found;
  for (const auto& total : activity.totals()) found[{total.lane, total.what}] = total;
  const std::uint64_t sample = sizeof(float) * (layer.inputs[0].size() + layer.targets[0].size());
  const auto& copies = found[{DeviceLane::copy, "sample"}];
  // Once for the sums, once for those of the descent after mini-batches, once for an iteration, once for errors, and
  // once for each layout that was tried.
  EXPECT_EQ(copies.count, 2 * kSamples + kIterations + kSamples + 2);
  // With those of the descent come the numbers of their 49 positions.
  EXPECT_EQ(copies.amount.bytes, copies.count * sample + kSamples * 49 * sizeof(std::uint32_t));
  EXPECT_EQ((found[{DeviceLane::gather, "sample into pinned memory"}].amount.bytes), copies.amount.bytes);
  EXPECT_EQ((found[{DeviceLane::compute, "sums over samples"}].count), 2 * kSamples);
  EXPECT_EQ((found[{DeviceLane::compute, "errors"}].count), kSamples);
  EXPECT_EQ((found[{DeviceLane::compute, "steps"}].count), kIterations);
  const auto& batches = found[{DeviceLane::compute, "mini-batches"}];
  EXPECT_EQ(batches.count, kIterations);
  // Forward and backward: 7 × 7 outputs of 6 channels, of 4 × 3 × 3 inputs each.
  EXPECT_EQ(batches.amount.flops, 2.0 * 2 * kIterations * 6 * 7 * 7 * 36);
  EXPECT_GT((found[{DeviceLane::compute, "AdaRound"}].amount.flops), 0);
  for (const auto& [kind, total] : found) {
    EXPECT_GE(total.seconds, 0) << kind.second;
  }
  EXPECT_EQ(activity.devices().at(0).name, "host");
  EXPECT_GT(activity.devices().at(0).memory_peak, 0U);
  const auto counters = activity.counters();
  EXPECT_GE(counters.bus_bytes, copies.amount.bytes);
  EXPECT_EQ(counters.memory, 0U);  // all was given back
}

TEST(Activity, SpansAreOnTheRunsClockAndInOrder) {
  const Layer layer = make_layer(solve::product(24, 10), {30, 24}, kSamples, 4, 7);
  DeviceActivity activity(DeviceActivity::Clock::now());
  const auto solver = make_solver(on({0, 3}), kernels(), &activity);
  solve_all(*solver, layer, &activity);
  const double end = activity.seconds_at(DeviceActivity::Clock::now());
  std::map<std::string, double> last;
  for (const auto& span : activity.spans()) {
    EXPECT_GE(span.start, 0) << span.name;
    EXPECT_LE(span.start + span.seconds, end + 1e-6) << span.name;
    EXPECT_TRUE(span.name.ends_with(": a layer")) << span.name;
    if (span.lane.ends_with("compute")) {  // one queue: work follows work
      EXPECT_GE(span.start + 1e-6, last[span.lane]) << span.lane << ' ' << span.name;
      last[span.lane] = span.start + span.seconds;
    }
  }
  std::set<std::string> lanes;
  for (const auto& span : activity.spans()) lanes.insert(span.lane);
  for (const char* lane : {"cuda:0 gather", "cuda:0 copy", "cuda:0 compute", "cuda:3 copy", "cuda:3 compute"})
    EXPECT_TRUE(lanes.contains(lane)) << lane;
}

TEST(Activity, TimingChangesNoResult) {
  const Layer layer = make_layer(solve::convolution(4, 6, 2, {3}), {2, 4, 12}, kSamples, 4, 7);
  FinetuneConfig config;
  config.rounding = WeightSolver::adaround;
  config.num_iterations = kIterations;
  const auto solved = [&](DeviceActivity* activity) {
    const auto solver = make_solver(on({0}), kernels(), activity);
    InMemory samples(layer);
    return solver->solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, {}).integers;
  };
  DeviceActivity activity(DeviceActivity::Clock::now());
  EXPECT_EQ(solved(&activity), solved(nullptr));
  EXPECT_FALSE(activity.spans().empty());
}

TEST(Activity, ManyTimesUnderWayAreAllToldOf) {
  DeviceActivity activity(DeviceActivity::Clock::now());
  Device device(0, std::uint64_t{1} << 20, &activity);
  int calls = 0;
  for (int i = 0; i < 1000; ++i)
    device.clock().queued(device.stream(), DeviceLane::compute, "work", {1, 0}, [&] { ++calls; });
  EXPECT_GE(activity.totals().at(0).count, 700U);
  device.clock().report_finished_work();
  EXPECT_EQ(activity.totals().at(0).count, 1000U);
  EXPECT_EQ(calls, 1000);
}

}  // namespace
}  // namespace detent::cuda
