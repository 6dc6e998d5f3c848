#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/numbers.h"
#include "base/text.h"
#include "detent/error.h"

namespace detent::test {
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

TEST(EditDistance, CountsSteps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("preset", "perset"), 1u) << "two neighbours exchanged";
  EXPECT_EQ(edit_distance("ca", "abc"), 3u) << "an exchanged pair is not changed again";
}

TEST(NearestWord, IsNear) {
  constexpr std::array<std::string_view, 5> kWords{"calibration-data", "percentile", "mse", "quantize", "threads"};
  const auto nearest = [&](std::string_view typed) { return nearest_word(typed, kWords).value_or("none"); };
  EXPECT_EQ(nearest("calibration-dta"), "calibration-data");
  EXPECT_EQ(nearest("quantise"), "quantize");
  EXPECT_EQ(nearest("MSE"), "mse");
  EXPECT_EQ(nearest("data"), "calibration-data") << "a part of it";
  EXPECT_EQ(nearest("thraeds"), "threads");
  EXPECT_EQ(nearest("calib"), "calibration-data") << "its beginning";
  for (const auto far : {"", "x", "frobnicate", "int8"}) EXPECT_EQ(nearest(far), "none") << far;
  EXPECT_EQ(did_you_mean("thread", kWords, "--"), "did you mean --threads?");
  EXPECT_EQ(did_you_mean("nothing", kWords, "--"), "");
}

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

// JSON from outside: what is read is bounded, in linear time, and what is written is JSON whatever names hold.

using Ordered = nlohmann::ordered_json;

std::string nested(std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

template <class Json>
class JsonOf : public ::testing::Test {};
using Kinds = ::testing::Types<nlohmann::json, Ordered>;
TYPED_TEST_SUITE(JsonOf, Kinds);

TYPED_TEST(JsonOf, IsWhatTheLibraryReads) {
  for (const std::string text : {R"({"b":1,"a":[true,null,-2,3.5,"x",{"c":{}}],"":""})", R"([])", R"("text")",
                                 R"(1e300)", R"(18446744073709551615)", R"({"a":1,"b":2,"a":{"a":3}})",
                                 R"([{"a":[[]]},{"a":{"b":[0]}}])", R"("\ud83d\ude00\u0000")"}) {
    const auto read = parse_json<TypeParam>(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, TypeParam::parse(text)) << text;
    EXPECT_EQ(json_text(*read), TypeParam::parse(text).dump()) << text;
  }
}

TYPED_TEST(JsonOf, RefusesWhatIsNone) {
  for (const std::string text : {"", " ", "{", "[1,]", "{\"a\"}", "[1]]", "nul", "\"\xff\"", "{\"\xc3\":1}", "1e999",
                                 "\xef\xbb", "'a'", "[1] //", "\"\\ud800\""})
    EXPECT_FALSE(parse_json<TypeParam>(text)) << text;
}

TYPED_TEST(JsonOf, HasSoManyLevelsAndValues) {
  EXPECT_TRUE(parse_json<TypeParam>(nested(kMostJsonLevels)));
  EXPECT_FALSE(parse_json<TypeParam>(nested(kMostJsonLevels + 1)));
  EXPECT_FALSE(parse_json<TypeParam>(nested(5'000'000)));
  EXPECT_FALSE(parse_json<TypeParam>(std::string(5'000'000, '[')));
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += R"({"a":)";
  EXPECT_FALSE(parse_json<TypeParam>(objects));
  std::string many = "[0";
  for (std::size_t i = 2; i < kMostJsonValues; ++i) many += ",0";
  EXPECT_TRUE(parse_json<TypeParam>(many + "]"));
  EXPECT_FALSE(parse_json<TypeParam>(many + ",0]"));
}

// Quadratic time would be minutes.
TYPED_TEST(JsonOf, MembersAreReadInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 400'000; ++i) text += "\"" + std::to_string(i) + "\":0,";
  text += "\"0\":1}";
  const auto read = parse_json<TypeParam>(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->size(), 400'000U);
  EXPECT_EQ(read->begin().value(), 1);  // the last of two with a name, where the first stood
}

TEST(JsonText, IsUtf8WhateverNamesHold) {
  EXPECT_EQ(json_text(nlohmann::json{{"a\xff", "b\xc3"}}), "{\"a\xEF\xBF\xBD\":\"b\xEF\xBF\xBD\"}");
  EXPECT_EQ(json_text(Ordered{{"z", 1}, {"a", 2}}, 1), "{\n \"z\": 1,\n \"a\": 2\n}");
}

TEST(SealedJson, IsReadAsItWasWrittenOrNotAtAll) {
  const nlohmann::json object{{"done", 3}, {"name", "n"}};
  const auto text = sealed_json_text(object);
  EXPECT_EQ(parse_sealed_json(text), object);
  EXPECT_EQ(parse_sealed_json(sealed_json_text({{"sum", 1}})), nlohmann::json::object());
  EXPECT_FALSE(parse_sealed_json(json_text(object)));
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {1, 2, 16}) {
      auto changed = text;
      changed[i] = static_cast<char>(changed[i] ^ bit);
      EXPECT_FALSE(parse_sealed_json(changed)) << changed;
    }
  }
  for (const std::string other : {"", "[]", "{}", "{\"sum\":1}", "{\"sum\":[]}"})
    EXPECT_FALSE(parse_sealed_json(other)) << other;
}

TEST(JsonNames, ComeBackAsTheyWere) {
  const std::vector<std::string> names{"", "conv1", "Größe", "\xff", "a\xc3(", "\xed\xa0\x80", {'\0', 'x'}};
  for (const auto& name : names) {
    const auto text = json_text(json_of_name(name));
    const auto read = parse_json(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(name_of_json(*read), name);
  }
  EXPECT_EQ(json_text(json_of_name("conv1")), "\"conv1\"");
  EXPECT_NE(json_of_name("\xfe"), json_of_name("\xff"));
  for (const auto& other : {nlohmann::json(1), nlohmann::json{{"hex", 1}}, nlohmann::json{{"hex", "0"}},
                            nlohmann::json{{"hex", "0g"}}, nlohmann::json{{"other", "00"}}, nlohmann::json(nullptr)})
    EXPECT_FALSE(name_of_json(other)) << other;
}

// Known answers of the generator's authors (Random123, kat_vectors).
TEST(Philox, GivesItsAuthorsAnswers) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kAll = 0xffffffff;
  EXPECT_EQ(philox({kAll, kAll, kAll, kAll}, {kAll, kAll}), (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, DiffersBySeedAndPlace) {
  std::set<std::array<std::uint32_t, 4>> seen;
  for (const std::uint64_t v : {std::uint64_t{1}, std::uint64_t{1} << 40}) {
    seen.insert(random_at(v, 0, 0));
    seen.insert(random_at(0, v, 0));
    seen.insert(random_at(0, 0, v));
  }
  EXPECT_EQ(seen.size(), 6U);
}

TEST(Below, CoversTheRange) {
  EXPECT_EQ(scale_to_bound(10, 0), 0U);
  EXPECT_EQ(scale_to_bound(10, 0xffffffff), 9U);
  EXPECT_EQ(scale_to_bound(1, 0xffffffff), 0U);
}

constexpr std::uint64_t kFull = ~std::uint64_t{0};

Fingerprint of(std::string_view text) {
  Hasher hasher;
  hasher.add(text);
  return hasher.result();
}

TEST(Fingerprint, IsXxh3Of128Bits) {
  // The values of xxhsum -H128 (XXH3, seed 0).
  EXPECT_EQ(of("").text(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(of("a").text(), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Fingerprint, PiecesDoNotMatter) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 31 % 251);
  const Fingerprint whole = of(text);
  for (const std::size_t piece : {1UL, 7UL, 64UL, 1000UL, 2999UL}) {
    Hasher hasher;
    for (std::size_t at = 0; at < text.size(); at += piece) hasher.add(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hasher.result(), whole) << piece;
    EXPECT_EQ(hasher.result(), whole) << "asking again changes nothing";
  }
}

TEST(Fingerprint, TakesBytesTextAndNumbersAlike) {
  Hasher bytes, number;
  const std::string text = "\x01\x02\x03\x04\x05\x06\x07\x08";
  bytes.add(std::as_bytes(std::span(text.data(), text.size())));
  number.add(std::uint64_t{0x0807060504030201});
  EXPECT_EQ(bytes.result(), of(text));
  EXPECT_EQ(number.result(), of(text));
}

TEST(Fingerprint, EveryBitCounts) {
  std::string text(100, 'x');
  std::set<std::string> seen{of(text).text()};
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_TRUE(seen.insert(of(text).text()).second) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_TRUE(seen.insert(of(text + std::string(1, '\0')).text()).second);
}

TEST(Fingerprint, SumsDoNotDependOnTheOrder) {
  std::vector<Fingerprint> parts;
  for (int i = 0; i < 6; ++i) parts.push_back(of(std::string(1, static_cast<char>('a' + i))));
  Fingerprint expected;
  for (const auto& p : parts) expected += p;
  do {
    Fingerprint sum;
    for (const auto& p : parts) sum += p;
    ASSERT_EQ(sum, expected);
  } while (
      std::next_permutation(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.low < b.low; }));
}

TEST(Fingerprint, AddsAs128Bits) {
  Fingerprint sum{kFull, 5};
  sum += {1, 2};
  EXPECT_EQ(sum, (Fingerprint{0, 8}));
  sum = {kFull, kFull};
  sum += {kFull, kFull};
  EXPECT_EQ(sum, (Fingerprint{kFull - 1, kFull}));
  sum = {3, 4};
  sum += {};
  EXPECT_EQ(sum, (Fingerprint{3, 4}));
  sum += sum;
  EXPECT_EQ(sum, (Fingerprint{6, 8}));
  sum = {kFull - 1, 0};
  sum += sum;
  EXPECT_EQ(sum, (Fingerprint{kFull - 3, 1})) << "a sum with itself carries as well";
}

TEST(Fingerprint, TextHas32Digits) {
  EXPECT_EQ(Fingerprint().text(), std::string(32, '0'));
  EXPECT_EQ((Fingerprint{0xab, 0x1}).text(), "000000000000000100000000000000ab");
}

}  // namespace
}  // namespace detent::test
