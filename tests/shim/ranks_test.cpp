#include <gtest/gtest.h>

#include <dlfcn.h>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "mpi/peer.h"
#include "shim/ranks.h"
#include "shim/shared_work.h"

namespace detent::shim {
namespace {

// The plugin here is tests/mpi/fake_plugin.cpp; the real one is tested by tests/mpi/test_ranks.py. Each test is a
// process of its own, so what it sets in the environment concerns no other.
class RanksTest : public testing::Test {
 protected:
  RanksTest() {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
                                 "PMIX_RANK", "DETENT_MPI_PLUGIN", "FAKE_MPI"})
      ::unsetenv(variable);
  }

  static void set(const char* variable, const char* value) { ::setenv(variable, value, 1); }

  /// Two processes by the environment, and the fake plugin with this fault.
  static Ranks join_fake(const char* fault) {
    set("PMI_SIZE", "2");
    set("FAKE_MPI", fault);
    return Ranks::join(FAKE_PLUGIN);
  }

  /// What `call` throws, which has to be of this kind: message and hint in one line.
  template <class Call>
  static std::string error_of(const Call& call, ErrorKind kind = ErrorKind::device) {
    try {
      call();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      return std::string(e.what()) + "; " + e.hint();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }

  static void expect_in(const std::string& part, const std::string& whole) {
    EXPECT_NE(whole.find(part), std::string::npos) << "'" << part << "' is not in: " << whole;
    EXPECT_EQ(whole.find('\n'), std::string::npos) << "more than one line: " << whole;
  }

  static void expect_alone() {
    const Ranks ranks = Ranks::join();
    EXPECT_EQ(ranks.rank(), 0);
    EXPECT_EQ(ranks.size(), 1);
  }
};

bool is_loaded(const char* library) { return ::dlopen(library, RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST_F(RanksTest, AreOneWhenStartedPlainly) {
  set("DETENT_MPI_PLUGIN", FAKE_PLUGIN);
  Ranks ranks = Ranks::join();
  EXPECT_EQ(ranks.rank(), 0);
  EXPECT_EQ(ranks.size(), 1);
  EXPECT_FALSE(is_loaded(FAKE_PLUGIN));
  ranks.gather({}, [](int, std::span<const std::byte>) { FAIL() << "there is nobody to take from"; });
  ranks.barrier();
  EXPECT_EXIT(ranks.abort(3), testing::ExitedWithCode(3), "");
}

TEST_F(RanksTest, NeedNoMpiWhenTheLauncherStartedOne) {
  set("OMPI_COMM_WORLD_SIZE", "1");
  set("PMIX_RANK", "0");
  set("DETENT_MPI_PLUGIN", FAKE_PLUGIN);
  expect_alone();
  EXPECT_FALSE(is_loaded(FAKE_PLUGIN));
}

TEST_F(RanksTest, FollowTheNearestLauncher) {
  // mpirun -n 1 in a Slurm job of four nodes.
  set("OMPI_COMM_WORLD_SIZE", "1");
  set("SLURM_STEP_NUM_TASKS", "4");
  expect_alone();
}

TEST_F(RanksTest, AreOneInABatchScript) {
  set("SLURM_NTASKS", "4");
  set("SLURM_PROCID", "0");
  expect_alone();
}

TEST_F(RanksTest, KnowEachLauncher) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    set(variable, "4");
    const std::string error = error_of([] { Ranks::join("/nowhere/libdetent_mpi.so"); });
    expect_in("one of 4 processes (" + std::string(variable) + ")", error);
    expect_in("'/nowhere/libdetent_mpi.so'", error);
    ::unsetenv(variable);
  }
  set("PMIX_RANK", "0");
  expect_in("one of several processes (PMIX_RANK)", error_of([] { Ranks::join("/nowhere/libdetent_mpi.so"); }));
}

TEST_F(RanksTest, LookForThePluginBesideTheExecutable) {
  // Nothing is beside the tests.
  set("OMPI_COMM_WORLD_SIZE", "4");
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string error = error_of([] { Ranks::join(); });
  expect_in((here / "libdetent_mpi.so").string(), error);
  expect_in((here.parent_path() / "lib" / "libdetent_mpi.so").string(), error);
  expect_in("DETENT_MPI_PLUGIN", error);
}

TEST_F(RanksTest, WorkAloneWhenToldTo) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("DETENT_MPI_PLUGIN", "none");
  expect_alone();
}

TEST_F(RanksTest, RefuseASizeThatIsNone) {
  for (const char* size : {"many", "0", "-2", "4x", "99999999999999"}) {
    set("PMI_SIZE", size);
    expect_in("PMI_SIZE='" + std::string(size) + "'", error_of([] { Ranks::join(); }));
  }
}

TEST_F(RanksTest, RefuseWhatIsNoPlugin) {
  set("PMI_SIZE", "2");
  expect_in("has no symbol detent_mpi", error_of([] { Ranks::join("libm.so.6"); }));
  expect_in("another version", error_of([] { join_fake("version"); }));
}

TEST_F(RanksTest, RefuseAnMpiThatSeesOthers) {
  expect_in("sees 1 of them", error_of([] { join_fake("alone"); }));
}

TEST_F(RanksTest, AskMpiWhenTheLauncherDoesNotSay) {
  set("PMIX_RANK", "0");
  EXPECT_EQ(Ranks::join(FAKE_PLUGIN).size(), 2);
}

TEST_F(RanksTest, ReportWhatMpiSays) {
  expect_in("cable 7 is cut", error_of([] { join_fake("start"); }));
  const auto gather = [](const char* fault) { join_fake(fault).gather({}, [](int, std::span<const std::byte>) {}); };
  expect_in("MPI failed to wait for rank 1: cable 7 is cut", error_of([&] { gather("arrived"); }));
  expect_in("MPI failed to receive from rank 1: cable 7 is cut", error_of([&] { gather("receive"); }));
  expect_in("MPI failed to send to rank 1: cable 7 is cut", error_of([&] { gather("send"); }));
}

TEST_F(RanksTest, LeaveMpiInOrderAndOnce) {
  testing::internal::CaptureStdout();
  {
    Ranks ranks = join_fake("");
    Ranks moved = std::move(ranks);
    moved.barrier();
    EXPECT_EQ(moved.size(), 2);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "finished\n");
}

// To leave in order is to wait for the others, who may wait for this one.
TEST_F(RanksTest, DoNotWaitForOthersAfterAnError) {
  testing::internal::CaptureStdout();
  error_of([] {
    const Ranks ranks = join_fake("");
    throw device_error("elsewhere");
  });
  {
    Ranks ranks = join_fake("");
    error_of([&] { ranks.gather({}, [](int, std::span<const std::byte>) { throw device_error("in take"); }); });
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST_F(RanksTest, StopWaitingOnRequest) {
  std::stop_source source;
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    source.request_stop();
  });
  const std::stop_token stop = source.get_token();
  error_of([&] { join_fake("silence").barrier(stop); }, ErrorKind::interrupted);
  error_of([&] { join_fake("silence").gather({}, nullptr, stop); }, ErrorKind::interrupted);
}

TEST_F(RanksTest, EndWithTheExitCode) { EXPECT_EXIT(join_fake("").abort(4), testing::ExitedWithCode(4), ""); }

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
