#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "base/error.h"
#include "calibration/observers.h"
#include "calibration/statistics_file.h"
#include "cuda/plugin_calls.h"
#include "cuda/row_kernels.h"
#include "cuda/simt.h"
#include "cuda/step_kernels.h"
#include "cuda/streamed.h"
#include "cuda/support.h"
#include "detent/error.h"
#include "shim/cuda_driver.h"
#include "shim/library.h"
#include "solve/layers/layer_solver.h"
#include "solve/layers/rounding_variables.h"
#include "solve/support.h"
#include "store/support.h"

namespace detent::cuda {
namespace {

// The plugin itself, on a machine without a driver.

#ifdef CUDA_PLUGIN
constexpr const char* kPlugin = CUDA_PLUGIN;
#else
constexpr const char* kPlugin = "";
#endif

class Plugin : public testing::Test {
 protected:
  void SetUp() override {
    if (*kPlugin == 0) GTEST_SKIP() << "skipped: CMake found no nvcc, so there is no plugin";
    if (shim::find_cuda_driver().devices > 0) GTEST_SKIP() << "skipped: there is a GPU";
  }
};

TEST_F(Plugin, LoadsWithoutADriverAndRefusesInWords) {
  const shim::Library library = shim::load_cuda_plugin(kPlugin);
  const auto probe = reinterpret_cast<shim::CudaProbeEntry*>(library.symbol(shim::kCudaProbeEntryName));
  ASSERT_NE(probe(shim::kCudaProbeVersion), nullptr);
  try {
    probe(shim::kCudaProbeVersion)->require(0);
    ADD_FAILURE() << "a device was found";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_NE(std::string(e.what()).find("the GPU failed to be used: "), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
  }
}

TEST_F(Plugin, KnowsItsVersion) {
  const shim::Library library = shim::load_cuda_plugin(kPlugin);
  EXPECT_EQ(reinterpret_cast<shim::CudaProbeEntry*>(library.symbol(shim::kCudaProbeEntryName))(-1), nullptr);
  const auto solver = reinterpret_cast<solve::CudaSolverEntry*>(library.symbol(solve::kCudaSolverEntryName));
  EXPECT_EQ(solver(-1, {}, solve::kernels(), nullptr), nullptr);
}

TEST_F(Plugin, SolverSaysWhyThereIsNone) {
  ::setenv("DETENT_CUDA_PLUGIN", kPlugin, 1);
  DeviceConfig config;
  config.cuda = {0};
  try {
    solve::cuda_solver(config, solve::kernels(), nullptr);
    ADD_FAILURE() << "a solver was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device) << e.what();
  }
  ::unsetenv("DETENT_CUDA_PLUGIN");
}

// The solver as the pipeline uses it: where it puts sums, and that it takes what was foretold.

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
        config.solver = WeightSolver::adaround;
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
  config.solver = WeightSolver::adaround;
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

// The plugin's counters of calibration, on a device that is the host.

using namespace calibration;

const std::vector<Observed> kThree{{"a", "Conv 'a'"}, {"b", "Relu 'b'"}, {"c", "Add 'c'"}};

std::vector<float> activation(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& v : values) v = std::max(100 * normal(random), -0.0F);
  return values;
}

std::unique_ptr<CalibrationDevice> open(const DeviceRequest& request) { return calibration_calls().open(request); }

std::string on_device(CalibrationDevice& device, const ObserverOptions& options) {
  DeviceObservers observers(kThree, options, device);
  for (unsigned sample = 0; sample < 5; ++sample) {
    observers.begin_sample("s");
    for (unsigned tap = 0; tap < 3; ++tap) {
      const auto values = activation(20'000 * tap + 17, 10 * sample + tap);
      observers.receive_on_device(tap, {onnx::DataType::float32, {}, values.data(), values.size() * sizeof(float)});
    }
    observers.end_sample();
  }
  return encode(observers.statistics());
}

std::string on_host(const ObserverOptions& options) {
  const auto serial = [](std::size_t parts, const std::function<void(std::size_t)>& fn) {
    for (std::size_t p = 0; p < parts; ++p) fn(p);
  };
  Observers observers(kThree, options);
  for (unsigned sample = 0; sample < 5; ++sample) {
    for (unsigned tap = 0; tap < 3; ++tap) {
      const auto values = activation(20'000 * tap + 17, 10 * sample + tap);
      observers.receive(tap, {onnx::DataType::float32, {}, std::as_bytes(std::span(values))}, serial);
    }
  }
  return encode(observers.statistics());
}

TEST(CalibrationOnADevice, CountsAsTheHostDoes) {
  const auto device = open({.number = 2, .memory_budget = {}});
  EXPECT_EQ(device->name(), "cuda:2 (host)");
  EXPECT_EQ(device->place().ordinal, 2);
  for (const bool histogram : {true, false}) {
    const ObserverOptions options{histogram, false, false, 1};
    EXPECT_EQ(on_device(*device, options), on_host(options));
  }
  const ObserverOptions votes{true, true, false, 1};
  EXPECT_EQ(on_device(*device, votes), on_host(votes));
  EXPECT_EQ(on_device(*open({.number = 0, .memory_budget = {}, .pins = false}), votes), on_host(votes));
}

TEST(CalibrationOnADevice, LeavesTheRestOfTheBudgetToTheRuntime) {
  const std::uint64_t budget = std::uint64_t{100} << 20;
  EXPECT_EQ(open({.number = 0, .memory_budget = {}, .taps = 3, .tables = true})->place().memory_limit, 0U)
      << "no limit";
  const auto device = open({.number = 0, .memory_budget = budget, .taps = 3, .tables = true});
  const std::uint64_t tables = 3 * Histogram::kTable * sizeof(std::uint32_t);
  EXPECT_LT(device->place().memory_limit, budget - tables);
  EXPECT_GT(device->place().memory_limit, budget - tables - (std::uint64_t{1} << 20));
  EXPECT_EQ(on_device(*device, {true, false, false, 1}), on_host({true, false, false, 1}));
  try {
    open({.number = 0, .memory_budget = budget, .taps = 300, .tables = true});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    EXPECT_NE(e.hint().find("--set device-memory-budget"), std::string::npos);
  }
  EXPECT_NO_THROW(open({.number = 0, .memory_budget = budget, .taps = 300, .tables = false}));
}

// The arithmetic of kernels against that of the CPU's vector code, and against double and finite differences.

using solve::normal;

// 10 steps, since what one rounds off the next one sees.
TEST(AdaRoundElement, IsTheStepOfTheCpu) {
  const std::size_t n = 4000;
  FinetuneConfig config;
  config.num_iterations = 100;
  for (const std::size_t first : {0U, 19U, 60U, 90U}) {
    auto v = normal(n, 1, 2), mean = normal(n, 2, 0.01F), square = normal(n, 3, 0.01F), h = v;
    for (float& s : square) s = s * s;
    for (std::size_t i = 0; i < n; ++i) h[i] = soft_h(v[i]);
    const auto slope = normal(n, 4), offset = normal(n, 5);
    std::vector<AdaRoundVariable> ours;
    for (std::size_t i = 0; i < n; ++i) ours.push_back({v[i], mean[i], square[i], h[i]});
    for (std::size_t t = first; t < first + 10; ++t) {
      solve::AdaRoundStep step = solve::AdaRoundStep::at(config, t);
      const AdaRoundNumbers numbers{step.adam.rate, step.adam.scale, step.regularizer, step.beta};
      step.regularizer *= 3;
      solve::adaround_step({v.data(), mean.data(), square.data(), h.data()}, slope.data(), offset.data(), 0.5F, n,
                           step);
      for (std::size_t i = 0; i < n; ++i) ours[i] = adaround_step(ours[i], 0.5F * slope[i] + offset[i], 3, numbers);
    }
    for (std::size_t i = 0; i < n; ++i) {
      // The CPU's exponential, logarithm and root are good to 1e-4, 3e-5 and 5e-6.
      ASSERT_NEAR(ours[i].v, v[i], 2e-3) << "from " << first << " at " << i;
      ASSERT_NEAR(ours[i].h, h[i], 1e-3) << "from " << first << " at " << i;
      ASSERT_NEAR(ours[i].mean, mean[i], 1e-3F * std::abs(mean[i]) + 2e-4) << i;
      ASSERT_NEAR(ours[i].square, square[i], 1e-2F * square[i] + 1e-5F) << i;
    }
  }
}

TEST(AdaRoundElement, StaysWhereItIsDecided) {
  const AdaRoundNumbers step{0.1F, 1.0F, 0.01F, 4.0F};
  for (const float v : {-100.0F, -5.0F, 5.0F, 50.0F}) {
    const float h = soft_h(v);
    ASSERT_TRUE(h == 0 || h == 1) << v;
    const AdaRoundVariable x = adaround_step({v, 0, 0, h}, 3, 1, step);
    EXPECT_EQ(x.h, h);
    EXPECT_TRUE(std::isfinite(x.v) && std::isfinite(x.mean));
  }
}

TEST(AdaRoundElement, SlopesAreThoseOfTheFunctions) {
  const auto exact_h = [](double v) { return std::min(std::max(1.2 / (1 + std::exp(-v)) - 0.1, 0.0), 1.0); };
  for (double v = -2; v <= 2; v += 0.0625) {
    EXPECT_NEAR(soft_h(static_cast<float>(v)), exact_h(v), 1e-6);
    // The first step's mean is a tenth of the gradient by v.
    const AdaRoundVariable x =
        adaround_step({static_cast<float>(v), 0, 0, soft_h(static_cast<float>(v))}, 1, 1, {0, 1, 0, 2});
    EXPECT_NEAR(x.mean, 0.1 * (exact_h(v + 1e-6) - exact_h(v - 1e-6)) / 2e-6, 1e-6) << v;
  }
  for (const float beta : {1.5F, 2.0F, 7.0F, 20.0F}) {
    for (double h = 0.01; h < 1; h += 0.07) {
      const auto value = [&](double at) { return std::pow(std::abs(2 * at - 1), static_cast<double>(beta)); };
      const double slope = (value(h + 1e-6) - value(h - 1e-6)) / 2e-6;
      EXPECT_NEAR(certainty_slope(static_cast<float>(h), beta), slope, 1e-4 * (1 + std::abs(slope)))
          << h << ' ' << beta;
    }
  }
  EXPECT_TRUE(std::isfinite(certainty_slope(0.5F, 20.0F)) && std::isfinite(certainty_slope(0.5F, 1.0F)));
}

TEST(AdaQuantElement, IsTheStepOfTheCpu) {
  const std::size_t n = 4000;
  FinetuneConfig config;
  config.num_iterations = 100;
  config.learning_rate = 1e-3;
  auto w = normal(n, 1, 5), mean = normal(n, 2, 0.1F), square = mean, q = w;
  for (float& s : square) s = s * s;
  const auto slope = normal(n, 4), offset = normal(n, 5);
  std::vector<AdaQuantVariable> ours;
  for (std::size_t i = 0; i < n; ++i) ours.push_back({w[i], mean[i], square[i], 0});
  for (std::size_t t = 0; t < 10; ++t) {
    const solve::AdamStep step = solve::adaquant_adam(config, t);
    solve::adaquant_step({w.data(), mean.data(), square.data(), q.data()}, slope.data(), offset.data(), 0.5F, -8, 7,
                         100, n, step);
    for (std::size_t i = 0; i < n; ++i) {
      ours[i] = adaquant_step(ours[i], 0.5F * slope[i] + offset[i], -8, 7, 100, {step.rate, step.scale});
    }
  }
  std::size_t other = 0;
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(ours[i].w, w[i], 1e-3) << i;
    ASSERT_GE(ours[i].q, -8);
    ASSERT_LE(ours[i].q, 7);
    other += ours[i].q != q[i] ? 1 : 0;
  }
  EXPECT_LE(other, 4U);  // at a border between two integers
}

TEST(AdaQuantElement, NoGradientPassesAClippedWeight) {
  const AdaQuantVariable x = adaquant_step({9, 0.5F, 1, 7}, 100, -8, 7, 1, {0, 1});
  EXPECT_FLOAT_EQ(x.mean, 0.45F);
  EXPECT_EQ(x.q, 7);
  EXPECT_EQ(adaquant_step({2.5F, 0, 0, 0}, 0, -8, 7, 1, {0, 1}).q, 2);  // half to even
  EXPECT_EQ(adaquant_step({3.5F, 0, 0, 0}, 0, -8, 7, 1, {0, 1}).q, 4);
}

TEST(DescentElement, IsTheChangeOfTheCpu) {
  solve::QuantizedWeights weights;
  weights.scale = {0.03F, 0.0F};
  weights.lowest = -8;
  weights.highest = 7;
  for (const float step : normal(2000, 9, 0.2F)) {
    for (const std::size_t row : {0U, 1U}) {
      for (const std::int32_t now : {-8, -3, 0, 7}) {
        EXPECT_EQ(best_change(step, weights.scale[row], now, -8, 7), weights.best_change(row, 0, now, step));
      }
    }
  }
}

TEST(Bfloat16, RoundsHalfToEven) {
  EXPECT_EQ(to_bfloat16(1.0F).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808001U)).bits, 0x3f81);
  EXPECT_EQ(to_bfloat16(-2.0F).bits, 0xc000);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_GT(to_bfloat16(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  for (int i = -255; i <= 255; ++i) {  // what AdaQuant's integers move by is exact
    EXPECT_EQ(std::bit_cast<float>(std::uint32_t{to_bfloat16(static_cast<float>(i)).bits} << 16),
              static_cast<float>(i));
  }
}

// Records read into a device that is the host, by cuFile (a made-up one) and through pinned buffers.

namespace fs = std::filesystem;
using store::test::record_of;

class RecordReaderTest : public testing::Test {
 protected:
  RecordReaderTest() : spool_(options()) {
    places_ = {FAKE_CUFILE_LIBRARY, FAKE_CUDA, folder_.path() / "modules", std::chrono::minutes(1)};
    std::ofstream(places_.modules) << "nvidia_fs 323584 0 - Live 0x0\n";
    const auto lane = spool_.open("lane");
    for (std::size_t i = 0; i < 3; ++i) {
      expected_.push_back(record_of((std::size_t{3 + 20 * i} << 20) + 1000 * i, i));
      spool_.put(lane, i, expected_.back());
    }
    spool_.sync();
    for (std::size_t i = 0; i < 3; ++i) resting_.push_back(spool_.resting(lane, i).value());
  }
  ~RecordReaderTest() override { ::unsetenv("FAKE_CUFILE"); }

  store::SpoolOptions options() const {
    store::SpoolOptions options;
    options.directory = folder_.path();
    options.residency = store::Residency::disk;
    return options;
  }

  void expect_right(RecordReader& reader) {
    for (const std::size_t i : {0U, 2U, 1U, 1U}) {
      std::vector<std::byte> to(resting_[i].size);
      reader.read(resting_[i], to.data());
      for (std::size_t a = 0; a < expected_[i].size(); ++a) {
        const auto& bytes = expected_[i][a].bytes;
        EXPECT_EQ(std::memcmp(to.data() + resting_[i].parts[a].begin, bytes.data(), bytes.size()), 0);
      }
    }
  }

  TempDir folder_{fs::current_path()};
  Device device_{0, std::uint64_t{256} << 20};
  shim::CuFilePlaces places_;
  store::Spool spool_;
  std::vector<store::Record> expected_;
  std::vector<store::RecordOnDisk> resting_;
};

TEST_F(RecordReaderTest, ReadsThroughPinnedBuffers) {
  RecordReader reader(device_, GdsMode::off, folder_.path(), places_);
  EXPECT_FALSE(reader.route().direct_storage);
  expect_right(reader);
  EXPECT_NE(reader.note().find("cuda:0 read spooled samples by pinned buffers"), std::string::npos) << reader.note();
}

TEST_F(RecordReaderTest, ReadsPastTheHost) {
  RecordReader reader(device_, GdsMode::on, folder_.path(), places_);
  EXPECT_TRUE(reader.route().direct_storage);
  expect_right(reader);
}

TEST_F(RecordReaderTest, ChoosesByMeasuring) {
  RecordReader reader(device_, GdsMode::automatic, folder_.path(), places_);
  expect_right(reader);
  EXPECT_NE(reader.note().find("GB/s, pinned buffers filled by"), std::string::npos) << reader.note();
  EXPECT_EQ(device_.memory().used(), 0U) << "what was measured with is given back";
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("device-probe")) << entry.path();
}

TEST_F(RecordReaderTest, SaysWhyNotPastTheHost) {
  ::setenv("FAKE_CUFILE", "refuses", 1);
  try {
    RecordReader(device_, GdsMode::on, folder_.path(), places_);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_NE(std::string(e.what()).find("does not take files of this file system"), std::string::npos) << e.what();
  }
  RecordReader reader(device_, GdsMode::automatic, folder_.path(), places_);
  EXPECT_FALSE(reader.route().direct_storage);
  EXPECT_NE(reader.note().find("no GPUDirect Storage"), std::string::npos) << reader.note();
  expect_right(reader);
}

}  // namespace
}  // namespace detent::cuda
