#include "base/numbers.h"

#include <gtest/gtest.h>

#include <set>

namespace detent {
namespace {

// Known answers of the generator's authors (Random123, kat_vectors).
TEST(Philox, GivesItsAuthorsAnswers) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kAll = 0xffffffff;
  EXPECT_EQ(philox({kAll, kAll, kAll, kAll}, {kAll, kAll}), (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, DiffersBySeedAndPlace) {
  std::set<std::array<std::uint32_t, 4>> seen;
  for (const std::uint64_t v : {std::uint64_t{1}, std::uint64_t{1} << 40}) {
    seen.insert(random_at(v, 0, 0));
    seen.insert(random_at(0, v, 0));
    seen.insert(random_at(0, 0, v));
  }
  EXPECT_EQ(seen.size(), 6U);
}

TEST(Below, CoversTheRange) {
  EXPECT_EQ(scale_to_bound(10, 0), 0U);
  EXPECT_EQ(scale_to_bound(10, 0xffffffff), 9U);
  EXPECT_EQ(scale_to_bound(1, 0xffffffff), 0U);
}

}  // namespace
}  // namespace detent
