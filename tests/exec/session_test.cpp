#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "exec/guarded_session.h"
#include "exec/ort.h"
#include "exec/runtime.h"
#include "exec/support.h"
#include "exec/timing.h"

namespace detent::exec::test {
namespace {

// Sessions, probing, constants, and weights that the runtime reads straight from their files.

class SessionTest : public onnx::test::ModelTest {};

Model scale_by(const onnx::Tensor& w) {
  return make_model({{"Mul", "", {"x", "w"}, {"y"}}}, {w}, 13, {value("x", {1000})}, {value("y", {1000})});
}

TEST_F(SessionTest, WeightsStayInTheirFiles) {
  Floats w(1000);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i);
  const Model made = scale_by(floats("w", {1000}, w));
  const auto want = bytes_of(run(made, {random_floats({1000})})[0]);
  for (const auto threshold : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(100)}) {
    onnx::write_model(made, at("model.onnx"), {threshold});
    const Model model = onnx::read_model(at("model.onnx"));
    const std::string emitted = emit(model);
    EXPECT_LT(emitted.size(), 1000U) << "the graph only refers to the weight";
    EXPECT_EQ(bytes_of(run(model, {random_floats({1000})})[0]), want);
  }
}

TEST_F(SessionTest, OutputsThatAreInputsLiveAsLong) {
  const Model model =
      make_model({{"Relu", "", {"x"}, {"y"}}}, {}, 13, {value("x", {4})}, {value("x", {4}), value("y", {4})});
  const auto input = random_floats({4});
  const auto outputs = run(model, {input});
  EXPECT_EQ(outputs[0].bytes.data(), input.bytes.data());
  EXPECT_EQ(outputs[0].owner, input.owner);
  EXPECT_NE(outputs[1].owner, input.owner);
}

TEST_F(SessionTest, RefusesModelsAndInputsThatDoNotFit) {
  expect_error([&] { Session(runtime(), "garbage", "model 'a'"); }, "model 'a': ONNX Runtime");
  expect_error(
      [&] {
        run(make_model({{"NoSuchOperator", "", {"x"}, {"y"}}}), {random_floats({2})});
      },
      "NoSuchOperator");
  const Model model = make_model({{"Relu", "", {"x"}, {"y"}}}, {}, 13);
  expect_error([&] { run(model, {random_floats({3})}); }, "the sample: ONNX Runtime");
  expect_error([&] { run(model, {}); }, "0 inputs were given, the model has 1");
  expect_error([&] { run(model, {random_floats({2}), random_floats({2})}); }, "2 inputs");
  expect_error(
      [&] {
        run(model, {array_of(DataType::int64, {2}, std::vector<std::int64_t>{1, 2})});
      },
      "the sample: ONNX Runtime");
  expect_error([&] { run(model, {array_of(DataType::float32, {2}, Floats{1})}); }, "the sample: ONNX Runtime");
  expect_error([] { Runtime("/nowhere/libonnxruntime.so"); }, "cannot load ONNX Runtime", ErrorKind::device);
}

TEST_F(SessionTest, ResultsOutliveTheSession) {
  std::vector<Array> results;
  {
    Session session(
        runtime(),
        emit(make_model({{"Relu", "", {"x"}, {"y"}}}, {}, 13, {value("x", {100000})}, {value("y", {100000})})), "m");
    const std::vector<Array> inputs{array_of(DataType::float32, {100000}, Floats(100000, 2))};
    results = session.run(inputs, "s");
  }
  for (const float v : floats_of(results.at(0))) ASSERT_EQ(v, 2);
}

TEST_F(SessionTest, ProbesTypesAndShapes) {
  Model model = make_model(
      {{"MatMul", "", {"x", "w"}, {"m"}},
       {"Shape", "", {"m"}, {"s"}},
       if_node("c", "m", "m", "z"),
       {"NonZero", "", {"z"}, {"y"}}},
      {floats("w", {3, 4}, Floats(12))}, 13,
      {onnx::make_value_info("x", DataType::float32, {{{-1, "N"}, {3, ""}}}), value("c", {}, DataType::boolean)},
      {value("y", {2, -1}, DataType::int64)});
  const ValueTypes types = infer_value_types(runtime(), model);
  const auto dims = [](const graph::ValueType& t) {
    std::vector<std::int64_t> out;
    for (const auto& d : t.shape.value()) out.push_back(d.value);
    return out;
  };
  EXPECT_EQ(dims(types.at("m")), (std::vector<std::int64_t>{-1, 4}));
  EXPECT_EQ(types.at("s").type, DataType::int64);
  EXPECT_EQ(dims(types.at("w")), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(types.at("c").type, DataType::boolean);
  EXPECT_EQ(types.at("z").type, DataType::float32);
  EXPECT_EQ(dims(infer_value_types(runtime(), model, {{"x", {5, 3}}}).at("m")), (std::vector<std::int64_t>{5, 4}));
  expect_error([&] { infer_value_types(runtime(), make_model({}, {}, 13, {value("y")}, {value("y")})); },
               "has no nodes");
}

TEST_F(SessionTest, ComputesConstants) {
  Model model = make_model({{"Neg", "", {"w"}, {"a"}},
                            {"Shape", "", {"a"}, {"b"}},
                            {"Split", "", {"w"}, {"p", "q"}},
                            {"Add", "", {"x", "a"}, {"c"}},
                            {"Add", "", {"c", "q"}, {"d"}},
                            {"Reshape", "", {"d", "b"}, {"y"}}},
                           {floats("w", {2}, {1, 2})}, 13);
  const auto before = bytes_of(run(model, {random_floats({2})})[0]);
  const auto nodes = graph::constant_nodes(model, infer_value_types(runtime(), model));
  EXPECT_EQ(nodes, (std::vector<int>{0, 1, 2}));
  const auto tensors = compute_constants(runtime(), model, nodes);
  graph::replace_by_constants(model, nodes, tensors);
  EXPECT_EQ(op_types(model), (Names{"Add", "Add", "Reshape"}));
  EXPECT_EQ(onnx::test::elements<float>(initializer(model, "a")), (Floats{-1, -2}));
  EXPECT_EQ(onnx::to_int64s(initializer(model, "b")), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(bytes_of(run(model, {random_floats({2})})[0]), before);
  EXPECT_TRUE(compute_constants(runtime(), model, {}).empty());
}

TEST_F(SessionTest, ActivationsComeFromTheCache) {
  const Model model =
      make_model({{"Exp", "", {"x"}, {"a"}}, {"Neg", "", {"a"}, {"b"}}, {"MatMul", "", {"b", "b"}, {"y"}}}, {}, 13,
                 {value("x", {512, 512})}, {value("y", {512, 512})});
  const auto& cache = runtime().impl()->cache;
  const auto results = run(model, {random_floats({512, 512})});
  EXPECT_GE(cache.peak_in_use(), 2U << 20);
  EXPECT_GE(cache.in_use(), 1U << 20) << "the result";
}

// Sessions in a process of their own. Where the program is not built, they are of this process, with the same results.

class GuardedSessionTest : public onnx::test::ModelTest {
 protected:
  GuardedSessionTest() {
    const Model made = make_model({{"Mul", "", {"x", "w"}, {"y"}}, {"Shape", "", {"y"}, {"z"}}},
                                  {floats("w", {1000}, Floats(1000, 2.5F))}, 13, {value("x", {-1, 1000})},
                                  {value("y", {-1, 1000}), value("z", {2}, DataType::int64)});
    onnx::write_model(made, at("model.onnx"), {100});
  }
};

TEST_F(GuardedSessionTest, ComputesWhatASessionComputes) {
  GuardedSession guarded(runtime(), at("model.onnx"), {});
  auto plain =
      Session::of_file(runtime(), at("model.onnx"), {.tuning = SessionMode::deployed, .threads = 0, .stop = {}});
  ASSERT_EQ(guarded.inputs().size(), 1U);
  EXPECT_EQ(guarded.inputs()[0].name, "x");
  EXPECT_EQ(guarded.inputs()[0].type.type, DataType::float32);
  for (const std::int64_t rows : {1, 7, 0}) {
    const std::vector<Array> inputs{random_floats({rows, 1000})};
    const auto found = guarded.run(inputs, "a sample"), wanted = plain.run(inputs, "a sample");
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].type, wanted[i].type);
      EXPECT_EQ(found[i].shape, wanted[i].shape);
      EXPECT_EQ(bytes_of(found[i]), bytes_of(wanted[i]));
    }
  }
}

TEST_F(GuardedSessionTest, ErrorsComeThrough) {
  GuardedSession guarded(runtime(), at("model.onnx"), {});
  expect_error([&] { guarded.run(std::vector<Array>{random_floats({3})}, "sample 'a'"); }, "sample 'a'");
  expect_error([&] { GuardedSession(runtime(), at("missing.onnx"), {}); }, "missing.onnx");
  check_survives(runtime(), at("model.onnx"));
  check_survives(runtime(), at("missing.onnx"));  // loading it tells more
}

TEST_F(GuardedSessionTest, StopsWhenAsked) {
  std::stop_source source;
  source.request_stop();
  expect_error([&] { GuardedSession(runtime(), at("model.onnx"), {.stop = source.get_token()}).run({}, ""); },
               "interrupted", ErrorKind::interrupted);
}

// Taps see what a plain run computes, and change nothing of it.

Model chain() {
  Floats w(12);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = 0.25F * static_cast<float>(i) - 1;
  return make_model({{"MatMul", "mm", {"x", "w"}, {"m"}},
                     {"Relu", "", {"m"}, {"r"}},
                     {"Add", "", {"r", "m"}, {"s"}},
                     {"Reshape", "", {"s", "shape"}, {"v"}},  // shares memory with its input
                     {"Split", "", {"v"}, {"p", "q"}, {Attribute::of_int("axis", 0)}},
                     {"Sub", "", {"p", "q"}, {"y"}}},
                    {floats("w", {3, 4}, w), ints("shape", {-1})}, 13, {value("x", {2, 3})}, {value("y", {4})});
}

TEST(Tap, SeesWhatAPlainRunGives) {
  const Names all{"x", "m", "r", "s", "v", "p", "q", "y"};
  const std::vector<Array> inputs{random_floats({2, 3})};
  const auto plain = run(chain(), inputs, give({all.begin() + 1, all.end()}));
  Recorder recorder;
  const auto tapped = run(chain(), inputs, tap(all), &recorder);
  ASSERT_EQ(tapped.size(), 1U);
  EXPECT_EQ(bytes_of(tapped[0]), bytes_of(plain.back()));
  ASSERT_EQ(recorder.seen.size(), all.size());
  for (const auto& [tap, array] : recorder.seen) {
    const Array& want = tap == 0 ? inputs[0] : plain.at(tap - 1);
    EXPECT_EQ(array.type, DataType::float32);
    EXPECT_EQ(array.shape, want.shape) << all[tap];
    EXPECT_EQ(bytes_of(array), bytes_of(want)) << all[tap];
  }
}

TEST(Tap, WorksAtEveryTuning) {
  for (const SessionMode tuning : {SessionMode::lean, SessionMode::deployed, SessionMode::inspect}) {
    Recorder recorder;
    const std::vector<Array> inputs{random_floats({2, 3})};
    const auto out = run(chain(), inputs, tap({"r", "y"}), &recorder, {tuning, 1, {}});
    ASSERT_EQ(recorder.seen.size(), 2U);
    EXPECT_EQ(bytes_of(recorder.seen[1].second), bytes_of(out[0]));
  }
}

TEST(Tap, ReachesValuesThatBodiesCapture) {
  const Model model = make_model(
      {{"Relu", "", {"x"}, {"r"}}, {"Exp", "", {"r"}, {"e"}}, if_node("c", "r", "e", "z"), {"Neg", "", {"z"}, {"y"}}},
      {}, 13, {value("x"), value("c", {}, DataType::boolean)});
  for (const bool branch : {true, false}) {
    const std::vector<Array> inputs{random_floats({2}, 3), boolean(branch)};
    const auto plain = run(model, inputs, give({"r", "e", "z", "y"}));
    Recorder recorder;
    const auto tapped = run(model, inputs, tap({"r", "e", "z"}), &recorder);
    EXPECT_EQ(bytes_of(tapped[0]), bytes_of(plain[3]));
    ASSERT_EQ(recorder.seen.size(), 3U);
    for (const auto& [tap, array] : recorder.seen) EXPECT_EQ(bytes_of(array), bytes_of(plain[tap]));
  }
}

// And not what others read.
TEST(Tap, StandsBeforeANodeThatReads) {
  const std::vector<Array> inputs{random_floats({2, 3})};
  const auto plain = run(chain(), inputs, give({"m", "r", "y"}));
  EmitOptions options = tap({"m"});
  options.readers = {"r", "s"};
  Recorder recorder;
  const auto tapped = run(chain(), inputs, options, &recorder);
  EXPECT_EQ(bytes_of(tapped[0]), bytes_of(plain[2]));
  ASSERT_EQ(recorder.seen.size(), 3U);
  for (const auto& [tap, array] : recorder.seen) EXPECT_EQ(bytes_of(array), bytes_of(plain[tap == 2 ? 1 : 0])) << tap;
}

TEST(Tap, SeesEmptyAndIntegerTensors) {
  Model model = make_model({{"Shape", "", {"x"}, {"s"}}, {"Relu", "", {"x"}, {"y"}}}, {}, 13, {value("x", {0, 3})},
                           {value("y", {0, 3}), value("s", {2}, DataType::int64)});
  Recorder recorder;
  run(model, {random_floats({0, 3})}, tap({"s", "y"}), &recorder);
  ASSERT_EQ(recorder.seen.size(), 2U);
  for (const auto& [tap, array] : recorder.seen) {
    EXPECT_EQ(array.type, tap == 0 ? DataType::int64 : DataType::float32);
    EXPECT_EQ(array.bytes.size(), tap == 0 ? 16U : 0U);
  }
}

TEST(Tap, RunsPartsInParallelEachOnce) {
  struct : data::TapReceiver {
    std::array<std::atomic<int>, 100> counts{};
    void receive(std::size_t, const data::TensorView&, const data::ParallelFor& parallel) override {
      parallel(counts.size(), [&](std::size_t part) { ++counts[part]; });
    }
  } receiver;
  run(chain(), {random_floats({2, 3})}, tap({"m"}), &receiver);
  for (const auto& n : receiver.counts) EXPECT_EQ(n, 1);
}

TEST(Tap, WhatAReceiverThrowsComesOut) {
  struct Thrower : data::TapReceiver {
    int runs = 0;
    void receive(std::size_t tap, const data::TensorView&, const data::ParallelFor&) override {
      if (tap == 1 && ++runs == 1) throw std::domain_error("NaN in 's'");
    }
  } thrower;
  Session session(runtime(), emit(chain(), tap({"m", "s"})), "the model", {});
  const std::vector<Array> inputs{random_floats({2, 3})};
  try {
    session.run(inputs, "sample 1", &thrower);
    ADD_FAILURE() << "no error";
  } catch (const std::domain_error& e) {
    EXPECT_STREQ(e.what(), "NaN in 's'");
  }
  EXPECT_NO_THROW(session.run(inputs, "sample 2", &thrower)) << "the session lives on, and the error is told once";
}

TEST(Tap, NamesStayApart) {
  Model model =
      make_model({{"Relu", "r@tap", {"x"}, {"r@raw"}}, {"Neg", "", {"r@raw"}, {"r"}}, {"Exp", "", {"r"}, {"y"}}});
  Recorder recorder;
  run(model, {random_floats({2})}, tap({"r", "r@raw", "x"}), &recorder);
  EXPECT_EQ(recorder.seen.size(), 3U);
}

TEST(StopToken, InterruptsBeforeAndDuringARun) {
  std::stop_source before;
  before.request_stop();
  expect_error(
      [&] {
        run(chain(), {random_floats({2, 3})}, {}, nullptr, {SessionMode::lean, 1, before.get_token()});
      },
      "", ErrorKind::interrupted);

  // A Loop without end: only the token can end it.
  const auto turn = body("body", {Node("Identity", "", {"c"}, {"c2"}), Node("Add", "", {"v", "one"}, {"v2"})},
                         {value("c2", {}, DataType::boolean), value("v2", {})},
                         {value("i", {}, DataType::int64), value("c", {}, DataType::boolean), value("v", {})});
  const Model model =
      make_model({{"Loop", "", {"", "yes", "x"}, {"y"}, {turn}}},
                 {onnx::make_tensor<bool>("yes", DataType::boolean, {}, std::array{true}), floats("one", {}, {1})}, 13,
                 {value("x", {})}, {value("y", {})});
  std::stop_source during;
  Session session(runtime(), emit(model), "the model", {SessionMode::lean, 1, during.get_token()});
  const std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    during.request_stop();
  });
  const std::vector<Array> inputs{array_of(DataType::float32, {}, Floats{0})};
  expect_error([&] { session.run(inputs, "the sample"); }, "", ErrorKind::interrupted);
}

// Sessions on a device. Its part is played by the CPU's provider, so that all but the provider itself is real.

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

Model chain_of_three() {
  return make_model({{"Relu", "", {"x"}, {"r"}}, {"Exp", "", {"r"}, {"e"}}, {"Add", "", {"e", "r"}, {"y"}}}, {}, 13,
                    {value("x", {2, 3})}, {value("y", {2, 3})});
}

TEST(DeviceSession, HandsOutTheSameTensorsAndResults) {
  const std::vector<Array> inputs{random_floats({2, 3})};
  Recorder plain;
  const auto expected = run(chain_of_three(), inputs, tap({"x", "r", "e", "y"}), &plain);
  const Host host;
  DeviceRecorder recorder;
  const auto out = run(chain_of_three(), inputs, tap({"x", "r", "e", "y"}), &recorder, host.options(true));
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
  Session session(runtime(), emit(chain_of_three(), tap({"r", "y"})), "the model", host.options(false));
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
        run(chain_of_three(), {random_floats({2, 3})}, tap({"r"}), &recorder, host.options(false));
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
          run(chain_of_three(), {random_floats({2, 3})}, {}, nullptr, options);
        },
        "was built without CUDAExecutionProvider", ErrorKind::device);
  }
}

TEST(DeviceSession, ComputesThereForReceiversOfTheHost) {
  const std::vector<Array> inputs{random_floats({2, 3})};
  Recorder plain, there;
  const auto expected = run(chain_of_three(), inputs, tap({"r", "e"}), &plain);
  SessionOptions options{SessionMode::lean, 1, {}};
  options.place = std::make_shared<shim::Device>(Host().device);
  const auto out = run(chain_of_three(), inputs, tap({"r", "e"}), &there, options);
  EXPECT_EQ(bytes_of(out[0]), bytes_of(expected[0]));
  ASSERT_EQ(there.seen.size(), plain.seen.size());
  for (std::size_t i = 0; i < plain.seen.size(); ++i)
    EXPECT_EQ(bytes_of(there.seen[i].second), bytes_of(plain.seen[i].second));
}

TEST(DeviceSession, TellsWhichProviderRanANode) {
  const auto file = std::filesystem::path(::testing::TempDir()) / "device-record";
  SessionOptions options{SessionMode::lean, 1, {}};
  options.record = file;
  Session session(runtime(), emit(chain_of_three()), "the model", options);
  session.run(std::vector<Array>{random_floats({2, 3})}, "the sample");
  const auto nodes = session.end_recording();
  ASSERT_FALSE(nodes.empty());
  for (const auto& node : nodes) EXPECT_EQ(node.provider, "CPUExecutionProvider") << node.name;
}

// Runs of several models in turns.

Session product(std::int64_t size) {
  const Model model =
      make_model({{"MatMul", "", {"x", "x"}, {"y"}}}, {}, 17, {value("x", {size, size})}, {value("y", {size, size})});
  return {runtime(), emit(model), "the model", {SessionMode::deployed, 1, {}}};
}

TEST(Turns, AreAsManyForEachModel) {
  const std::vector<std::vector<Array>> few{{random_floats({16, 16})}}, many{{random_floats({256, 256})}};
  const std::vector<Timed> models{{[] { return product(16); }, "small", few},
                                  {[] { return product(256); }, "large", many}};
  const auto turns = time_interleaved(models, {.seconds = 0, .least_rounds = 2});
  ASSERT_EQ(turns.size(), 2U);
  ASSERT_EQ(turns[0].size(), 2U);
  ASSERT_EQ(turns[1].size(), 2U);
  for (std::size_t t = 0; t < 2; ++t) EXPECT_EQ(turns[0][t].size(), turns[1][t].size());
  const auto& runs = turns[1].front();
  for (const auto& run : runs) {
    EXPECT_GT(run.wall, 0);
    EXPECT_GT(run.cpu, 0);
  }
  // Two clocks, read one after the other: of a machine that halts in between, only some run tells.
  EXPECT_TRUE(std::any_of(runs.begin(), runs.end(), [](const auto& r) { return r.own <= r.wall * 1.05 + 1e-3; }));
}

TEST(Turns, KeepToTheNumberOfRuns) {
  const std::vector<std::vector<Array>> samples{{random_floats({16, 16})}};
  const std::vector<Timed> models{{[] { return product(16); }, "m", samples}};
  std::size_t runs = 0;
  const auto turns = time_interleaved(models, {.runs = 1234});
  for (const auto& turn : turns.front()) runs += turn.size();
  EXPECT_EQ(runs, 1234U);
}

TEST(Turns, OfOneAtATimeOpenEachModelForTwoTurns) {
  std::string opened;
  const auto opener = [&](char name) {
    return [&opened, name] {
      opened += name;
      return product(16);
    };
  };
  const std::vector<std::vector<Array>> samples{{random_floats({16, 16})}};
  const std::vector<Timed> models{{opener('a'), "a", samples}, {opener('b'), "b", samples}};
  const auto turns = time_interleaved(models, {.seconds = 0, .least_rounds = 4, .one_open = true});
  EXPECT_EQ(opened, "ababab");  // each once to see its pace, then b a, a b, b a, a b
  for (const auto& of_model : turns) EXPECT_EQ(of_model.size(), 4U);
  opened.clear();
  time_interleaved(models, {.seconds = 0, .least_rounds = 4});
  EXPECT_EQ(opened, "ab");
}

// Times of the kernels of a plain session, and the values that they make.

// Inner products large enough to stand out beside the rest.
constexpr std::int64_t kSize = 192;

Model products() {
  const Floats w(static_cast<std::size_t>(kSize * kSize), 0.5F);
  return make_model({{"MatMul", "", {"x", "w"}, {"m"}},
                     {"Add", "", {"m", "bias"}, {"a"}},
                     {"Relu", "", {"a"}, {"r"}},
                     {"MatMul", "", {"r", "w"}, {"n"}},
                     if_node("c", "n", "n", "y")},
                    {floats("w", {kSize, kSize}, w), floats("bias", {kSize}, Floats(kSize, 1))}, 17,
                    {value("x", {kSize, kSize}), value("c", {}, DataType::boolean)}, {value("y", {kSize, kSize})});
}

const Kernel* maker_of(const std::vector<Kernel>& kernels, const std::string& name) {
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
    return std::find(kernel.outputs.begin(), kernel.outputs.end(), name) != kernel.outputs.end();
  });
  return found == kernels.end() ? nullptr : &*found;
}

TEST(KernelTimes, NamesTheValuesThatKernelsMake) {
  const std::vector<std::vector<Array>> samples{{random_floats({kSize, kSize}), boolean(true)}};
  const auto kernels = kernel_times(runtime(), products(), samples, {.threads = 1, .runs = 5});
  const Kernel* fused = maker_of(kernels, "r");
  ASSERT_NE(fused, nullptr);
  EXPECT_EQ(fused->op_type, "FusedGemm") << "product, bias and Relu in one";
  EXPECT_EQ(maker_of(kernels, "m"), nullptr);
  const Kernel* product = maker_of(kernels, "n");
  ASSERT_NE(product, nullptr);
  EXPECT_EQ(product->op_type, "MatMul");
  EXPECT_GT(product->seconds, 0);
}

TEST(KernelTimes, CountsWhatRunsInABodyOnce) {
  const std::vector<std::vector<Array>> samples{{random_floats({kSize, kSize}), boolean(true)},
                                                {random_floats({kSize, kSize}), boolean(false)}};
  const auto kernels =
      kernel_times(runtime(), products(), samples, {.threads = 1, .runs = 8, .seconds = 100, .fastest = true});
  const auto of_type = [&](const std::string& op_type) {
    const auto found =
        std::find_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.op_type == op_type; });
    return found == kernels.end() ? 0 : found->seconds;
  };
  EXPECT_GT(of_type("Add"), 0) << "in the body of the If, in every second run";
  EXPECT_GT(of_type("Neg"), 0);
  EXPECT_LT(of_type("If"), of_type("MatMul")) << "without its bodies";
}

TEST(KernelTimes, NamesTheValuesOfTheBlockedLayout) {
  const Model model = make_model(
      {{"Conv", "", {"x", "w"}, {"a"}, {onnx::Attribute::of_ints("pads", {1, 1, 1, 1})}}, {"Relu", "", {"a"}, {"y"}}},
      {floats("w", {16, 16, 3, 3}, Floats(16 * 16 * 9, 0.1F))}, 17, {value("x", {1, 16, 24, 24})},
      {value("y", {1, 16, 24, 24})});
  const std::vector<std::vector<Array>> samples{{random_floats({1, 16, 24, 24})}};
  const auto kernels = kernel_times(runtime(), model, samples, {.threads = 1, .runs = 3});
  const auto conv = std::find_if(kernels.begin(), kernels.end(),
                                 [](const auto& k) { return k.op_type == "Conv" || k.op_type == "FusedConv"; });
  ASSERT_NE(conv, kernels.end());
  EXPECT_EQ(conv->outputs, Names{"y"});
}

}  // namespace
}  // namespace detent::exec::test
