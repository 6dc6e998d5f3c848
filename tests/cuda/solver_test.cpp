// The solver as the pipeline uses it: where it puts sums, and that it takes what was foretold.
#include "cuda/plugin_calls.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cuda/support.h"
#include "solve/layers/layer_solver.h"

namespace detent::cuda {
namespace {

using profile::DeviceActivity;
using solve::device_need;

DeviceConfig on(std::vector<int> numbers, std::uint64_t budget = std::uint64_t{1} << 30) {
  DeviceConfig config;
  config.cuda = std::move(numbers);
  config.memory_budget = budget;
  return config;
}

void add_all(solve::GramSums& sums, const Layer& layer) {
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) sums.add(layer.shape, layer.inputs[i], layer.targets[i]);
}

TEST(CudaSolver, SharesOutTheSumsOfLayers) {
  const Layer layer = make_layer(solve::product(300, 40), {30, 300}, 3, 4, 7);
  std::vector<solve::GramForm> forms;
  std::vector<std::uint64_t> peaks;
  for (const std::vector<int>& numbers : {std::vector<int>{0}, {0, 1}, {0, 1, 2}}) {
    DeviceActivity activity(DeviceActivity::Clock::now());
    const auto solver = make_solver(on(numbers), kernels(), &activity);
    std::vector<std::unique_ptr<solve::GramSums>> sums;
    for (int i = 0; i < 3; ++i) sums.push_back(solver->sums(layer.geometry, 1));
    for (auto& one : sums) add_all(*one, layer);
    for (auto& one : sums) forms.push_back(one->take());
    for (const auto& device : activity.devices()) EXPECT_GT(device.memory_peak, 0U) << device.number;
    peaks.push_back(activity.devices().front().memory_peak);
    EXPECT_EQ(solver->sums_budget(), numbers.size() << 29);
  }
  for (const auto& form : forms) {  // the same bits wherever they were made
    EXPECT_EQ(form.gram, forms[0].gram);
    EXPECT_EQ(form.cross, forms[0].cross);
  }
  EXPECT_LT(peaks[1], peaks[0]);
  EXPECT_LT(peaks[2], peaks[1]);
}

TEST(CudaSolver, TakesNoMoreThanAPlanSays) {
  for (const Case& c : all_kinds()) {
    for (const bool streamed : {false, true}) {
      for (const std::size_t devices : {1U, 2U}) {
        SCOPED_TRACE(std::string(c.name) + (streamed ? " streamed " : " gram ") + std::to_string(devices));
        const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
        FinetuneConfig config;
        config.rounding = WeightSolver::adaround;
        config.num_iterations = 5;
        DeviceActivity activity(DeviceActivity::Clock::now());
        std::vector<int> numbers{0, 1};
        numbers.resize(devices);
        const auto solver = make_solver(on(numbers), kernels(), &activity);
        solver->check_memory("a layer", c.geometry, c.input, streamed, config);
        InMemory samples(layer);
        solve::Solution solution;
        if (streamed) {
          solution = solver->solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, {});
        } else {
          auto sums = solver->sums(layer.geometry, 1);
          add_all(*sums, layer);
          const solve::GramFormOrRawInputs form = sums->take();
          sums.reset();
          solution = solver->solve(layer.weights, form, layer.bias, config, {});
        }
        solver->reconstruction_error(layer.weights, layer.geometry, solution, samples, {});
        const auto need = device_need(c.geometry, c.input, streamed, config, DevicePrecision::float32, devices);
        for (const auto& device : activity.devices()) {
          EXPECT_LE(device.memory_peak, need.peak()) << device.number;
          if (device.memory_peak > 0) {
            EXPECT_LE(device.memory_peak, device.memory_foretold) << device.number;
          }
        }
      }
    }
  }
}

TEST(CudaSolver, RefusesWhatAPlanCallsTooMuch) {
  const Layer layer = make_layer(solve::product(300, 40), {30, 300}, 1, 4, 7);
  FinetuneConfig config;
  config.rounding = WeightSolver::adaround;
  for (const bool streamed : {false, true}) {
    const auto need = device_need(layer.geometry, layer.shape, streamed, config, DevicePrecision::float32, 1).peak();
    EXPECT_NO_THROW(make_solver(on({0}, need), kernels(), nullptr)
                        ->check_memory("a layer", layer.geometry, layer.shape, streamed, config));
    try {
      make_solver(on({0}, need - 1), kernels(), nullptr)
          ->check_memory("a layer", layer.geometry, layer.shape, streamed, config);
      ADD_FAILURE() << "it was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::resource);
      EXPECT_NE(std::string(e.what()).find("a layer"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace detent::cuda
