// JSON from outside: what is read is bounded, in linear time, and what is written is JSON whatever names hold.
#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace detent::test {
namespace {

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

}  // namespace
}  // namespace detent::test
