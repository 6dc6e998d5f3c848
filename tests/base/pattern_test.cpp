#include "base/text.h"

#include <gtest/gtest.h>

#include <ctime>

#include "detent/error.h"

namespace detent {
namespace {

TEST(Pattern, MatchesTheWholeText) {
  const Pattern pattern("^/head/.*");
  EXPECT_TRUE(pattern.matches_whole("/head/MatMul"));
  EXPECT_FALSE(pattern.matches_whole("a/head/MatMul"));
  EXPECT_FALSE(Pattern("^/head").matches_whole("/head/MatMul"));
  EXPECT_TRUE(Pattern("^conv_[0-9]+$").matches_whole("conv_12"));
  EXPECT_TRUE(Pattern("^.*").matches_whole("\xff\xfe")) << "names need not be UTF-8";
  EXPECT_TRUE(Pattern("^caf\xc3\xa9").matches_whole("caf\xc3\xa9"));
}

TEST(Pattern, BadOnesAreUsageErrors) {
  for (const char* bad : {"^(a", "^[", "^(?!x)y", "^(a)\\1", "^((((((((a{999}){999}){999}){999}))))){999}"}) {
    try {
      const Pattern pattern(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(e.what()).find("not a valid regular expression"), std::string::npos) << e.what();
    }
  }
}

// What takes exponential time, or recurses over every character, elsewhere.
TEST(Pattern, TakesLinearTime) {
  const auto start = std::clock();
  EXPECT_FALSE(Pattern("^(a+)+b").matches_whole(std::string(100'000, 'a')));
  EXPECT_FALSE(Pattern("^(a|aa)+$|^(.*)(.*)(.*)(.*)c").matches_whole(std::string(1'000'000, 'a') + "!"));
  EXPECT_EQ(Pattern("(a|b)+").replace_all(std::string(1'000'000, 'a'), "c"), "c");
  EXPECT_LT(std::clock() - start, 60 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace detent
