#include "quantization/blocks/blocks.h"

#include <gtest/gtest.h>

#include <numeric>

namespace detent::quantization {
namespace {

std::vector<int> numbers(std::span<const std::byte> bytes) {
  std::vector<int> out;
  for (const auto byte : bytes) out.push_back(std::to_integer<int>(byte));
  return out;
}

TEST(Pack, FirstInTheLowestBits) {
  const std::vector<std::uint8_t> integers{1, 2, 3, 0, 2};
  std::vector<std::byte> packed(2);
  pack(integers, 2, packed.data());
  EXPECT_EQ(numbers(packed), (std::vector<int>{0b00'11'10'01, 0b10}));
  packed.resize(3);
  pack(integers, 4, packed.data());
  EXPECT_EQ(numbers(packed), (std::vector<int>{0x21, 0x03, 0x02}));
  packed.resize(5);
  pack(integers, 8, packed.data());
  EXPECT_EQ(numbers(packed), (std::vector<int>{1, 2, 3, 0, 2}));
}

BlockWeight two_columns() {
  auto weight = make_blocks(5, 2, {.bits = 4, .block = 2, .symmetric = false});
  std::iota(weight.integers.begin(), weight.integers.end(), std::uint8_t{1});
  weight.zero_points = {1, 2, 3, 4, 5, 6};
  return weight;
}

TEST(PackedColumns, FillsTheLastBlock) {
  EXPECT_EQ(numbers(packed_columns(two_columns())), (std::vector<int>{0x21, 0x43, 0x05, 0x76, 0x98, 0x0A}));
}

TEST(PackedZeroPoints, BeginAtAByte) {
  EXPECT_EQ(numbers(packed_zero_points(two_columns())), (std::vector<int>{0x21, 0x83, 0x54, 0x86}));
}

TEST(PackedRows, ColumnsBecomeRowsWhateverTheStripes) {
  const auto weight = two_columns();
  for (const bool at_once : {true, false}) {
    PackedRows rows(5, 2, 4);
    const std::span<const std::uint8_t> all(weight.integers);
    if (at_once) {
      rows.put(0, all, 0);
    } else {
      rows.put(1, all.subspan(5), 0);
      rows.put(0, all.first(5), 0);
    }
    EXPECT_EQ(numbers(rows.bytes()), (std::vector<int>{0x61, 0x72, 0x83, 0x94, 0xA5}));
  }
}

TEST(PackedRows, TypesWithASign) {
  PackedRows rows(2, 1, 4);
  const std::vector<std::uint8_t> integers{7, 9};
  rows.put(0, integers, 8);
  EXPECT_EQ(numbers(rows.bytes()), (std::vector<int>{0x1F}));
}

}  // namespace
}  // namespace detent::quantization
