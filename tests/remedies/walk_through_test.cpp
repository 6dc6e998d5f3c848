// The walk-through of docs/extending.md, "A measured remedy": one class behind three verbs is all that it takes.
#include <gtest/gtest.h>

#include "support.h"

namespace detent::remedies {
namespace {

using namespace test;  // NOLINT: the makers of small models

/// Gives every activation a range that is so many times as wide.
class OtherWidth : public Remedy {
 public:
  explicit OtherWidth(float factor) : factor_(factor) {}

  bool propose(const Draft& draft, Evaluator& evaluator) override {
    proposals_ = draft.proposals;
    for (auto& [value, range] : proposals_.ranges) {
      range.range = {factor_ * range.range.min, factor_ * range.range.max};
      range.origin = "width";
    }
    assignment_ =
        quantization::assign(draft.prepared.model, draft.assignment.placement, proposals_, evaluator.options().config);
    return !proposals_.ranges.empty();
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    return is_improved(errors_of(evaluator.judged(draft)), errors_of(evaluator.judge(draft, assignment_)));
  }

  void keep(Draft& draft, Evaluator& evaluator) override {
    draft.proposals = std::move(proposals_);
    draft.assignment = std::move(assignment_);
    evaluator.set_judged({});
  }

 private:
  float factor_;
  quantization::Proposals proposals_;
  quantization::Assignment assignment_;
};

Bench with_range(float bound) {
  return {make_model({Node("Erf", "e", {"x"}, {"a"}), Node("MatMul", "product", {"a", "w"}, {"y"})},
                     {floats("w", {16, 16}, normal(256, 7))}, 17, {value("x", {32, 16})}, {value("y", {32, 16})}),
          {32, 16},
          {{"a", {-bound, bound}}}};
}

TEST(WalkThrough, ARemedyIsKeptWhereItHelps) {
  Bench bench = with_range(50);
  const double before = bench.error();
  OtherWidth narrower(0.02F);
  ASSERT_TRUE(bench.apply(narrower));
  EXPECT_LT(bench.error(), 0.05 * before);
  EXPECT_EQ(bench.draft.assignment.values.at("a").origin, "width");
  EXPECT_NEAR(worst_error_of(bench.evaluator->judged(bench.draft)), bench.error(), 1e-12);
}

TEST(WalkThrough, ARemedyThatDoesHarmLeavesNoTrace) {
  Bench bench = with_range(1);
  const double before = bench.error();
  OtherWidth wider(50);
  EXPECT_FALSE(bench.apply(wider));
  EXPECT_EQ(bench.error(), before);
  EXPECT_EQ(bench.draft.assignment.values.at("a").origin, "mse");
}

}  // namespace
}  // namespace detent::remedies
