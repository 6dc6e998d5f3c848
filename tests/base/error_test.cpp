#include "base/error.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <utility>

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

}  // namespace
}  // namespace detent
