// Taps see what a plain run computes, and change nothing of it.
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "exec/support.h"

namespace detent::exec::test {
namespace {

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

}  // namespace
}  // namespace detent::exec::test
