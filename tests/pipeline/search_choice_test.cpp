#include "pipeline/search.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace detent::pipeline {
namespace {

SearchPoint point(bool single, double error, double seconds, std::uint64_t bytes) {
  SearchPoint made;
  made.single = single;
  made.error = error;
  made.seconds = seconds;
  made.bytes = bytes;
  return made;
}

// Whether each is on the front, as in "10".
std::string front_of(std::vector<SearchPoint> points) {
  mark_front(points);
  std::string on;
  for (const auto& each : points) on += each.on_front ? '1' : '0';
  return on;
}

TEST(MarkFront, AMixtureHasToBeatAFormatAloneClearly) {
  const auto single = point(true, 1e-3, 1, 1000);
  EXPECT_EQ(front_of({single, point(false, 0.6e-3, 1, 1000)}), "11");
  EXPECT_EQ(front_of({single, point(false, 0.45e-3, 1, 1000)}), "01");
  EXPECT_EQ(front_of({single, point(false, 1e-3, 1, 950)}), "11");
  EXPECT_EQ(front_of({single, point(false, 1e-3, 0.85, 1005)}), "01");
  EXPECT_EQ(front_of({single, point(false, 0.1e-3, 1.05, 1000)}), "11");  // which is slower
}

TEST(MarkFront, OfTwoMixturesOnePercentDecides) {
  const auto mixture = point(false, 1e-3, 1, 1000);
  EXPECT_EQ(front_of({mixture, point(false, 1e-3, 1, 980)}), "01");
  EXPECT_EQ(front_of({mixture, point(false, 1e-3, 1, 995)}), "11");
  EXPECT_EQ(front_of({mixture, point(true, 1e-3, 1, 980)}), "01");
}

}  // namespace
}  // namespace detent::pipeline
