#include "shim/shared_work.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace detent::shim {
namespace {

TEST(SharedWork, CostliestItemsGoToTheRankWithLeastToDo) {
  const std::vector<double> costs{1, 8, 3, 3, 2, 0};
  EXPECT_EQ(owners_of(costs, 1), std::vector<int>(costs.size()));
  EXPECT_EQ(owners_of(costs, 2), (std::vector<int>{0, 0, 1, 1, 1, 1}));
  EXPECT_TRUE(owners_of({}, 3).empty());
}

TEST(SharedWork, NoRankHasMuchMoreThanItsShare) {
  std::vector<double> costs(200);
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i] = static_cast<double>(1 + i * 37 % 101);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  for (const int ranks : {2, 3, 8}) {
    std::vector<double> loads(static_cast<std::size_t>(ranks));
    const auto owners = owners_of(costs, ranks);
    for (std::size_t i = 0; i < costs.size(); ++i) loads.at(static_cast<std::size_t>(owners[i])) += costs[i];
    for (const double load : loads) EXPECT_NEAR(load, all / ranks, 10) << ranks;
  }
}

TEST(SharedWork, AProcessThatIsAloneKeepsWhatItHas) {
  EXPECT_EQ(of_first(nullptr, 2.5), 2.5);
  EXPECT_EQ(size_of(nullptr), 1);
  EXPECT_EQ(rank_of(nullptr), 0);
  EXPECT_TRUE(gather_files(nullptr, "/nowhere", {"missing"}).empty());
}

}  // namespace
}  // namespace detent::shim
