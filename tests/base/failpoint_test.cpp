// Named places where a run can be made to fail: each case in a process of its own, which reads the variable anew.
#include "base/error.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace detent {
namespace {

// What the third of three calls returns.
int third_of(const char* setting, const char* name) {
  ::setenv("DETENT_FAILPOINT", setting, 1);
  failpoint(name);
  failpoint(name);
  return failpoint(name);
}

TEST(Failpoint, KillsWhereItIsNamed) {
  EXPECT_EXIT(third_of("here=kill@3", "here"), testing::KilledBySignal(SIGKILL), "");
}

TEST(Failpoint, ReturnsTheErrorOnce) {
  EXPECT_EXIT(std::exit(third_of("here=EIO@3", "here")), testing::ExitedWithCode(EIO), "");
  EXPECT_EXIT(std::exit(third_of("here=ENOSPC@2", "here")), testing::ExitedWithCode(0), "");
}

TEST(Failpoint, DoesNothingElsewhereOrWithoutSense) {
  EXPECT_EXIT(std::exit(third_of("here=kill", "there")), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(third_of("here", "here")), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(third_of("here=sing@3", "here")), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace detent
