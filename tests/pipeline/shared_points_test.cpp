#include "pipeline/search_points.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace detent::pipeline {
namespace {

SearchPoint named(std::string name, std::vector<std::string> formats = {}) {
  SearchPoint point;
  point.name = std::move(name);
  point.node_formats = std::move(formats);
  return point;
}

TEST(SharedPoints, AProcessThatIsAloneWantsItsOwn) {
  const auto wanted = broadcast_points(nullptr, {named("a16w8"), named("mixed", {"a=q4", "b=int8"}), named("q2")}, {});
  ASSERT_EQ(wanted.size(), 3U);
  EXPECT_EQ(wanted[0].name, "a16w8");
  EXPECT_TRUE(wanted[0].node_formats.empty());
  EXPECT_EQ(wanted[1].node_formats, (std::vector<std::string>{"a=q4", "b=int8"}));
  EXPECT_EQ(wanted[2].name, "q2");
}

TEST(SharedPoints, FiguresComeAsTheyWere) {
  const std::vector<SearchPoint> points{named("one"), named("two")};
  PointShare share{{{points[0], ""}, {points[1], "no such form: \xff"}}, 7, false};
  auto& made = share.attempts[0].point;
  made.bytes = 123;
  made.error = 0.1 + 0.2;
  made.sqnr_db = std::numeric_limits<double>::infinity();
  made.value = -0.0;
  const auto read = read_share(1, written(share), points);
  ASSERT_EQ(read.attempts.size(), 2U);
  EXPECT_EQ(read.inferences, 7U);
  EXPECT_FALSE(read.cut_off);
  EXPECT_EQ(read.attempts[0].point.name, "one");
  EXPECT_EQ(read.attempts[0].point.bytes, 123U);
  EXPECT_EQ(read.attempts[0].point.error, made.error);
  EXPECT_EQ(read.attempts[0].point.sqnr_db, made.sqnr_db);
  ASSERT_TRUE(read.attempts[0].point.value);
  EXPECT_TRUE(std::signbit(*read.attempts[0].point.value));
  EXPECT_EQ(read.attempts[1].reason, "no such form: \xff");
  EXPECT_FALSE(read.attempts[1].point.value);
  EXPECT_TRUE(read_share(1, written({{}, 3, true}), points).cut_off);
}

TEST(SharedPoints, OtherMessagesAreRefused) {
  const std::vector<SearchPoint> points{named("one")};
  const auto whole = written({{{points[0], ""}}, 0, false});
  const std::string text(as_text(whole));
  for (std::size_t end = 0; end < text.size(); ++end)
    EXPECT_THROW(read_share(1, as_byte_span(text.substr(0, end)), points), Error) << end;
  EXPECT_THROW(read_share(1, whole, {}), Error);
  EXPECT_THROW(
      read_share(1, as_byte_span(std::string(R"({"attempts":{"a":1},"cut_off":false,"inferences":1})")), points),
      Error);
}

}  // namespace
}  // namespace detent::pipeline
