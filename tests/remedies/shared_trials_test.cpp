#include "remedies/trials.h"

#include <gtest/gtest.h>

#include <string>

#include "mpi/peer.h"

namespace detent::remedies {
namespace {

// Of one trial, as rank 0 sends it: no sums of points and outputs, the logarithm, the number of pairs.
std::string result(double log_errors) {
  std::string bytes(32, '\0');
  std::memcpy(bytes.data() + 16, &log_errors, sizeof log_errors);
  return bytes;
}

std::vector<TrialResult> shared(const std::string& theirs) {
  auto ranks = test::beside_peer(0, {theirs});
  const std::vector<Trial> trials(2);
  return share_trials(&ranks, trials, {}, [](std::span<const Trial> mine) {
    std::vector<TrialResult> results(mine.size());
    results.at(0).log_errors = 1;
    return results;
  });
}

TEST(SharedTrials, AllGetTheResultsOfAll) {
  const auto all = shared(result(2));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].log_errors, 1);
  EXPECT_EQ(all[1].log_errors, 2);
}

TEST(SharedTrials, ResultsThatBreakOffAreRefused) {
  const std::string endless(8, '\xff');
  for (const auto& theirs : {std::string(), result(2) + result(3), result(2).substr(0, 31), std::string("x"), endless,
                             std::string("\1\0\0\0\0\0\0\0", 8)})
    EXPECT_THROW(shared(theirs), Error) << theirs.size();
}

}  // namespace
}  // namespace detent::remedies
