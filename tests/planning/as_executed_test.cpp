// The form that the runtime gives a model, and what of it is alive at a time, against what the runtime's allocator saw.
#include "planning/memory.h"

#include <gtest/gtest.h>

#include "exec/support.h"
#include "graph/execution.h"

namespace detent::planning {
namespace {

using namespace exec::test;
using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

constexpr std::int64_t kBlock = 8;
constexpr std::uint64_t kPlane = 4 * 64 * 64;  // bytes of a channel in these tests

ValueTypes types_of(const Shapes& shapes) {
  ValueTypes types;
  for (const auto& [name, dims] : shapes) {
    std::vector<onnx::Dim> shape;
    for (const auto d : dims) shape.push_back({d, ""});
    types[name] = {DataType::float32, shape};
  }
  return types;
}

std::vector<std::int64_t> image(std::int64_t channels) { return {1, channels, 64, 64}; }

Model model_of(std::vector<Node> nodes, std::int64_t in, std::int64_t out, std::vector<onnx::Tensor> weights = {}) {
  return make_model(std::move(nodes), std::move(weights), 17, {value("x", image(in))}, {value("y", image(out))});
}

onnx::Tensor pointwise(const std::string& name, std::int64_t out, std::int64_t in) {
  return floats(name, {out, in, 1, 1}, Floats(static_cast<std::size_t>(out * in), 0.1F));
}

Executed executed(const Model& model, const ValueTypes& types, const Names& observed, std::int64_t block = kBlock) {
  return as_executed(model, graph::Index(model), types, observed, block);
}

std::uint64_t alive(const Executed& e) {
  const auto found = graph::liveness(e.model, graph::Index(e.model), e.types);
  EXPECT_TRUE(found);
  return found ? found->peak_bytes : 0;
}

TEST(AsExecuted, ConvolutionsGoThroughTheBlockedLayout) {
  const Model model = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 12, 20, {pointwise("w", 20, 12)});
  const auto e = executed(model, types_of({{"x", image(12)}, {"y", image(20)}}), {"y"});
  EXPECT_EQ(op_types(e.model), (Names{"ReorderInput", "BlockedConv", "ReorderOutput"}));
  // Channels are padded to whole blocks: 16 and 24. The input itself is the caller's, so it goes after its last reader.
  EXPECT_EQ(alive(e), (24 + 20) * kPlane);
}

TEST(AsExecuted, AFewInputChannelsAreReadAsTheyAre) {
  const Model model = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 3, 16, {pointwise("w", 16, 3)});
  const auto e = executed(model, types_of({{"x", image(3)}, {"y", image(16)}}), {"y"});
  EXPECT_EQ(op_types(e.model), (Names{"BlockedConv", "ReorderOutput"}));
}

TEST(AsExecuted, ConvolutionsThatDoNotFitStay) {
  const auto types = types_of({{"x", image(6)}, {"y", image(6)}});
  const Node grouped("Conv", "c", {"x", "w"}, {"y"}, {Attribute::of_int("group", 2)});
  EXPECT_EQ(op_types(executed(model_of({grouped}, 6, 6, {pointwise("w", 6, 3)}), types, {}).model),
            (Names{"computes Conv"}));
  const Model plain = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 16, 16, {pointwise("w", 16, 16)});
  EXPECT_EQ(op_types(executed(plain, types_of({{"x", image(16)}, {"y", image(16)}}), {}, 0).model),
            (Names{"computes Conv"}));
}

TEST(AsExecuted, OneBlockedInputServesAllItsReaders) {
  const Model model =
      model_of({{"Conv", "1", {"x", "w"}, {"a"}}, {"Conv", "2", {"x", "w"}, {"b"}}, {"Add", "3", {"a", "b"}, {"y"}}},
               16, 16, {pointwise("w", 16, 16)});
  const auto types = types_of({{"x", image(16)}, {"a", image(16)}, {"b", image(16)}, {"y", image(16)}});
  const auto names = op_types(executed(model, types, {"a", "b"}).model);
  EXPECT_EQ(std::count(names.begin(), names.end(), "ReorderInput"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "BlockedConv"), 2);
}

TEST(AsExecuted, ArithmeticWritesAside) {
  const Model model =
      model_of({{"Softmax", "1", {"x"}, {"a"}}, {"Mul", "2", {"a", "s"}, {"y"}}}, 8, 8, {floats("s", {1}, {2.0F})});
  const auto types = types_of({{"x", image(8)}, {"a", image(8)}, {"y", image(8)}});
  EXPECT_EQ(alive(executed(model, types, {"a"})), 2 * 8 * kPlane);
}

TEST(AsExecuted, ActivationsWriteOverAnInputThatIsNotObserved) {
  const std::vector<Node> nodes{
      {"Softmax", "1", {"x"}, {"a"}}, {"Softmax", "2", {"a"}, {"b"}}, {"Relu", "3", {"b"}, {"y"}}};
  const Model model = model_of(nodes, 8, 8);
  const auto types = types_of({{"x", image(8)}, {"a", image(8)}, {"b", image(8)}, {"y", image(8)}});
  EXPECT_EQ(op_types(executed(model, types, {}).model).back(), "Relu");
  EXPECT_EQ(op_types(executed(model, types, {"b"}).model).back(), "computes Relu");
}

std::uint64_t predicted_bytes(const Model& model, const Names& observed, std::string_view what) {
  const auto cost = calibration_cost(model, exec::infer_value_types(runtime(), model), observed, {});
  for (const auto& part : cost.value().memory) {
    if (part.what == what) return part.bytes;
  }
  return 0;
}

// What the runtime's allocator had in use at one time, beside what is predicted, which counts the graph's input too.
void expect_as_measured(const Model& model, const Names& observed) {
  const auto predicted = static_cast<double>(predicted_bytes(model, observed, "activations alive at once"));
  const exec::Runtime fresh(runtime_library());
  exec::Session session(fresh, exec::emit(model, tap(observed)), "the model", {session_mode_for(model), 2, {}});
  Recorder recorder;
  const Array input = random_floats(image(16));
  session.run(std::span(&input, 1), "the sample", &recorder);
  const auto measured = static_cast<double>(fresh.peak_activation_bytes());
  EXPECT_GE(predicted, 0.97 * measured);
  EXPECT_LE(predicted, 1.03 * (measured + 16 * kPlane));
}

// ARM has no blocked layout, and x86 without AVX none either.
TEST(AsExecuted, WeightsAreCopiedIntoTheBlockedLayoutAlone) {
  const Model model = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 16, 16, {pointwise("w", 16, 16)});
  const std::uint64_t copies = channel_block() > 0 ? 16 * 16 * sizeof(float) : 0;
  EXPECT_EQ(predicted_bytes(model, {"y"}, "convolution weights in blocked layout"), copies);
  EXPECT_EQ(copied_weights(model), copies);
}

// The peak is the whole process's: ctest runs each test in one of its own.
bool others_have_run() { return runtime().peak_activation_bytes() > 0; }

TEST(AsExecuted, HoldsWhatTheRuntimeHolds) {
  if (others_have_run()) GTEST_SKIP() << "what other tests ran in this process counts as well";
  // A wide part in the middle, a shortcut around it, and arithmetic with a value that stays.
  const Model model = model_of({{"Conv", "1", {"x", "in"}, {"a"}},
                                {"Softmax", "2", {"a"}, {"gate"}},
                                {"Mul", "3", {"a", "gate"}, {"b"}},
                                {"Conv", "4", {"b", "out"}, {"c"}},
                                {"Add", "5", {"c", "x"}, {"y"}}},
                               16, 16, {pointwise("in", 64, 16), pointwise("out", 16, 64)});
  expect_as_measured(model, {"a", "gate", "b", "c", "y"});
  expect_as_measured(model, {"a", "c", "y"});
}

TEST(AsExecuted, HoldsWhatBranchesHold) {
  if (others_have_run()) GTEST_SKIP() << "what other tests ran in this process counts as well";
  const Model model =
      model_of({{"Conv", "1", {"x", "w"}, {"a"}},
                {"Softmax", "2", {"a"}, {"short"}},
                {"MaxPool",
                 "3",
                 {"a"},
                 {"small"},
                 {Attribute::of_ints("kernel_shape", {2, 2}), Attribute::of_ints("strides", {2, 2})}},
                {"Conv", "4", {"small", "w"}, {"deep"}},
                {"ConvTranspose", "5", {"deep", "up"}, {"large"}, {Attribute::of_ints("strides", {2, 2})}},
                {"Add", "6", {"short", "large"}, {"y"}}},
               16, 16, {pointwise("w", 16, 16), floats("up", {16, 16, 2, 2}, Floats(1024, 0.1F))});
  expect_as_measured(model, {"a", "short", "deep", "large", "y"});
}

}  // namespace
}  // namespace detent::planning
