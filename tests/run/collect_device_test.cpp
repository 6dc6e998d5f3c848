// A calibration whose device is the host: the sweep, its checkpoints and its notes are the real ones.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "calibration/device_support.h"
#include "calibration/statistics_file.h"
#include "data/support.h"
#include "exec/support.h"
#include "onnx/write.h"
#include "run/collect.h"
#include "run/samples/samples.h"

namespace detent::run {
namespace {

namespace fs = std::filesystem;

class CollectOnADevice : public testing::Test {
 protected:
  CollectOnADevice() {
    using namespace graph::test;
    // Arithmetic that every provider and tuning rounds alike.
    const auto model =
        make_model({{"Add", "a", {"x", "w"}, {"s"}}, {"Relu", "r", {"s"}, {"t"}}, {"Mul", "m", {"t", "s"}, {"y"}}},
                   {floats("w", {4}, {0.5F, -2, 0.25F, -1})}, 17, {value("x", {3, 4})}, {value("y", {3, 4})});
    onnx::write_model(model, at("model.onnx"), {});
    fs::create_directory(at("samples"));
    for (int i = 0; i < 5; ++i) {
      std::ofstream(at(fmt::format("samples/{}.npy", i)), std::ios::binary)
          << data::test::counting({3, 4}, static_cast<float>(i));
    }
    profile::Profiler profiler;
    prepared_ =
        prepare(onnx::read_model(at("model.onnx")), QuantConfig(), exec::test::runtime(), folder_.path(), profiler, {});
    QuantConfig config;
    config.op_types = {"Add", "Mul", "Relu"};
    placement_ = place_qdq_pairs(prepared_, config);
  }

  fs::path at(const std::string& name) const { return folder_.path() / name; }

  std::string collected(CollectOptions options) {
    const auto source = open_samples(at("samples"), nullptr, input_specs(prepared_.model), {});
    options.histograms = true;
    return calibration::encode(
        collect({exec::test::runtime(), {}, folder_.path()}, prepared_, placement_, *source, options));
  }

  TempDir folder_;
  Prepared prepared_;
  quantization::Placement placement_;
};

TEST_F(CollectOnADevice, GivesTheStatisticsOfTheHost) {
  const std::string expected = collected({});
  calibration::test::HostDevice device;
  OnDevice left{.directory = folder_.path(), .nodes = {}};
  EXPECT_EQ(collected({.device = &device, .on_device = &left}), expected);
  EXPECT_TRUE(left.nodes.empty()) << "all ran on the device";
}

TEST_F(CollectOnADevice, GoesThroughSegments) {
  const std::string expected = collected({});
  store::Spool spool({.directory = folder_.path()});
  calibration::test::HostDevice device;
  OnDevice left{.directory = folder_.path(), .nodes = {}};
  EXPECT_EQ(collected({.cuts = {1, 2}, .spool = &spool, .device = &device, .on_device = &left}), expected);
}

TEST_F(CollectOnADevice, CountsVotesRunByRun) {
  const std::string expected = collected({.votes = true});
  calibration::test::HostDevice device;
  OnDevice left{.directory = folder_.path(), .nodes = {}};
  EXPECT_EQ(collected({.votes = true, .device = &device, .on_device = &left}), expected);
}

TEST(DeviceNotes, SayWhatRanWhere) {
  const calibration::test::HostDevice device;
  DeviceConfig config{{0}, {}, {}, {}};
  EXPECT_EQ(device_notes(config, device, {.directory = {}, .nodes = {}, .copies = 2}),
            std::vector<std::string>{"calibration ran on host:0 (threads one by one)"});
  config.cuda = {1, 0};
  config.precision = DevicePrecision::bfloat16;
  const auto notes =
      device_notes(config, device, {.directory = {}, .nodes = {{"Gather", 2}, {"Shape", 1}}, .copies = 1});
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0], "calibration ran on host:0 (threads one by one), the first of the devices, in float32");
  EXPECT_EQ(
      notes[1],
      "ONNX Runtime ran 3 nodes on the CPU nevertheless (2 Gather, 1 Shape), with 1 copy between it and the device "
      "in each run");
}

TEST(PlaceOfPasses, IsTheFirstDeviceWhereTheRuntimeHasIt) {
  const auto& runtime = exec::test::runtime();
  EXPECT_EQ(inference_device_of(DeviceConfig()), nullptr);
  EXPECT_EQ(inference_device_note(DeviceConfig(), runtime, "trials"), "");
  const DeviceConfig config{{1, 0}, 4096, DevicePrecision::tf32, {}};
  const auto place = inference_device_of(config, 4);
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(place->ordinal, 1);
  EXPECT_EQ(place->memory_limit, 1024U);
  EXPECT_TRUE(place->tf32);
  if (runtime.has_provider(place->provider)) GTEST_SKIP() << "this ONNX Runtime has CUDA's provider";
  EXPECT_EQ(inference_device_of(config, runtime), nullptr);
  EXPECT_EQ(inference_device_note(config, runtime, "trials"),
            "trials ran on the CPU: this ONNX Runtime was built without CUDAExecutionProvider");
}

}  // namespace
}  // namespace detent::run
