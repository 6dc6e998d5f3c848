// Sessions on a device. Its part is played by the CPU's provider, so that all but the provider itself is real.
#include <algorithm>
#include <cstring>

#include "exec/ort.h"
#include "exec/support.h"

namespace detent::exec::test {
namespace {

struct Host {
  shim::Device device;
  int copies = 0;

  Host() {
    device.provider = "CPUExecutionProvider";
    device.memory = "Cpu";
    device.copy = [this](void* to, const void* from, std::size_t bytes) {
      std::memcpy(to, from, bytes);
      ++copies;
    };
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  SessionOptions options(bool keep_results) const {
    SessionOptions options{SessionMode::lean, 1, {}};
    options.device = &device;
    options.keep_results = keep_results;
    return options;
  }
};

struct DeviceRecorder : data::TapReceiver {
  std::vector<std::pair<std::size_t, Array>> seen;
  void receive(std::size_t, const data::TensorView&, const data::ParallelFor&) override {
    FAIL() << "a tensor of the host";
  }
  void receive_on_device(std::size_t tap, const data::DeviceTensorView& tensor) override {
    const auto* first = static_cast<const std::byte*>(tensor.address);
    auto owner = std::make_shared<std::vector<std::byte>>(first, first + tensor.size);
    seen.emplace_back(tap, Array{tensor.type, {tensor.shape.begin(), tensor.shape.end()}, *owner, owner});
  }
};

Model chain() {
  return make_model({{"Relu", "", {"x"}, {"r"}}, {"Exp", "", {"r"}, {"e"}}, {"Add", "", {"e", "r"}, {"y"}}}, {}, 13,
                    {value("x", {2, 3})}, {value("y", {2, 3})});
}

TEST(DeviceSession, HandsOutTheSameTensorsAndResults) {
  const std::vector<Array> inputs{random_floats({2, 3})};
  Recorder plain;
  const auto expected = run(chain(), inputs, tap({"x", "r", "e", "y"}), &plain);
  const Host host;
  DeviceRecorder recorder;
  const auto out = run(chain(), inputs, tap({"x", "r", "e", "y"}), &recorder, host.options(true));
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(bytes_of(out[0]), bytes_of(expected[0]));
  ASSERT_EQ(recorder.seen.size(), plain.seen.size());
  for (std::size_t i = 0; i < plain.seen.size(); ++i) {
    EXPECT_EQ(recorder.seen[i].first, plain.seen[i].first);
    EXPECT_EQ(recorder.seen[i].second.shape, plain.seen[i].second.shape);
    EXPECT_EQ(bytes_of(recorder.seen[i].second), bytes_of(plain.seen[i].second));
  }
}

TEST(DeviceSession, LeavesResultsWhereTheyAre) {
  const std::vector<Array> inputs{random_floats({2, 3})};
  const Host host;
  DeviceRecorder recorder;
  Session session(runtime(), emit(chain(), tap({"r", "y"})), "the model", host.options(false));
  for (int sample = 0; sample < 3; ++sample) EXPECT_TRUE(session.run(inputs, "the sample", &recorder).empty());
  EXPECT_EQ(recorder.seen.size(), 6U);
}

TEST(DeviceSession, CopiesWhereATensorIsStillNeeded) {
  // The body's output is the captured tensor itself.
  const Model model = make_model(
      {{"Relu", "", {"x"}, {"r"}}, {"Exp", "", {"r"}, {"e"}}, if_node("c", "r", "e", "z"), {"Neg", "", {"z"}, {"y"}}},
      {}, 13, {value("x"), value("c", {}, DataType::boolean)});
  const std::vector<Array> inputs{random_floats({2}, 3), boolean(true)};
  Recorder plain;
  run(model, inputs, tap({"r", "e", "z"}), &plain);
  const Host host;
  DeviceRecorder recorder;
  run(model, inputs, tap({"r", "e", "z"}), &recorder, host.options(true));
  ASSERT_EQ(recorder.seen.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(bytes_of(recorder.seen[i].second), bytes_of(plain.seen[i].second));
}

TEST(DeviceSession, RefusesReceiversOfTheHost) {
  const Host host;
  Recorder recorder;
  expect_error(
      [&] {
        run(chain(), {random_floats({2, 3})}, tap({"r"}), &recorder, host.options(false));
      },
      "a receiver of host tensors was given one on a device", ErrorKind::internal);
}

TEST(DeviceSession, NeedsARuntimeWithItsProvider) {
  runtime();  // which brings the functions
  const auto available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), "CUDAExecutionProvider") != available.end())
    GTEST_SKIP() << "this ONNX Runtime has CUDA's provider";
  EXPECT_FALSE(runtime().has_provider("CUDAExecutionProvider"));
  const shim::Device cuda;
  for (const bool with_taps : {true, false}) {
    SessionOptions options{SessionMode::lean, 1, {}};
    if (with_taps) options.device = &cuda;
    if (!with_taps) options.place = std::make_shared<shim::Device>(cuda);
    expect_error(
        [&] {
          run(chain(), {random_floats({2, 3})}, {}, nullptr, options);
        },
        "was built without CUDAExecutionProvider", ErrorKind::device);
  }
}

TEST(DeviceSession, ComputesThereForReceiversOfTheHost) {
  const std::vector<Array> inputs{random_floats({2, 3})};
  Recorder plain, there;
  const auto expected = run(chain(), inputs, tap({"r", "e"}), &plain);
  SessionOptions options{SessionMode::lean, 1, {}};
  options.place = std::make_shared<shim::Device>(Host().device);
  const auto out = run(chain(), inputs, tap({"r", "e"}), &there, options);
  EXPECT_EQ(bytes_of(out[0]), bytes_of(expected[0]));
  ASSERT_EQ(there.seen.size(), plain.seen.size());
  for (std::size_t i = 0; i < plain.seen.size(); ++i)
    EXPECT_EQ(bytes_of(there.seen[i].second), bytes_of(plain.seen[i].second));
}

TEST(DeviceSession, TellsWhichProviderRanANode) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "device-record";
  SessionOptions options{SessionMode::lean, 1, {}};
  options.record = file;
  Session session(runtime(), emit(chain()), "the model", options);
  session.run(std::vector<Array>{random_floats({2, 3})}, "the sample");
  const auto nodes = session.end_recording();
  ASSERT_FALSE(nodes.empty());
  for (const auto& node : nodes) EXPECT_EQ(node.provider, "CPUExecutionProvider") << node.name;
}

}  // namespace
}  // namespace detent::exec::test
