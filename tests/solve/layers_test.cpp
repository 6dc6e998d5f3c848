#include <gtest/gtest.h>

#include "solve/sweep/finetune.h"
#include "solve/sweep/tuned_layer.h"
#include "solve/sweep_support.h"

namespace detent::solve {
namespace {

using namespace test;

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
  config.rounding = WeightSolver::adaround;
  config.num_iterations = 100;
  EXPECT_TRUE(is_streamed(layer, {8, 4096}, 4, config, 1));  // its Gram matrix would cost many times the work
  config.form = FinetuneForm::gram;
  EXPECT_FALSE(is_streamed(layer, {8, 4096}, 4, config, 1));
  config.form = FinetuneForm::streamed;
  EXPECT_TRUE(is_streamed(layer, {8, 4096}, 4, config, 1));
  config.form = FinetuneForm::automatic;
  config.rounding = WeightSolver::gptq;
  EXPECT_FALSE(is_streamed(layer, {8, 4096}, 4, config, 1));
}

TEST(Memory, IsSharedOutOrRefusedWithTheSmallestBudget) {
  const Model model = float_model(), quantized = quantized_model().model;
  const auto layers = found().layers;
  const auto types = exec::infer_value_types(runtime(), model);
  FinetuneConfig config;
  config.rounding = WeightSolver::gptq;
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
