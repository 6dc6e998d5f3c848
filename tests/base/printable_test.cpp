#include "base/text.h"

#include <gtest/gtest.h>

namespace detent {
namespace {

TEST(Printable, EscapesWhatMovesACursorOrBreaksALine) {
  EXPECT_EQ(printable("plain \u00fc \u2713"), "plain \u00fc \u2713");
  EXPECT_EQ(printable("a\x1b[2Jb\nc\x7f"), "a\\x1b[2Jb\\x0ac\\x7f");
  EXPECT_EQ(printable("\u009b2J"), "\\xc2\\x9b2J") << "the same as ESC [";
  EXPECT_EQ(printable("\u202Eabc"), "\\xe2\\x80\\xaeabc") << "turns the direction of what follows";
  EXPECT_EQ(printable_lines("a\nb\r"), "a\nb\\x0d");
}

TEST(Printable, EscapesWhatIsNoUtf8) { EXPECT_EQ(printable("a\xff\xc3z"), "a\\xff\\xc3z"); }

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("a\u00fcb", 4), "a\u00fcb");
  EXPECT_EQ(printable("a\u00fcb", 3), "a\u00fc...");
  EXPECT_EQ(printable("a\u00fcb", 2), "a...");
}

}  // namespace
}  // namespace detent
