#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <stop_token>
#include <string>

#include "base/json.h"
#include "data/sample.h"
#include "mpi/peer.h"
#include "solve/algebra/kernels.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/layer_tuner.h"
#include "solve/sweep/solved_layers.h"
#include "solve/sweep/tuned_layer.h"
#include "solve/sweep_support.h"

namespace detent::solve {
namespace {

// A small model from float weights to tuned integers, and on after an interruption.

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
  settings.config.solver = rounding;
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

// What is saved of layers: solved ones, the state of one that is being solved, and spooled samples.

std::vector<std::byte> bytes_up_to(std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

std::vector<std::byte> read(const onnx::TensorData& data) {
  const auto bytes = data.bytes();
  return {bytes.begin(), bytes.end()};
}

/// Another byte at a place of a file, counted from its end.
void damage(const std::filesystem::path& path, int from_end) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-from_end, std::ios::end);
  file.put('\x7f');
}

TEST(SolvedLayers, AreNotThereWithALengthThatNoFileHas) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  std::vector<SolvedLayer> layers(1);
  layers[0].tuning.name = "a";
  solved.save(1, layers);
  const auto path = folder.path() / "solved-1";
  std::ifstream in(path, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const std::string length = "\"integers\":0";
  const auto at = file.find(length);
  ASSERT_NE(at, std::string::npos);
  // 2^64 - 1, which is 0 once it is rounded up to whole blocks.
  file.replace(at, length.size(), "\"integers\":18446744073709551615");
  const auto text = file.substr(8, file.find_last_of('}') + 1 - 8);
  const std::uint64_t size = text.size();
  SealedFile changed(path);
  changed.write(std::as_bytes(std::span(&size, 1)));
  changed.write(std::as_bytes(std::span(text)));
  changed.finish();
  EXPECT_FALSE(solved.load(1, 1));
}

TEST(SolvedLayers, ComeBackAsTheyWereSaved) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  EXPECT_FALSE(solved.load(3, 2));
  std::vector<SolvedLayer> layers(2);
  layers[0].tuning = {
      .name = "a", .op_type = "Conv", .streamed = true, .tuned = true, .error_before = 2, .error_after = 1};
  layers[0].integers = bytes_up_to(100);
  layers[1].tuning.name = "b";
  layers[1].integers = bytes_up_to(7);
  layers[1].bias = bytes_up_to(12);
  solved.save(3, layers);
  const auto found = solved.load(3, 2);
  ASSERT_TRUE(found && found->size() == 2);
  EXPECT_EQ((*found)[0].tuning.name, "a");
  EXPECT_TRUE((*found)[0].tuning.streamed && (*found)[0].tuning.tuned);
  EXPECT_EQ((*found)[0].tuning.error_after, 1);
  EXPECT_EQ(read((*found)[0].integers), layers[0].integers);
  EXPECT_EQ((*found)[0].bias.size(), 0U);
  EXPECT_EQ(read((*found)[1].integers), layers[1].integers);
  EXPECT_EQ(read((*found)[1].bias), layers[1].bias);
  EXPECT_FALSE(solved.load(2, 2));
  EXPECT_FALSE(solved.load(3, 1));
}

TEST(SolvedLayers, AreSolvedAgainWhereDamaged) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  std::vector<SolvedLayer> layers(1);
  layers[0].integers = bytes_up_to(128);
  solved.save(0, layers);
  damage(folder.path() / "solved-0", 5);
  EXPECT_FALSE(solved.load(0, 1));
  EXPECT_THROW((void)solved.load_saved(0, 1), Error);
}

std::string file_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// As rank 0 saved them.
std::string saved(std::size_t layers) {
  const TempDir folder(std::filesystem::temp_directory_path());
  std::vector<SolvedLayer> solved(layers);
  for (auto& layer : solved) layer.tuning.name = "of rank 0";
  SolvedLayers(folder.path()).save(0, solved);
  return file_of(folder.path() / "solved-0");
}

TEST(SolvedLayers, ComeFromRankZero) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const std::string yes(1, '\1');
  auto ranks = detent::test::beside_peer(1, {yes, "", saved(2)});
  const SolvedLayers solved(folder.path(), &ranks);
  solved.save(0, std::vector<SolvedLayer>(2));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const auto found = solved.load_saved(0, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].tuning.name, "of rank 0");
  EXPECT_EQ(file_of(folder.path() / "solved-0"), saved(2));
  for (const std::string& theirs : {std::string("damaged"), saved(1)}) {
    auto again = detent::test::beside_peer(1, {yes, "", theirs});
    const TempDir other(std::filesystem::temp_directory_path());
    EXPECT_THROW((void)SolvedLayers(other.path(), &again).load(0, 2), Error);
  }
}

TEST(SharedSamples, AreRunByAllRanksAlike) {
  for (const std::size_t ranks : {1U, 2U, 3U}) {
    std::vector<std::size_t> fitted(ranks), held_back(ranks);
    for (std::size_t s = 0; s < 48; ++s) ++(is_held_back(s) ? held_back : fitted)[runner_of(s, ranks)];
    EXPECT_EQ(fitted, std::vector<std::size_t>(ranks, 42 / ranks)) << ranks;
    EXPECT_EQ(held_back, std::vector<std::size_t>(ranks, 6 / ranks)) << ranks;
  }
}

// Of sample s and layer l, as it is sent: one float32 of one dimension.
std::string sent(float value) {
  const std::uint64_t numbers[] = {1, static_cast<std::uint64_t>(onnx::DataType::float32), 1, 1, sizeof value};
  std::string text(reinterpret_cast<const char*>(numbers), sizeof numbers);
  text.resize((text.size() + 15) / 16 * 16);
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
  text.resize((text.size() + 15) / 16 * 16);
  return text;
}

store::Record record_of(float value) {
  const auto owner = std::make_shared<float>(value);
  return {{onnx::DataType::float32, {1}, std::as_bytes(std::span<const float>(owner.get(), 1)), owner}};
}

TEST(SharedSamples, ComeToAllInTheirOrder) {
  store::Spool spool({.directory = std::filesystem::temp_directory_path()});
  std::string theirs;
  for (std::size_t s = 0; s < 16; ++s) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      if (runner_of(s, 2) == 0 && !is_held_back(s)) theirs += sent(static_cast<float>(10 * s + layer));
    }
  }
  // The first of them come by themselves, the others together.
  const auto hand_out = [&](const std::string& all) {
    constexpr std::size_t kSingle = 6;
    const std::size_t size = sent(0).size();
    std::vector<std::string> messages;
    for (std::size_t i = 0; i < kSingle; ++i) messages.push_back(all.substr(i * size, size));
    messages.push_back(all.substr(kSingle * size));
    auto ranks = detent::test::beside_peer(1, messages);
    SharedSamples shared(spool, 2, true, {&ranks});
    for (std::size_t s = 0; s < 16; ++s) {
      for (std::size_t layer = 0; layer < 2 && runner_of(s, 2) == 1; ++layer)
        shared.put(layer, s, record_of(static_cast<float>(10 * s + layer)));
    }
    std::size_t next = 0, elsewhere = 0;
    const auto as_it_is = [](std::size_t, std::size_t, store::Record record) { return record; };
    shared.hand_out(16, as_it_is, [&](std::size_t layer, std::size_t s, std::optional<store::Record> record) {
      EXPECT_EQ(2 * s + layer, next++);
      if (!record) return void(++elsewhere);
      EXPECT_EQ(data::floats(record->at(0))[0], static_cast<float>(10 * s + layer));
    });
    EXPECT_EQ(next, 32U);
    EXPECT_EQ(elsewhere, 2U);  // of sample 8, which rank 0 holds back
  };
  hand_out(theirs);
  EXPECT_THROW(hand_out(theirs.substr(0, theirs.size() - 8)), Error);
  EXPECT_THROW(hand_out(theirs.substr(0, theirs.size() - 64)), Error);
}

TEST(SolvedLayers, WhatIsToldOfThemIsSealed) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const SolvedLayers solved(folder.path());
  std::vector<SolvedLayer> layers(1);
  layers[0].tuning.error_after = 1;
  solved.save(0, layers);
  auto file = file_of(folder.path() / "solved-0");
  const std::string told = "\"after\":1.0";
  ASSERT_NE(file.find(told), std::string::npos);
  file.replace(file.find(told), told.size(), "\"after\":2.0");
  std::ofstream(folder.path() / "solved-0", std::ios::binary) << file;
  EXPECT_FALSE(solved.load(0, 1));
}

TEST(LayerState, IsTakenUpUnlessDamaged) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const auto path = folder.path() / "solving-0";
  LayerState state(path, 0);
  EXPECT_TRUE(state.load().bytes.empty());
  EXPECT_TRUE(state.is_due());
  const auto first = bytes_up_to(10), second = bytes_up_to(20);
  state.save(std::array{std::span<const std::byte>(first), std::span<const std::byte>(second)});
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  const auto stored = LayerState(path, 3600).load();
  EXPECT_EQ(std::vector<std::byte>(stored.bytes.begin(), stored.bytes.end()), all);
  EXPECT_FALSE(LayerState(path, 3600).is_due());
  damage(path, 3);
  EXPECT_TRUE(state.load().bytes.empty());
}

TEST(StoredSamples, AreReadAheadAndLeaveNothing) {
  const TempDir folder(std::filesystem::temp_directory_path());
  store::SpoolOptions options;
  options.directory = folder.path();
  options.residency = store::Residency::disk;
  store::Spool spool(options);
  {
    StoredSamples samples(spool, "layer");
    for (unsigned i = 0; i < 5; ++i) samples.add({random_floats({4, 300}, i), random_floats({4, 7}, 10 + i)});
    ASSERT_EQ(samples.count(), 5U);
    samples.prefetch(std::array<std::size_t, 3>{2, 0, 4});
    for (const std::size_t i : {2U, 0U, 1U, 4U, 2U, 3U}) {
      const auto sample = samples.get(i);
      const auto expected = floats_of(random_floats({4, 300}, static_cast<unsigned>(i)));
      EXPECT_EQ(Floats(sample.input.begin(), sample.input.end()), expected);
      EXPECT_EQ(sample.target.size(), 28U);
      EXPECT_TRUE(sample.float_input.empty());
      EXPECT_EQ(sample.input_shape, (Shape{4, 300}));
    }
  }
  std::size_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (file.is_regular_file()) bytes += file.file_size();
  }
  EXPECT_EQ(bytes, 0U);
}

FoundLayers found(const FinetuneConfig& config = {}) { return find_layers(float_model(), quantized_model(), config); }

std::vector<std::string> names(const std::vector<TunedLayer>& layers) {
  std::vector<std::string> names;
  for (const auto& layer : layers) names.push_back(layer.name);
  return names;
}

TEST(FindLayers, FollowsTheOrderOfTheFloatModel) {
  const auto [layers, notes] = found();
  EXPECT_EQ(names(layers), (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_TRUE(notes.empty());
  const Model model = float_model(), quantized = quantized_model().model;
  for (const auto& layer : layers) {
    const auto& stored = quantized.graph.initializers[layer.stored_weight];
    EXPECT_EQ(stored.name, model.graph.initializers[layer.float_weight].name + "_quantized");
    EXPECT_EQ(layer.target, model.graph.nodes[static_cast<std::size_t>(layer.float_node)].outputs()[0]);
    EXPECT_EQ(layer.layout, WeightLayout::inputs_first);
  }
}

TEST(FindLayers, TakesThoseThatAreSelected) {
  FinetuneConfig config;
  config.nodes = {"second", "third"};
  EXPECT_EQ(names(found(config).layers), config.nodes);
  config.nodes = {"fourth"};
  EXPECT_THROW((void)found(config), Error);
  config.nodes.clear();
  config.op_types = {"Conv"};
  EXPECT_TRUE(found(config).layers.empty());
  config.op_types = {"Relu"};
  EXPECT_THROW((void)found(config), Error);
}

TEST(Weights, AreTheModelsAsAMatrixOfOutputs) {
  const Model model = float_model(), quantized = quantized_model().model;
  const auto layer = found().layers[0];
  const auto geometry = geometry_of(model, layer, {kRows, kInputs});
  const auto weights = weights_of(model, quantized, layer, geometry);
  EXPECT_EQ(weights.rows, static_cast<std::size_t>(kHidden));
  EXPECT_EQ(weights.fan_in, static_cast<std::size_t>(kInputs));
  // Nearest rounding gives what the quantized model has stored, in its order.
  const auto nearest = solve::nearest(weights, {}).integers;
  const auto& stored = quantized.graph.initializers[layer.stored_weight];
  const auto bytes = stored.data.bytes();
  EXPECT_EQ(stored_integers(quantized, layer, geometry, nearest), std::vector<std::byte>(bytes.begin(), bytes.end()));
}

// Layers that do not depend on each other share a pass over the samples, as far as memory allows.
TEST(Stages, JoinLayersThatDoNotNeedEachOther) {
  const Model model = float_model(), quantized = quantized_model().model;
  const auto layers = found().layers;
  const auto stages = stages_of(layers, model, quantized, std::uint64_t{1} << 30);
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_EQ(stages[0].layers, std::vector<std::size_t>{0});
  EXPECT_EQ(stages[1].layers, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(gram_bytes(model, layers[1]), sizeof(float) * kHidden * kHidden);
  EXPECT_EQ(stages_of(layers, model, quantized, gram_bytes(model, layers[1])).size(), 3U);
  EXPECT_EQ(float_ends(layers, stages), (std::vector<int>{1, 4}));
  const auto ends = quantized_ends(layers, stages);
  EXPECT_EQ(ends, (std::vector<int>{layers[0].quantized_node, layers[1].quantized_node}));
}

// A stage in bodies looks into the segment that the next one runs.
TEST(Stages, InBodiesEndNoSegment) {
  const Model model = float_model(), quantized = quantized_model().model;
  auto layers = found().layers;
  constexpr std::uint64_t kMuch = std::uint64_t{1} << 30;
  layers[1].in_body = layers[2].in_body = true;
  auto stages = stages_of(layers, model, quantized, kMuch);
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_TRUE(!stages[0].in_body && stages[1].in_body);
  EXPECT_EQ(stages[1].segment, 1U);
  EXPECT_EQ(float_ends(layers, stages), std::vector<int>{1});
  EXPECT_EQ(quantized_ends(layers, stages), std::vector<int>{layers[0].quantized_node});
  layers[0].in_body = true;
  layers[1].in_body = layers[2].in_body = false;
  stages = stages_of(layers, model, quantized, kMuch);
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_EQ(stages[0].segment, 0U);
  EXPECT_EQ(stages[1].segment, 0U);
  EXPECT_EQ(float_ends(layers, stages), std::vector<int>{4});
}

TEST(Cost, FollowsTheFormThatWasAskedFor) {
  LayerGeometry layer;
  layer.inputs = 4096;
  layer.outputs = 64;
  FinetuneConfig config;
  config.solver = WeightSolver::adaround;
  config.num_iterations = 100;
  EXPECT_TRUE(is_streamed(layer, {8, 4096}, 4, config, 1));  // its Gram matrix would cost many times the work
  config.form = FinetuneForm::gram;
  EXPECT_FALSE(is_streamed(layer, {8, 4096}, 4, config, 1));
  config.form = FinetuneForm::streamed;
  EXPECT_TRUE(is_streamed(layer, {8, 4096}, 4, config, 1));
  config.form = FinetuneForm::automatic;
  config.solver = WeightSolver::gptq;
  EXPECT_FALSE(is_streamed(layer, {8, 4096}, 4, config, 1));
}

TEST(Memory, IsSharedOutOrRefusedWithTheSmallestBudget) {
  const Model model = float_model(), quantized = quantized_model().model;
  const auto layers = found().layers;
  const auto types = exec::infer_value_types(runtime(), model);
  FinetuneConfig config;
  config.solver = WeightSolver::gptq;
  const auto share = [&](std::uint64_t budget) {
    return share_memory(budget, true, model, types, quantized, layers, 8, config, 1);
  };
  const MemoryShares large = share(std::uint64_t{1} << 30), larger = share(std::uint64_t{2} << 30);
  ASSERT_EQ(large.layers.size(), 3U);
  EXPECT_GT(larger.spool.records, large.spool.records + (std::uint64_t{1} << 29));
  try {
    (void)share(1 << 20);
    ADD_FAILURE() << "a budget of 1 MiB was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    const auto at = e.hint().find_first_of("0123456789");
    ASSERT_NE(at, std::string::npos);
    const std::uint64_t smallest = std::stoull(e.hint().substr(at)) << 20;
    const MemoryShares least = share(smallest);
    EXPECT_LT(least.spool.buffers, std::uint64_t{2} << 20);  // of what was counted for them and the rest of a MiB
    EXPECT_LT(least.spool.records, std::uint64_t{1} << 20);
    EXPECT_THROW((void)share(smallest - (2 << 20)), Error);
  }
}

}  // namespace
}  // namespace detent::solve
