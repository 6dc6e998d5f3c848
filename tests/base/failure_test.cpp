#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

namespace detent {
namespace {

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

}  // namespace
}  // namespace detent
