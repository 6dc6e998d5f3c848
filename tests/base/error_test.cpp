#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "detent/device.h"

namespace detent {
namespace {

TEST(Error, KindsHaveTheDocumentedExitCodes) {
  const std::array<std::pair<Error, int>, 6> cases{{{internal_error("x"), 1},
                                                    {usage_error("x"), 2},
                                                    {bad_input("x"), 3},
                                                    {resource_error("x"), 4},
                                                    {device_error("x"), 5},
                                                    {interrupted(), 130}}};
  for (const auto& [error, code] : cases) EXPECT_EQ(exit_code(error.kind()), code);
}

TEST(Error, CarriesMessageAndHint) {
  const Error error = bad_input("tensor 'x' is cut short", "export the model again");
  EXPECT_STREQ(error.what(), "tensor 'x' is cut short");
  EXPECT_EQ(error.hint(), "export the model again");
  EXPECT_TRUE(usage_error("no hint").hint().empty());
}

TEST(Error, ErrnoHasAText) { EXPECT_EQ(errno_text(ENOENT), "No such file or directory"); }

Error of(const auto& thrown) { return as_error(std::make_exception_ptr(thrown)); }

TEST(Failure, OfTheMachineIsAResource) {
  for (const int code : {ENOSPC, EDQUOT, EFBIG, EMFILE, ENFILE, EAGAIN, ENOMEM, EIO}) {
    const auto error = failed_call(code, "cannot open 'm'", ErrorKind::bad_input, "check it");
    EXPECT_EQ(error.kind(), ErrorKind::resource) << code;
    EXPECT_NE(error.hint(), "check it");
    EXPECT_FALSE(error.hint().empty());
  }
  const auto error = failed_call(ENOENT, "cannot open 'm'", ErrorKind::bad_input, "check it");
  EXPECT_EQ(error.kind(), ErrorKind::bad_input);
  EXPECT_STREQ(error.what(), "cannot open 'm': No such file or directory");
  EXPECT_EQ(error.hint(), "check it");
}

TEST(Failure, OfTheStandardLibraryIsWhatItStandsFor) {
  const auto long_name = std::make_error_code(std::errc::filename_too_long);
  const auto path = of(std::filesystem::filesystem_error("status", "aaa", long_name));
  EXPECT_EQ(path.kind(), ErrorKind::bad_input);
  EXPECT_STREQ(path.what(), "cannot use 'aaa': File name too long");
  const auto thread = of(std::system_error(EAGAIN, std::generic_category(), "thread"));
  EXPECT_EQ(thread.kind(), ErrorKind::resource);
  EXPECT_NE(std::string(thread.what()).find("thread"), std::string::npos);
  EXPECT_EQ(of(std::bad_alloc()).kind(), ErrorKind::resource);
  EXPECT_EQ(of(std::logic_error("x")).kind(), ErrorKind::internal);
  EXPECT_EQ(of(Error(ErrorKind::device, "gone", "h")).hint(), "h");
}

// Named places where a run can be made to fail: each case in a process of its own, which reads the variable anew.

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

TEST(Devices, AreNumbersAfterCuda) {
  EXPECT_EQ(parse_devices("cpu"), std::vector<int>());
  EXPECT_EQ(parse_devices("cuda"), std::vector<int>({0}));
  EXPECT_EQ(parse_devices("cuda:3"), std::vector<int>({3}));
  EXPECT_EQ(parse_devices("cuda:1,cuda:0,cuda:12"), std::vector<int>({1, 0, 12}));
}

TEST(Devices, OthersAreRefused) {
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:0,", ",cuda:0", "cuda:0,cpu",
                           "cpu,cuda:0", "cuda:0,cuda:0", "cuda,cuda:0", "cuda:99999999999", "CUDA:0", "cuda:0 "}) {
    try {
      parse_devices(text);
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage) << text;
    }
  }
}

}  // namespace
}  // namespace detent
