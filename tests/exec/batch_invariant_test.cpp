// A row gives the same bits alone as among others, and nearly those that the runtime gives without the rewrite.
#include "exec/sweep.h"

#include <cmath>

#include "exec/support.h"

namespace detent::exec::test {
namespace {

constexpr std::int64_t kRows = 4, kDepth = 517, kWidth = 65;  // odd, and long enough for sums to differ by their order

onnx::ValueInfo with_batch(const std::string& name, std::vector<std::int64_t> dims) {
  std::vector<onnx::Dim> shape{{-1, "N"}};
  for (const auto d : dims) shape.push_back({d, ""});
  return onnx::make_value_info(name, DataType::float32, shape);
}
onnx::ValueInfo unknown_rank(const std::string& name) {
  return onnx::make_value_info(name, DataType::float32, std::nullopt);
}
Attribute number(const std::string& name, float value) { return Attribute::of_float(name, value); }
Attribute integer(const std::string& name, std::int64_t value) { return Attribute::of_int(name, value); }

onnx::Tensor weights(const std::string& name, const std::vector<std::int64_t>& dims, unsigned seed = 2) {
  return floats(name, dims, floats_of(random_floats(dims, seed)));
}

Model invariant(const Model& model) {
  Model changed = model;
  make_batch_invariant(changed, infer_value_types(runtime(), model));
  return changed;
}

// By one thread: several cut a product by its size, and sum otherwise where the depth is above 128.
Array product(const Model& model, const Array& x) {
  return run(model, {x}, {}, nullptr, {SessionMode::lean, 1, {}}).at(0);
}

Array row_of(const Array& batch, std::int64_t row) {
  const std::size_t size = batch.bytes.size() / static_cast<std::size_t>(batch.shape.front());
  Array one = batch;
  one.shape.front() = 1;
  one.bytes = batch.bytes.subspan(static_cast<std::size_t>(row) * size, size);
  return one;
}

void expect_close(const Array& found, const Array& expected) {
  ASSERT_EQ(found.shape, expected.shape);
  const Floats a = floats_of(found), b = floats_of(expected);
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-4F * (std::sqrt(float{kDepth}) + std::abs(b[i])));
}

struct Case {
  std::string what;
  Model model;
  std::vector<std::int64_t> row;  // shape of x without the batch
};

Case gemm(const std::string& what, std::vector<Attribute> attributes, Names inputs, std::int64_t opset = 13) {
  const bool transposed = what.find("transB") != std::string::npos;
  const std::vector<std::int64_t> dims =
      transposed ? std::vector<std::int64_t>{kWidth, kDepth} : std::vector<std::int64_t>{kDepth, kWidth};
  return {what,
          make_model({{"Gemm", "g", std::move(inputs), {"y"}, std::move(attributes)}},
                     {weights("w", dims), weights("b", {kWidth}, 3), weights("s", {1}, 4)}, opset,
                     {with_batch("x", {kDepth})}, {with_batch("y", {kWidth})}),
          {kDepth}};
}

std::vector<Case> cases() {
  std::vector<Case> all{
      gemm("plain", {}, {"x", "w"}),
      gemm("left out", {}, {"x", "w", ""}),
      gemm("bias", {}, {"x", "w", "b"}),
      gemm("bias, opset 9", {}, {"x", "w", "b"}, 9),
      gemm("transB", {integer("transB", 1)}, {"x", "w"}),
      gemm("transB, bias", {integer("transB", 1)}, {"x", "w", "b"}),
      gemm("beta", {number("beta", 0.3F)}, {"x", "w", "b"}),
      gemm("beta below 0", {number("beta", -2), integer("transB", 0)}, {"x", "w", "b"}),
      gemm("transB, beta, scalar bias", {number("beta", 1.5F), integer("transB", 1)}, {"x", "w", "s"})};
  all.push_back({"MatMul",
                 make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                            {with_batch("x", {kDepth})}, {with_batch("y", {kWidth})}),
                 {kDepth}});
  // The rank is lost by a Reshape to a shape that is computed.
  all.push_back({"MatMul of unknown rank",
                 make_model({{"Shape", "", {"x"}, {"shape"}},
                             {"Slice", "", {"shape", "zero", "two"}, {"both"}},
                             {"Reshape", "", {"x", "both"}, {"a"}},
                             {"MatMul", "m", {"a", "w"}, {"y"}}},
                            {weights("w", {kDepth, kWidth}), ints("zero", {0}), ints("two", {2})}, 13,
                            {unknown_rank("x")}, {unknown_rank("y")}),
                 {kDepth}});
  all.push_back({"MatMul of what turns out to be of rank 4",
                 make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                            {unknown_rank("x")}, {unknown_rank("y")}),
                 {1, 1, kDepth}});
  return all;
}

TEST(BatchInvariant, ARowAloneIsARowAmongOthers) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.what);
    const Model changed = invariant(c.model);
    EXPECT_NE(op_types(changed), op_types(c.model));
    std::vector<std::int64_t> shape{kRows};
    shape.insert(shape.end(), c.row.begin(), c.row.end());
    const Array batch = random_floats(shape, 5);
    const Array together = product(changed, batch);
    expect_close(together, product(c.model, batch));
    for (std::int64_t row = 0; row < kRows; ++row) {
      const Array alone = product(changed, row_of(batch, row));
      EXPECT_EQ(alone.shape.front(), 1);
      EXPECT_TRUE(bytes_of(alone) == bytes_of(row_of(together, row))) << row;
    }
  }
}

TEST(BatchInvariant, OfUnknownRankKeepsEveryShape) {
  const Model model = make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                                 {unknown_rank("x")}, {unknown_rank("y")});
  const Model changed = invariant(model);
  const std::vector<std::vector<std::int64_t>> shapes{{kDepth},       {1, kDepth},       {3, kDepth},
                                                      {2, 3, kDepth}, {2, 1, 2, kDepth}, {0, kDepth}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(shape.size());
    const Array x = random_floats(shape, 6);
    expect_close(run(changed, {x}).at(0), run(model, {x}).at(0));
  }
}

TEST(BatchInvariant, NamesStay) {
  const auto c = gemm("bias", {}, {"x", "w", "b"});
  Model model = c.model;
  model.graph.nodes.push_back({"Relu", "r", {"y"}, {"z"}});
  model.graph.outputs.push_back(with_batch("z", {kWidth}));
  const Model changed = invariant(model);
  EXPECT_EQ(op_types(changed), (Names{"Gemm", "Neg", "Relu"}));
  EXPECT_EQ(changed.graph.nodes[0].name(), "g");
  EXPECT_EQ(changed.graph.nodes[1].outputs(), (Names{"y"}));
  // What is tapped is the product itself, not its negative.
  const Array batch = random_floats({kRows, kDepth}, 7);
  Recorder recorder;
  const auto outputs = run(changed, {batch}, tap({"y"}), &recorder);
  ASSERT_EQ(recorder.seen.size(), 1U);
  EXPECT_EQ(bytes_of(recorder.seen[0].second), bytes_of(outputs.at(0)));
  expect_close(outputs.at(0), run(model, {batch}).at(0));
}

TEST(BatchInvariant, LeavesAloneWhatHasSeveralRowsOrAFactor) {
  const auto unchanged = [](const Model& model) { EXPECT_EQ(op_types(invariant(model)), op_types(model)); };
  unchanged(make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                       {value("x", {3, kDepth})}, {value("y", {3, kWidth})}));
  unchanged(gemm("alpha", {number("alpha", 0.5F)}, {"x", "w"}).model);
  unchanged(make_model({{"Gemm", "g", {"x", "w"}, {"y"}, {integer("transA", 1)}}}, {weights("w", {3, kWidth})}, 13,
                       {with_batch("x", {1})}, {unknown_rank("y")}));
  unchanged(make_model({{"MatMul", "m", {"x", "x"}, {"y"}}}, {}, 13, {value("x", {2, 3, 3})}, {value("y", {2, 3, 3})}));
  unchanged(make_model({{"MatMul", "m", {"x", "w"}, {"y"}}},
                       {onnx::make_tensor<std::int32_t>("w", DataType::int32, {2, 1}, std::vector<std::int32_t>{1, 2})},
                       13, {value("x", {1, 2}, DataType::int32)}, {value("y", {1, 1}, DataType::int32)}));
}

TEST(BatchInvariant, AFixedSingleRowIsRewritten) {
  const Model model = make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                                 {value("x", {1, kDepth})}, {value("y", {1, kWidth})});
  const Model changed = invariant(model);
  EXPECT_EQ(op_types(changed), (Names{"FusedMatMul", "Neg"}));
  const Array x = random_floats({1, kDepth}, 8);
  expect_close(run(changed, {x}).at(0), run(model, {x}).at(0));
}

}  // namespace
}  // namespace detent::exec::test
