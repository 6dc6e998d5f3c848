#include "base/text.h"

#include <gtest/gtest.h>

#include "detent/error.h"

namespace detent {
namespace {

TEST(ParseSize, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("123"), 123u);
  EXPECT_EQ(parse_size("123B"), 123u);
  EXPECT_EQ(parse_size("64KiB"), 64u << 10);
  EXPECT_EQ(parse_size("2GB"), 2'000'000'000u);
  EXPECT_EQ(parse_size("2GiB"), 2ull << 30);
  EXPECT_EQ(parse_size("1.5GiB"), 3ull << 29);
}

TEST(ParseSize, IgnoresCaseAndSpaceBeforeTheUnit) {
  EXPECT_EQ(parse_size("1.5 gib"), parse_size("1.5GIB"));
  EXPECT_EQ(parse_size("10 mib"), 10u << 20);
}

TEST(ParseSize, RefusesWhatIsNotASize) {
  for (const char* text :
       {"", " ", "GiB", "-1", "-5MiB", "1.5.2", "12parsecs", "0x10", "nan", "inf", "1e300", "1 2", "9e18GiB"}) {
    try {
      parse_size(text);
      ADD_FAILURE() << "'" << text << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << text;
      EXPECT_FALSE(error.hint().empty()) << text;
    }
  }
}

TEST(FormatSize, KeepsAtMostOneDecimal) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(12), "12 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1.0 KiB");
  using Texts = std::pair<std::string, std::string>;
  EXPECT_EQ(format_sizes(1024, 2048), Texts("1.0 KiB", "2.0 KiB"));
  EXPECT_EQ(format_sizes(5242881, 5242880), Texts("5242881 B", "5242880 B"));
  EXPECT_EQ(format_sizes(1024, 1024), Texts("1.0 KiB", "1.0 KiB"));
  EXPECT_EQ(format_size(640u << 10), "640 KiB");
  EXPECT_EQ(format_size(3ull << 29), "1.5 GiB");
}

TEST(FormatSize, IsReadBackByParseSize) {
  for (const std::uint64_t bytes : {1ull, 512ull, 1ull << 10, 200ull << 20, 3ull << 29, 1ull << 30}) {
    EXPECT_EQ(parse_size(format_size(bytes)), bytes);
  }
}

TEST(Views, TextAndBytesAreTheSameMemory) {
  const std::string text("a\0b", 3);
  const auto bytes = as_byte_span(text);
  ASSERT_EQ(bytes.size(), 3u);
  EXPECT_EQ(bytes[1], std::byte{0});
  EXPECT_EQ(as_text(bytes), text);
  EXPECT_EQ(static_cast<const void*>(as_text(bytes).data()), text.data());
}

}  // namespace
}  // namespace detent
