#include "store/transfers.h"

#include <gtest/gtest.h>

namespace detent::store {
namespace {

using Place = PrefetchOrder::Place;

// All places up to the limit, as "lane:sample".
std::vector<Place> rest(PrefetchOrder walk, std::size_t ahead) {
  std::vector<Place> out;
  while (const auto place = walk.next(ahead)) {
    out.push_back(*place);
    walk.advance();
  }
  return out;
}

TEST(PrefetchOrder, GoesSampleBySampleAndLaneByLane) {
  EXPECT_EQ(rest(PrefetchOrder({4, 2}, 5, 7), 9), (std::vector<Place>{{4, 5}, {2, 5}, {4, 6}, {2, 6}}));
  EXPECT_TRUE(rest(PrefetchOrder({}, 5, 7), 9).empty());
  EXPECT_TRUE(rest(PrefetchOrder({1}, 7, 7), 9).empty());
  EXPECT_TRUE(rest(PrefetchOrder(), 9).empty());
}

TEST(PrefetchOrder, GoesNoFurtherThanAhead) {
  PrefetchOrder walk({0, 1}, 0, 9);
  EXPECT_TRUE(rest(walk, 0).empty());
  EXPECT_EQ(rest(walk, 1), (std::vector<Place>{{0, 0}, {1, 0}}));
  walk.asked_for({0, 0});
  EXPECT_EQ(rest(walk, 1), (std::vector<Place>{{1, 0}, {0, 1}, {1, 1}}));
  EXPECT_TRUE(rest(walk, 0).empty());
  walk.asked_for({1, 0});
  EXPECT_EQ(rest(walk, 1), (std::vector<Place>{{0, 1}, {1, 1}}));
}

TEST(PrefetchOrder, SkipsWithWhatIsAskedForAndNeverGoesBack) {
  PrefetchOrder walk({0}, 0, 9);
  walk.asked_for({0, 4});
  EXPECT_EQ(rest(walk, 2), (std::vector<Place>{{0, 5}, {0, 6}}));
  walk.asked_for({0, 2});
  walk.asked_for({7, 8});   // another lane
  walk.asked_for({0, 20});  // not announced
  EXPECT_EQ(rest(walk, 2), (std::vector<Place>{{0, 5}, {0, 6}}));
  EXPECT_FALSE(walk.holds({0, 4}));
  EXPECT_TRUE(walk.holds({0, 5}));
  EXPECT_FALSE(walk.holds({0, 9}));
  EXPECT_FALSE(walk.holds({1, 6}));
}

}  // namespace
}  // namespace detent::store
