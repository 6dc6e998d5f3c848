// A small model from float weights to tuned integers, and on after an interruption.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <stop_token>

#include "solve/algebra/kernels.h"
#include "solve/sweep_support.h"

namespace detent::solve {
namespace {

using namespace test;

struct Tuned {
  Model model = quantized_model().model;
  std::vector<LayerTuning> layers;
  std::vector<std::string> notes;

  std::string bytes() const {
    std::string all;
    for (const auto& tensor : model.graph.initializers) all += as_text(tensor.data.bytes());
    return all;
  }
};

struct Settings {
  FinetuneConfig config;
  int threads = 1;
  store::Residency residency = store::Residency::memory;
  std::uint64_t together = std::uint64_t{1} << 30;
  std::vector<std::size_t> in_body = {};  // layers that are taken to be in bodies
  std::shared_ptr<const shim::Device> place = {};
  std::size_t samples = 16;
  bool symmetric = false;
};

Tuned tune(const std::filesystem::path& folder, const Settings& settings, std::size_t stop_after = 0) {
  cpu_kernels(CPU_PLUGIN);
  const Model model = float_model();
  Tuned run;
  Samples samples(settings.samples);
  store::SpoolOptions spool_options;
  spool_options.directory = folder / "spool";
  spool_options.residency = settings.residency;
  std::filesystem::create_directories(spool_options.directory);
  store::Spool spool(spool_options);
  std::stop_source stop;
  const DeviceConfig device;
  FinetuneOptions options{
      .config = settings.config, .device = device, .threads = settings.threads, .spool = spool, .directory = folder};
  options.memory.layers.assign(3, std::uint64_t{1} << 30);
  options.memory.together = settings.together;
  options.place = settings.place;
  options.symmetric = settings.symmetric;
  options.stop = stop.get_token();
  options.solved = [&, done = std::size_t{0}](const LayerTuning&) mutable {
    if (++done == stop_after) stop.request_stop();
  };
  auto layers = find_layers(model, quantized_model(), settings.config).layers;
  for (const std::size_t layer : settings.in_body) layers[layer].in_body = true;
  run.layers = finetune(model, exec::infer_value_types(runtime(), model), run.model, std::move(layers), runtime(),
                        samples, options, run.notes);
  return run;
}

Tuned tune(const Settings& settings) {
  const TempDir folder(std::filesystem::temp_directory_path());
  Tuned run = tune(folder.path(), settings);
  for (auto& tensor : run.model.graph.initializers) {  // which may be mapped from the folder
    const auto bytes = tensor.data.bytes();
    tensor.data = onnx::TensorData::owned({bytes.begin(), bytes.end()});
  }
  return run;
}

Settings settings_of(WeightSolver rounding) {
  Settings settings;
  settings.config.rounding = rounding;
  settings.config.num_iterations = 200;
  if (rounding == WeightSolver::adaquant) settings.config.learning_rate = 1e-3;
  return settings;
}

TEST(Tuning, EveryLayerGainsOnSamplesThatItHasNotSeen) {
  for (const auto& [rounding, share] :
       {std::pair{WeightSolver::gptq, 0.8}, {WeightSolver::adaround, 0.8}, {WeightSolver::adaquant, 0.95}}) {
    const Tuned run = tune(settings_of(rounding));
    ASSERT_EQ(run.layers.size(), 3U);
    for (const auto& layer : run.layers) {
      SCOPED_TRACE(layer.name + ", method " + std::to_string(static_cast<int>(rounding)));
      EXPECT_TRUE(layer.tuned);
      EXPECT_LT(layer.error_after, share * layer.error_before);
    }
    EXPECT_NE(run.bytes(), Tuned().bytes());
  }
}

// Neither where samples wait, nor which layers share a pass, nor how many threads there are.
TEST(Tuning, MemoryAndThreadsDoNotChangeTheResult) {
  for (const WeightSolver rounding : {WeightSolver::gptq, WeightSolver::adaround}) {
    const Settings plain = settings_of(rounding);
    const std::string expected = tune(plain).bytes();
    Settings other = plain;
    other.residency = store::Residency::disk;
    EXPECT_EQ(tune(other).bytes(), expected);
    other = plain;
    other.together = 0;
    EXPECT_EQ(tune(other).bytes(), expected);
    other = plain;
    other.threads = 3;
    EXPECT_EQ(tune(other).bytes(), expected);
  }
}

// How far a tuned weight is from the float one.
double distance(const Tuned& run, const std::string& weight) {
  const auto bytes = [](const Model& model, const std::string& name) {
    const auto& all = model.graph.initializers;
    return std::find_if(all.begin(), all.end(), [&](const auto& tensor) { return tensor.name == name; })->data.bytes();
  };
  const auto floats = [](std::span<const std::byte> of) {
    Floats values(of.size() / sizeof(float));
    std::memcpy(values.data(), of.data(), of.size());
    return values;
  };
  const Model exact = float_model();
  const auto values = floats(bytes(exact, weight)), scales = floats(bytes(run.model, weight + "_scale"));
  const auto integers = bytes(run.model, weight + "_quantized");
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    sum += std::pow(values[i] - scales[i % scales.size()] * static_cast<std::int8_t>(integers[i]), 2);
  return sum;
}

// Only asymmetric targets, which many positions have, make up for the layer before: away from the float weights.
TEST(Tuning, SymmetricTargetsDoNotMakeUpForLayersBefore) {
  Settings settings = settings_of(WeightSolver::gptq), symmetric = settings;
  symmetric.symmetric = true;
  EXPECT_EQ(tune(settings).bytes(), tune(symmetric).bytes());
  settings.samples = symmetric.samples = 256;
  const Tuned usual = tune(settings), apart = tune(symmetric);
  EXPECT_EQ(distance(usual, "a"), distance(apart, "a"));
  EXPECT_GT(distance(usual, "b"), 1.02 * distance(apart, "b"));
  EXPECT_GT(distance(usual, "c"), 1.02 * distance(apart, "c"));
}

// Both branches on a device, whose part the CPU's provider plays; one that the runtime does not have is refused by
// both.
TEST(Tuning, BranchesRunWhereTheyAreTold) {
  Settings settings = settings_of(WeightSolver::adaround);
  const std::string expected = tune(settings).bytes();
  auto host = std::make_shared<shim::Device>();
  host->provider = "CPUExecutionProvider";
  settings.place = host;
  EXPECT_EQ(tune(settings).bytes(), expected);
  settings.place = std::make_shared<shim::Device>();
  if (runtime().has_provider(settings.place->provider)) GTEST_SKIP() << "this ONNX Runtime has CUDA's provider";
  EXPECT_THROW(tune(settings), Error);
}

// Layers in bodies are tuned by what taps hand over: from the same values come the same integers.
TEST(Tuning, TapsTellWhatOutputsDo) {
  for (const WeightSolver rounding : {WeightSolver::gptq, WeightSolver::adaround, WeightSolver::adaquant}) {
    Settings settings = settings_of(rounding);
    if (rounding == WeightSolver::adaquant) settings.config.drop_ratio = 0.5;  // takes the float model's inputs too
    const std::string expected = tune(settings).bytes();
    for (const auto& in_body : std::vector<std::vector<std::size_t>>{{0}, {1}, {1, 2}, {0, 1, 2}}) {
      settings.in_body = in_body;
      const Tuned run = tune(settings);
      EXPECT_EQ(run.bytes(), expected);
      EXPECT_EQ(run.layers.size(), 3U);
    }
    settings.residency = store::Residency::disk;
    settings.together = 0;
    EXPECT_EQ(tune(settings).bytes(), expected);
  }
}

TEST(Tuning, GoesOnAfterAnInterruption) {
  const Settings settings = settings_of(WeightSolver::adaround);
  const std::string expected = tune(settings).bytes();
  const TempDir folder(std::filesystem::temp_directory_path());
  EXPECT_THROW((void)tune(folder.path(), settings, 1), Error);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "solved-0"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "solved-1"));
  EXPECT_EQ(tune(folder.path(), settings).bytes(), expected);
}

TEST(Tuning, GoesOnInABodyAfterAnInterruption) {
  Settings settings = settings_of(WeightSolver::adaround);
  settings.in_body = {0, 1, 2};
  settings.together = 0;
  const std::string expected = tune(settings).bytes();
  const TempDir folder(std::filesystem::temp_directory_path());
  EXPECT_THROW((void)tune(folder.path(), settings, 2), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "solved-2"));
  EXPECT_EQ(tune(folder.path(), settings).bytes(), expected);
}

}  // namespace
}  // namespace detent::solve
