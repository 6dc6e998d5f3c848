// Sessions, probing, constants, and weights that the runtime reads straight from their files.
#include "exec/runtime.h"
#include "exec/support.h"

namespace detent::exec::test {
namespace {

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

}  // namespace
}  // namespace detent::exec::test
