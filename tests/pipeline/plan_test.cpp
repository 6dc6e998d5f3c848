// Plans beside what they plan: the model, its samples and the run itself.
#include "detent/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/file.h"
#include "data/support.h"
#include "exec/support.h"
#include "onnx/write.h"

namespace detent {
namespace {

namespace fs = std::filesystem;
using namespace graph::test;  // NOLINT

constexpr std::int64_t kWidth = 64;

// Five products with activations between them, so that it can be cut anywhere.
onnx::Model products(const std::vector<std::int64_t>& input) {
  std::vector<onnx::Node> nodes;
  std::vector<onnx::Tensor> weights;
  std::string x = "x";
  for (int i = 0; i < 5; ++i) {
    const std::string n = std::to_string(i);
    Floats values(kWidth * kWidth);
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = 0.01F * static_cast<float>((k * 7 + 3) % 23) - 0.1F;
    weights.push_back(floats("w" + n, {kWidth, kWidth}, values));
    nodes.push_back({"MatMul", "product" + n, {x, "w" + n}, {"p" + n}});
    x = i == 4 ? "y" : "r" + n;
    nodes.push_back({"Relu", "relu" + n, {"p" + n}, {x}});
  }
  return make_model(nodes, weights, 17, {value("x", input)}, {value("y", input)});
}

class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    onnx::write_model(products({8, kWidth}), at("model.onnx"), {});
    onnx::write_model(products({-1, kWidth}), at("dynamic.onnx"), {});
    fs::create_directory(at("samples"));
    for (int i = 0; i < 3; ++i) {
      std::ofstream(at("samples/" + std::to_string(i) + ".npy"), std::ios::binary)
          << data::test::counting({8, kWidth}, static_cast<float>(i));
    }
    fs::create_directory(at("work"));
  }

  fs::path at(const std::string& name) const { return folder_.path() / name; }

  QuantizeOptions options() const {
    QuantizeOptions options;
    options.model = at("model.onnx");
    options.output = at("out.onnx");
    options.calibration_data = at("samples");
    options.config = preset_config("balanced");
    options.optimize_for = OptimizeFor::size;  // else this machine may run all of these products faster in float
    options.method = preset_method("balanced");
    options.runtime = exec::test::runtime_library();
    options.resources.work_dir = at("work");
    return options;
  }

  TempDir folder_;
};

std::size_t nodes_in(const Plan& plan) {
  return std::accumulate(plan.segments.begin(), plan.segments.end(), std::size_t{0},
                         [](std::size_t sum, const auto& segment) { return sum + segment.nodes; });
}

TEST_F(PlanTest, KnowsTheWorkOfASampleAndWritesNothing) {
  const Plan planned = plan(options());
  EXPECT_EQ(planned.samples, 3U);
  EXPECT_EQ(planned.inputs, (std::vector<std::pair<std::string, std::string>>{{"x", "8x64"}}));
  EXPECT_EQ(planned.macs, 5U * 8 * kWidth * kWidth);
  EXPECT_GE(planned.flops, 2 * planned.macs);
  EXPECT_GT(planned.observed_elements, 0U);
  EXPECT_GT(planned.calibration_seconds, 0);
  EXPECT_GT(planned.measuring_seconds, planned.calibration_seconds) << "about ten inferences for each sample";
  EXPECT_FALSE(fs::exists(at("out.onnx")));
  EXPECT_TRUE(fs::is_empty(at("work")));
}

TEST_F(PlanTest, MemoryIsTheSumOfItsParts) {
  const Plan planned = plan(options());
  std::uint64_t sum = 0;
  for (const auto& part : planned.memory) {
    EXPECT_GT(part.bytes, 0U) << part.what;
    sum += part.bytes;
  }
  EXPECT_EQ(planned.stages.front().bytes, sum);
  EXPECT_GE(planned.peak_memory, sum);
  EXPECT_LE(planned.peak_memory, planned.memory_budget);
}

TEST_F(PlanTest, AgreesWithTheRun) {
  auto unmeasured = options();  // measuring may leave products in float
  unmeasured.accuracy.sensitivity = SensitivityMode::off;
  unmeasured.optimize_for = OptimizeFor::size;
  const Plan planned = plan(unmeasured);
  const QuantizeResult result = quantize(unmeasured);
  EXPECT_EQ(planned.nodes_quantized, result.nodes_quantized);
  EXPECT_EQ(planned.nodes_in_float, result.nodes_in_float);
  EXPECT_EQ(planned.samples, result.samples);
  EXPECT_LT(static_cast<double>(planned.output_bytes), 1.5 * static_cast<double>(result.model_bytes_after));
  EXPECT_GT(static_cast<double>(planned.output_bytes), 0.6 * static_cast<double>(result.model_bytes_after));
}

TEST_F(PlanTest, SegmentsFollowEachOtherAndHoldAllNodes) {
  const Plan whole = plan(options());
  ASSERT_EQ(whole.segments.size(), 1U);
  EXPECT_EQ(nodes_in(whole), 10U);
  EXPECT_EQ(whole.waiting_bytes, 0U);
  for (const std::size_t count : {2U, 3U, 4U}) {
    auto cut = options();
    cut.resources.segments = count;
    const Plan planned = plan(cut);
    EXPECT_EQ(planned.segments.size(), count);
    EXPECT_EQ(nodes_in(planned), 10U);
    EXPECT_EQ(planned.segments.front().first, "product0");
    EXPECT_EQ(planned.segments.back().last, "relu4");
    EXPECT_GE(planned.waiting_bytes, 3 * 8 * kWidth * sizeof(float)) << "of all samples";
    EXPECT_EQ(planned.macs, whole.macs);
    EXPECT_EQ(planned.output_bytes, whole.output_bytes);
    cut.resources.memory_level = MemoryLevel::disk;
    EXPECT_GE(plan(cut).waiting_on_disk, 3 * 8 * kWidth * sizeof(float));
  }
}

TEST_F(PlanTest, ABudgetThatCannotBeKeptIsRefused) {
  auto tight = options();
  tight.resources.memory_budget = 1 << 20;
  data::test::expect_error([&] { plan(tight); }, {"--memory-budget"}, ErrorKind::resource);
}

TEST_F(PlanTest, DynamicShapesNeedSamples) {
  auto dynamic = options();
  dynamic.model = at("dynamic.onnx");
  EXPECT_EQ(plan(dynamic).macs, plan(options()).macs);
  dynamic.calibration_data.reset();
  const Plan unknown = plan(dynamic);
  EXPECT_EQ(unknown.macs, 0U);
  EXPECT_TRUE(std::any_of(unknown.notes.begin(), unknown.notes.end(),
                          [](const auto& note) { return note.find("--calibration-data") != std::string::npos; }));
}

TEST_F(PlanTest, FineTuningNamesItsHeaviestLayer) {
  EXPECT_TRUE(plan(options()).finetune.only_if_needed);
  auto tuned = options();
  tuned.finetune.rounding = WeightSolver::adaround;
  const Plan planned = plan(tuned);
  EXPECT_FALSE(planned.finetune.only_if_needed);
  EXPECT_EQ(planned.finetune.layers, 5U);
  EXPECT_GT(planned.finetune.heaviest_bytes, kWidth * kWidth * sizeof(float));
  EXPECT_GT(planned.finetune.seconds, 0);
}

TEST_F(PlanTest, ADeviceWithABudgetNeedsNotBeThere) {
  auto on_device = options();
  on_device.device.cuda = {0};
  on_device.device.memory_budget = std::uint64_t{1} << 30;
  on_device.finetune.rounding = WeightSolver::gptq;
  const Plan planned = plan(on_device);
  EXPECT_EQ(planned.device.devices, 1U);
  EXPECT_EQ(planned.device.budget, std::uint64_t{1} << 30);
  EXPECT_GT(planned.device.calibration_counters, 0U);
  EXPECT_EQ(planned.device.layers.size(), 5U);
  EXPECT_TRUE(planned.device.fits());
  on_device.device.memory_budget = 1000;
  EXPECT_FALSE(plan(on_device).device.fits());
}

}  // namespace
}  // namespace detent
