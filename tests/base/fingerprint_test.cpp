#include "base/numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace detent {
namespace {

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
}  // namespace detent
