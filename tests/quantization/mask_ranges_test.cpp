#include <gtest/gtest.h>

#include "support.h"

namespace detent::quantization {
namespace {

using testing::Builder;

TEST(Masks, ConstantsGoNoLowerThanTheScoresTheyAreAddedTo) {
  Builder b;
  b.input("x").constant("mask", {1, 3}, {0, -10000, -10000}).constant("table", {1, 3}, {1, -10000, 2});
  b.node("Add", {"x", "mask"}, {"s"}).node("Softmax", {"s"}, {"p"}).node("Mul", {"p", "table"}, {"y"}).output("y");
  const auto options = testing::config([](auto& c) { c.target = "qnn"; });
  auto placement = b.place(options);
  auto scans = scan_weights(b.model, placement, false);
  narrow_masks({{"mask", {-17, 0}}, {"s", {-13, 4}}}, placement, b.model, scans);
  EXPECT_EQ(onnx::to_doubles(testing::tensor(b.model, "mask")), (std::vector<double>{0, -17, -17}));
  EXPECT_EQ(scans.at("mask").extremes.at(0).lowest(), -17);
  EXPECT_EQ(scans.at("mask").extremes.at(0).highest(), 0);
  // What has no such range stays.
  EXPECT_EQ(onnx::to_doubles(testing::tensor(b.model, "table")), (std::vector<double>{1, -10000, 2}));
  EXPECT_EQ(scans.at("table").extremes.at(0).lowest(), -10000);
}

}  // namespace
}  // namespace detent::quantization
