#include "shim/shared_work.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "mpi/peer.h"

namespace detent::shim {
namespace {

using namespace std::string_literals;
using test::beside_peer;

void expect_unexpected(const std::string& told, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown: " << told;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_NE(std::string(e.what()).find(told), std::string::npos) << e.what();
  }
}

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
  EXPECT_EQ(broadcast_value(nullptr, 2.5), 2.5);
  EXPECT_EQ(size_of(nullptr), 1);
  EXPECT_EQ(rank_of(nullptr), 0);
  EXPECT_TRUE(gather_files(nullptr, "/nowhere", {"missing"}).empty());
}

TEST(SharedWork, ARankIsAmongTheOthersAgainWhereItWasApart) {
  auto ranks = beside_peer(1, {"\1"s, "\1"s});
  {
    const Apart apart(&ranks);
    EXPECT_EQ(rank_of(&ranks), 0);
    EXPECT_EQ(size_of(&ranks), 1);
    EXPECT_FALSE(any_of(&ranks, false));  // nobody is asked
    const Apart again(&ranks);
  }
  EXPECT_EQ(rank_of(&ranks), 1);
  EXPECT_EQ(size_of(&ranks), 2);
  {
    const Reunion part(&ranks);
    ranks.go_on_alone();
  }
  EXPECT_EQ(size_of(&ranks), 2);
  EXPECT_TRUE(any_of(&ranks, false));
  const Apart none(nullptr);
}

TEST(SharedWork, TakesWhatRankZeroSends) {
  auto ranks = beside_peer(1, {"\1"s, "a\0\0b\0"s, "\1"s});
  EXPECT_TRUE(broadcast_value(&ranks, false));
  EXPECT_EQ(broadcast_names(&ranks, {}), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_TRUE(any_of(&ranks, false));
}

TEST(SharedWork, MessagesOfAnotherProgramAreRefused) {
  auto ranks = beside_peer(1, {"", "abc", "ab"});
  expect_unexpected("rank 0 sent 0 bytes where 8 were expected", [&] { broadcast_value(&ranks, std::uint64_t{1}); });
  expect_unexpected("rank 0 sent names without an end", [&] { broadcast_names(&ranks, {}); });
  std::vector<std::byte> known(3);
  expect_unexpected("rank 0 sent 2 bytes where 3 were expected", [&] { broadcast(ranks, known); });
  auto first = beside_peer(0, {""});
  EXPECT_TRUE(any_of(&first, false));  // what is not "no"
}

TEST(SharedWork, WhatEachItemMakesComesFromItsOwner) {
  std::string first = "....", second = "ab", third = "..";
  const auto bytes = [](std::string& text, std::size_t at, std::size_t count) {
    return std::as_writable_bytes(std::span(text)).subspan(at, count);
  };
  const std::vector<Made> items{{bytes(first, 0, 1), bytes(first, 3, 1)}, {bytes(second, 0, 2)}, {bytes(third, 0, 2)}};
  auto ranks = beside_peer(1, {"xyzz", "xyz"});
  exchange_made(items, std::vector<int>{0, 1, 0}, {&ranks});
  EXPECT_EQ(first + second + third, "x..yabzz");
  expect_unexpected("rank 0 sent 3 bytes where 4 were expected", [&] {
    exchange_made(items, std::vector<int>{0, 1, 0}, {&ranks});
  });
  exchange_made(items, std::vector<int>{0, 0, 0}, {});
  EXPECT_EQ(second, "ab");
}

TEST(SharedWork, FilesOfOtherRanksLieInTheFolder) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const auto gathered = [&](const std::vector<std::string>& messages) {
    auto ranks = beside_peer(0, messages);
    return gather_files(&ranks, folder.path(), {});
  };
  EXPECT_EQ(gathered({R"([["a",3],["b",0]])", "ab", "c", ""}), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(std::filesystem::file_size(folder.path() / "a"), 3U);
  for (const char* name : {"../out", "sub/out", "/tmp/out", "..", ".", ""})
    expect_unexpected("rank 1 sent no list of its files", [&] {
      gathered({R"([[")" + std::string(name) + R"(",1]])", "x", ""});
    });
  for (const char* list : {"{}", "[1]", "[[1,1]]", R"([["a"]])", R"([["a",-1]])", R"([["a",1.5]])", "[", "7"})
    expect_unexpected("rank 1 sent no list of its files", [&] { gathered({list, "x", ""}); });
  expect_unexpected("rank 1 sent more than it announced", [&] { gathered({R"([["c",1]])", "x", "y", ""}); });
  expect_unexpected("rank 1 sent less than it announced", [&] { gathered({R"([["d",2]])", "x", ""}); });
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "d"));
}

}  // namespace
}  // namespace detent::shim
