#include "shim/ranks.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"

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

}  // namespace
}  // namespace detent::shim
