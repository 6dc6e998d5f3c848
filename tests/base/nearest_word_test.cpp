#include "base/text.h"

#include <gtest/gtest.h>

#include <array>

namespace detent {
namespace {

TEST(EditDistance, CountsSteps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("preset", "perset"), 1u) << "two neighbours exchanged";
  EXPECT_EQ(edit_distance("ca", "abc"), 3u) << "an exchanged pair is not changed again";
}

TEST(NearestWord, IsNear) {
  constexpr std::array<std::string_view, 5> kWords{"calibration-data", "percentile", "mse", "quantize", "threads"};
  const auto nearest = [&](std::string_view typed) { return nearest_word(typed, kWords).value_or("none"); };
  EXPECT_EQ(nearest("calibration-dta"), "calibration-data");
  EXPECT_EQ(nearest("quantise"), "quantize");
  EXPECT_EQ(nearest("MSE"), "mse");
  EXPECT_EQ(nearest("data"), "calibration-data") << "a part of it";
  EXPECT_EQ(nearest("thraeds"), "threads");
  EXPECT_EQ(nearest("calib"), "calibration-data") << "its beginning";
  for (const auto far : {"", "x", "frobnicate", "int8"}) EXPECT_EQ(nearest(far), "none") << far;
  EXPECT_EQ(did_you_mean("thread", kWords, "--"), "did you mean --threads?");
  EXPECT_EQ(did_you_mean("nothing", kWords, "--"), "");
}

}  // namespace
}  // namespace detent
