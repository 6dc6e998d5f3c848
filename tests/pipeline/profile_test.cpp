// Profiles that a program holds itself, around runs of detent.
#include "detent/profile.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "data/support.h"
#include "detent/calibrate.h"
#include "detent/quantize.h"
#include "exec/support.h"
#include "onnx/write.h"

namespace detent {
namespace {

namespace fs = std::filesystem;
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
