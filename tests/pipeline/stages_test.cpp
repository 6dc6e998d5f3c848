#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/formats.h"
#include "config/presets.h"
#include "data/support.h"
#include "detent/calibrate.h"
#include "detent/plan.h"
#include "detent/profile.h"
#include "detent/quantize.h"
#include "exec/support.h"
#include "onnx/write.h"
#include "pipeline/search.h"
#include "pipeline/search_points.h"
#include "pipeline/stages.h"

namespace detent::pipeline {
namespace {

// Which stages each format goes through, told from the table alone: no model, no runtime.

using Names = std::vector<std::string>;

Recipe recipe(QuantizeOptions options, bool with_samples) {
  if (with_samples) options.calibration_data = "samples";
  return recipe_of_options(options);
}

Names names_of(const Recipe& made) {
  Names names;
  for (const auto& stage : stages()) {
    if (has(stage, made)) names.emplace_back(stage.name);
  }
  return names;
}

Names stages_of(const std::string& format, bool with_samples) {
  return names_of(recipe(options_of_format(format), with_samples));
}

TEST(Stages, OfIntegers) {
  EXPECT_EQ(stages_of("int8", true),
            (Names{"read the model", "claim the output", "rewrite the graph", "place pairs",
                   "leave in float what is faster so", "calibrate", "measure, and apply remedies",
                   "emit pairs, and tune weights", "leave the rest to rank 0", "write and prove", "choose again",
                   "time", "compare on more samples"}));
}

TEST(Stages, OfScalesThatAreFoundWhileTheModelRuns) {
  EXPECT_EQ(stages_of("int8-dynamic", false),
            (Names{"leave all to rank 0", "read the model", "claim the output", "rewrite the graph",
                   "emit dynamic operators", "write and prove", "time"}));
}

TEST(Stages, OfBlocks) {
  EXPECT_EQ(stages_of("q4", false),
            (Names{"read the model", "claim the output", "put the graph in order", "fold computed weights",
                   "place blocks", "share out blocks", "leave the rest to rank 0", "emit blocks", "write and prove",
                   "see whether it runs here", "time"}));
}

TEST(Stages, OfBlocksAmongFloatsOf16Bits) {
  EXPECT_EQ(stages_of("q4f16", true),
            (Names{"read the model", "claim the output", "put the graph in order", "fold computed weights",
                   "place blocks", "open the samples", "solve blocks", "observe the cache", "share out blocks",
                   "leave the rest to rank 0", "emit blocks", "hand the rest on", "select floats", "observe floats",
                   "convert floats", "write and prove", "compare"}));
}

TEST(Stages, OfFloats) {
  EXPECT_EQ(stages_of("fp16", true),
            (Names{"leave all to rank 0", "read the model", "claim the output", "rewrite the graph", "select floats",
                   "observe floats", "convert floats", "write and prove", "compare"}));
}

TEST(Stages, OfMixtures) {
  QuantizeOptions options;
  options.config = preset_config("balanced");
  options.node_formats = {"fc=q4", "^.*conv.*=int8"};
  EXPECT_EQ(names_of(recipe(options, true)),
            (Names{"read the model", "claim the output", "rewrite the graph", "check the samples", "place pairs",
                   "calibrate", "measure, and apply remedies", "tune weights", "leave the rest to rank 0",
                   "mix formats", "write and prove", "time", "compare"}));
  options.node_formats = {"fc=q4", "^.*gate.*=int8-dynamic"};
  EXPECT_EQ(names_of(recipe(options, false)),
            (Names{"read the model", "claim the output", "rewrite the graph", "leave the rest to rank 0", "mix formats",
                   "write and prove", "time"}));
}

// Whatever is asked for, a model is read once, and one file is written and proved.
TEST(Stages, WriteOneFile) {
  for (const auto& format : config::formats()) {
    for (const bool with_samples : {true, false}) {
      const auto names = stages_of(std::string(format.name), with_samples);
      EXPECT_EQ(std::count(names.begin(), names.end(), "read the model"), 1) << format.name;
      EXPECT_EQ(std::count(names.begin(), names.end(), "write and prove"), 1) << format.name;
    }
  }
}

// What decides the size of the file tells of it beforehand; all that comes before decides what there is to place.
TEST(Stages, AreInEachPlan) {
  for (const auto& format : config::formats()) {
    const auto made = recipe(options_of_format(std::string(format.name)), true);
    for (const auto& stage : stages()) {
      if (!has(stage, made)) continue;
      for (const auto* begin : {"read", "claim", "rewrite", "place", "calibrate", "emit", "convert", "mix"}) {
        const bool tells = stage.predict != nullptr || !stage.name.starts_with(begin);
        EXPECT_TRUE(tells) << format.name << ": " << stage.name;
      }
    }
  }
}

}  // namespace
}  // namespace detent::pipeline

namespace detent {
namespace {

// Plans beside what they plan: the model, its samples and the run itself.

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

// As the formats alone of a search do.
TEST_F(PlanTest, ARunTakesWhatAnotherHasObserved) {
  auto own = options();
  own.accuracy.sensitivity = SensitivityMode::off;
  own.bench = false;
  std::map<std::string, calibration::Statistics> observed;
  const pipeline::SharedByRuns shared{.observed = &observed};
  EXPECT_EQ(pipeline::run_stages(own, shared).samples, 3U);
  ASSERT_EQ(observed.size(), 1U);
  const auto file = read_small_file(own.output, "model");
  observed.begin()->second.samples = 7;  // by which they are known again
  EXPECT_EQ(pipeline::run_stages(own, shared).samples, 7U);
  EXPECT_EQ(read_small_file(own.output, "model"), file);
  own.config.exclude_nodes = {"product4"};  // whose values are not observed then
  EXPECT_EQ(pipeline::run_stages(own, shared).samples, 3U);
  EXPECT_EQ(observed.size(), 2U);
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
  tuned.finetune.solver = WeightSolver::adaround;
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
  on_device.finetune.solver = WeightSolver::gptq;
  const Plan planned = plan(on_device);
  EXPECT_EQ(planned.device.devices, 1U);
  EXPECT_EQ(planned.device.budget, std::uint64_t{1} << 30);
  EXPECT_GT(planned.device.calibration_counters, 0U);
  EXPECT_EQ(planned.device.layers.size(), 5U);
  EXPECT_TRUE(planned.device.fits());
  on_device.device.memory_budget = 1000;
  EXPECT_FALSE(plan(on_device).device.fits());
}

// Profiles that a program holds itself, around runs of detent.

using Steps = std::vector<std::string>;

Steps steps_of(const fs::path& yaml) {
  const YAML::Node root = YAML::LoadFile(yaml);
  Steps steps;
  for (const auto& record : root["memory_usage"]) steps.push_back(record["step"].as<std::string>());
  return steps;
}

std::size_t position(const Steps& steps, const std::string& step, std::size_t from = 0) {
  const auto found = std::find(steps.begin() + static_cast<std::ptrdiff_t>(from), steps.end(), step);
  EXPECT_NE(found, steps.end()) << step;
  return static_cast<std::size_t>(found - steps.begin());
}

// A model and a sample in a folder of their own.
class ProfileOfARun : public testing::Test {
 protected:
  ProfileOfARun() {
    using namespace graph::test;
    const auto model = make_model({{"Conv", "c", {"x", "w"}, {"a"}}, {"Relu", "r", {"a"}, {"y"}}},
                                  {floats("w", {4, 3, 1, 1}, Floats(12, 0.25F))}, 17, {value("x", {1, 3, 4, 4})},
                                  {value("y", {1, 4, 4, 4})});
    onnx::write_model(model, at("model.onnx"), {});
    std::ofstream(at("x.npy"), std::ios::binary) << data::test::counting({1, 3, 4, 4});
  }

  fs::path at(const std::string& name) const { return folder_.path() / name; }

  QuantizeOptions quantize_options() const {
    QuantizeOptions options;
    options.model = at("model.onnx");
    options.output = at("out.onnx");
    options.calibration_data = at("x.npy");
    options.runtime = exec::test::runtime_library();
    return options;
  }

  TempDir folder_;
};

TEST_F(ProfileOfARun, StagesNestInTheCallersScopes) {
  Profiler profiler(at("profile.yaml"));
  {
    const auto mine = profiler.scope("my experiment");
    profiler.checkpoint("model chosen");
    auto options = quantize_options();
    options.profiler = &profiler;
    const auto result = quantize(options);
    EXPECT_EQ(result.stages.front().name, "Pre-process");
  }
  profiler.finish();
  const Steps steps = steps_of(at("profile.yaml"));
  const std::size_t opened = position(steps, "my experiment Start");
  const std::size_t calibrated = position(steps, "Calibration End");
  EXPECT_LT(opened, position(steps, "model chosen"));
  EXPECT_LT(position(steps, "model chosen"), position(steps, "Pre-process Start"));
  EXPECT_LT(calibrated, position(steps, "my experiment End"));
  EXPECT_EQ(steps.back(), "End");
  EXPECT_EQ(std::count(steps.begin(), steps.end(), "End"), 1);
  EXPECT_EQ(profiler.stages().front().name, "my experiment");
  EXPECT_GE(profiler.stages().front().seconds, profiler.stages().at(1).seconds);
  EXPECT_GT(profiler.peak_memory(), 0u);
}

TEST_F(ProfileOfARun, SeveralRunsShareAFile) {
  Profiler profiler(at("profile.yaml"));
  CalibrateOptions calibration;
  calibration.model = at("model.onnx");
  calibration.output = at("model.stats");
  calibration.calibration_data = at("x.npy");
  calibration.runtime = exec::test::runtime_library();
  calibration.profiler = &profiler;
  const auto calibrated = calibrate(calibration);

  auto options = quantize_options();
  options.statistics = at("model.stats");
  options.profiler = &profiler;
  options.report = at("report.html");
  options.trace = at("trace.json");
  const auto quantized = quantize(options);
  profiler.finish();

  EXPECT_EQ(profiler.stages().size(), calibrated.stages.size() + quantized.stages.size());
  const Steps steps = steps_of(at("profile.yaml"));
  position(steps, "Pre-process Start", position(steps, "Post-process End"));
  EXPECT_GT(fs::file_size(at("report.html")), 0u);
  EXPECT_GT(fs::file_size(at("trace.json")), 0u);
}

TEST_F(ProfileOfARun, AFailedRunLeavesTheCallersProfileOpen) {
  Profiler profiler(at("profile.yaml"));
  auto options = quantize_options();
  options.config.op_types = {"Nothing"};
  options.profiler = &profiler;
  EXPECT_THROW(quantize(options), Error);
  profiler.checkpoint("after the failure");
  const Steps steps = steps_of(at("profile.yaml"));
  EXPECT_LT(position(steps, "Pre-process End"), position(steps, "after the failure"));
}

TEST_F(ProfileOfARun, OnePlaceForTheProfile) {
  Profiler profiler;
  auto options = quantize_options();
  options.profiler = &profiler;
  options.profile = at("profile.yaml");
  try {
    quantize(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
  }
  EXPECT_FALSE(fs::exists(at("profile.yaml")));
}

}  // namespace
}  // namespace detent

namespace detent::pipeline {
namespace {

SearchPoint point(bool single, double error, double seconds, std::uint64_t bytes) {
  SearchPoint made;
  made.single = single;
  made.error = error;
  made.seconds = seconds;
  made.bytes = bytes;
  return made;
}

// Whether each is on the front, as in "10".
std::string front_of(std::vector<SearchPoint> points) {
  mark_front(points);
  std::string on;
  for (const auto& each : points) on += each.on_front ? '1' : '0';
  return on;
}

TEST(MarkFront, AMixtureHasToBeatAFormatAloneClearly) {
  const auto single = point(true, 1e-3, 1, 1000);
  EXPECT_EQ(front_of({single, point(false, 0.6e-3, 1, 1000)}), "11");
  EXPECT_EQ(front_of({single, point(false, 0.45e-3, 1, 1000)}), "01");
  EXPECT_EQ(front_of({single, point(false, 1e-3, 1, 950)}), "11");
  EXPECT_EQ(front_of({single, point(false, 1e-3, 0.85, 1005)}), "01");
  EXPECT_EQ(front_of({single, point(false, 0.1e-3, 1.05, 1000)}), "11");  // which is slower
}

TEST(MarkFront, OfTwoMixturesOnePercentDecides) {
  const auto mixture = point(false, 1e-3, 1, 1000);
  EXPECT_EQ(front_of({mixture, point(false, 1e-3, 1, 980)}), "01");
  EXPECT_EQ(front_of({mixture, point(false, 1e-3, 1, 995)}), "11");
  EXPECT_EQ(front_of({mixture, point(true, 1e-3, 1, 980)}), "01");
}

SearchPoint named(std::string name, std::vector<std::string> formats = {}) {
  SearchPoint point;
  point.name = std::move(name);
  point.node_formats = std::move(formats);
  return point;
}

TEST(SharedPoints, AProcessThatIsAloneWantsItsOwn) {
  const auto wanted = broadcast_points(nullptr, {named("a16w8"), named("mixed", {"a=q4", "b=int8"}), named("q2")}, {});
  ASSERT_EQ(wanted.size(), 3U);
  EXPECT_EQ(wanted[0].name, "a16w8");
  EXPECT_TRUE(wanted[0].node_formats.empty());
  EXPECT_EQ(wanted[1].node_formats, (std::vector<std::string>{"a=q4", "b=int8"}));
  EXPECT_EQ(wanted[2].name, "q2");
}

TEST(SharedPoints, FiguresComeAsTheyWere) {
  const std::vector<SearchPoint> points{named("one"), named("two")};
  PointShare share{{{points[0], ""}, {points[1], "no such form: \xff"}}, 7, false};
  auto& made = share.attempts[0].point;
  made.bytes = 123;
  made.error = 0.1 + 0.2;
  made.sqnr_db = std::numeric_limits<double>::infinity();
  made.value = -0.0;
  const auto read = read_share(1, written(share), points);
  ASSERT_EQ(read.attempts.size(), 2U);
  EXPECT_EQ(read.inferences, 7U);
  EXPECT_FALSE(read.cut_off);
  EXPECT_EQ(read.attempts[0].point.name, "one");
  EXPECT_EQ(read.attempts[0].point.bytes, 123U);
  EXPECT_EQ(read.attempts[0].point.error, made.error);
  EXPECT_EQ(read.attempts[0].point.sqnr_db, made.sqnr_db);
  ASSERT_TRUE(read.attempts[0].point.value);
  EXPECT_TRUE(std::signbit(*read.attempts[0].point.value));
  EXPECT_EQ(read.attempts[1].reason, "no such form: \xff");
  EXPECT_FALSE(read.attempts[1].point.value);
  EXPECT_TRUE(read_share(1, written({{}, 3, true}), points).cut_off);
}

TEST(SharedPoints, OtherMessagesAreRefused) {
  const std::vector<SearchPoint> points{named("one")};
  const auto whole = written({{{points[0], ""}}, 0, false});
  const std::string text(as_text(whole));
  for (std::size_t end = 0; end < text.size(); ++end)
    EXPECT_THROW(read_share(1, as_byte_span(text.substr(0, end)), points), Error) << end;
  EXPECT_THROW(read_share(1, whole, {}), Error);
  EXPECT_THROW(
      read_share(1, as_byte_span(std::string(R"({"attempts":{"a":1},"cut_off":false,"inferences":1})")), points),
      Error);
}

}  // namespace
}  // namespace detent::pipeline
