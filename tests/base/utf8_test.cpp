#include "base/text.h"

#include <gtest/gtest.h>

#include <string>

namespace detent {
namespace {

TEST(Utf8, ReadsOneCodePoint) {
  const auto a = first_code_point("ab");
  EXPECT_TRUE(a.valid && a.value == U'a' && a.length == 1);
  const auto umlaut = first_code_point("\u00fcx");
  EXPECT_TRUE(umlaut.valid && umlaut.value == 0xFC && umlaut.length == 2);
  const auto check = first_code_point("\u2713");
  EXPECT_TRUE(check.valid && check.value == 0x2713 && check.length == 3);
  const auto face = first_code_point("\U0001F600");
  EXPECT_TRUE(face.valid && face.value == 0x1F600 && face.length == 4);
  EXPECT_TRUE(first_code_point(kReplacementCharacter).valid);
}

TEST(Utf8, WhatIsMalformedIsOneByte) {
  for (const std::string bytes : {"\xFF", "\x80", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                  "\xE2\x82", "\xF0\x9F\x98", "\xC3z"}) {
    const auto found = first_code_point(bytes);
    EXPECT_FALSE(found.valid) << bytes;
    EXPECT_EQ(found.length, 1u);
    EXPECT_EQ(found.value, char32_t{0xFFFD});
  }
}

}  // namespace
}  // namespace detent
