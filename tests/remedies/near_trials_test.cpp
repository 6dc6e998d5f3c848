#include "remedies/trials.h"

#include <gtest/gtest.h>

#include "support.h"

namespace detent::remedies {
namespace {

using namespace test;  // NOLINT: the makers of small models

constexpr int kProducts = 12;

// A chain of products with an Erf before each.
Model chain() {
  std::vector<Node> nodes;
  std::vector<onnx::Tensor> weights;
  for (int i = 0; i < kProducts; ++i) {
    const auto n = std::to_string(i);
    const std::string out = i + 1 == kProducts ? "y" : "x" + std::to_string(i + 1);
    nodes.emplace_back("Erf", "erf" + n, std::vector<std::string>{i == 0 ? "x" : "x" + n},
                       std::vector<std::string>{"a" + n});
    nodes.emplace_back("MatMul", "product" + n, std::vector<std::string>{"a" + n, "w" + n},
                       std::vector<std::string>{out});
    weights.push_back(floats("w" + n, {16, 16}, normal(256, static_cast<unsigned>(i), 0.4F)));
  }
  return make_model(nodes, weights, 17, {value("x", {32, 16})}, {value("y", {32, 16})});
}

calibration::Ranges ranges() {
  calibration::Ranges all;
  for (int i = 0; i < kProducts; ++i) {
    all["a" + std::to_string(i)] = {i == 5 ? -40.0F : -1.0F, i == 5 ? 40.0F : 1.0F};
    all["x" + std::to_string(i)] = {-6, 6};
  }
  return all;
}

TEST(NearTrials, SeeWhatAValueDoesWithoutTheRestOfTheModel) {
  Bench bench(chain(), {32, 16}, ranges());
  const auto roundings = roundings_of(bench.draft.assignment.values);
  const std::vector<Trial> trials{{{"a5", &roundings.at("a5")}}, {{"a6", &roundings.at("a6")}}};
  const auto results = bench.evaluator->run_near(bench.draft, bench.draft.assignment.values, trials, {2});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_GT(worst_error_of(results[0]), 100 * worst_error_of(results[1]));
  EXPECT_GT(worst_error_of(results[1]), 0);
}

TEST(NearTrials, ErrorsOfManyValuesAreSharedOutAsTheyAreAlone) {
  Bench bench(chain(), {32, 16}, ranges());
  const auto measured = bench.evaluator->measure(bench.draft);
  ASSERT_FALSE(measured.each_alone);
  EXPECT_EQ(by_error(measured).front().first, "a5");
  const auto roundings = roundings_of(bench.draft.assignment.values);
  const std::vector<Trial> alone{{{"a5", &roundings.at("a5")}}};
  const double error = worst_error_of(
      bench.evaluator->run(bench.draft, bench.draft.assignment.values, alone, {measured.samples}).front());
  EXPECT_NEAR(worst_of(measured.errors.at("a5")) / error, 1, 0.2);
}

TEST(Parts, AreOfAboutTheSameWork) {
  const auto model = chain();
  const auto parts = parts_of(model, exec::infer_value_types(runtime(), model), 4);
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_EQ(parts.front(), 0);
  EXPECT_EQ(parts.back(), 2 * kProducts);
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_NEAR(parts[i] - parts[i - 1], 6, 2);
}

}  // namespace
}  // namespace detent::remedies
