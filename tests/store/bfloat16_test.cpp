#include "store/lane_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "store/support.h"

namespace detent::store::test {
namespace {

// The nearest of the two bfloat16 that stand beside a value, found in double precision.
std::uint16_t reference(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto below = static_cast<std::uint16_t>(bits >> 16);
  if (std::isnan(value) || std::isinf(value) || (bits & 0xFFFF) == 0) return below;
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double low = std::bit_cast<float>(static_cast<std::uint32_t>(below) << 16);
  double high = std::bit_cast<float>(static_cast<std::uint32_t>(above) << 16);
  if (std::isinf(high)) high = std::copysign(std::ldexp(1.0, 128), high);
  const double to_low = std::abs(value - low);
  const double to_high = std::abs(value - high);
  if (to_low != to_high) return to_low < to_high ? below : above;
  return below % 2 == 0 ? below : above;
}

std::uint16_t narrowed(float value) {
  std::uint16_t half = 0;
  narrow(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(&half, 1)));
  return half;
}

TEST(Bfloat16, RoundsToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    // Also the neighbourhood of ties.
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (i % 4 == 0) bits = (bits & 0xFFFF0000U) + 0x7FFFU + static_cast<std::uint32_t>(i / 4 % 3);
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(narrowed(value), reference(value)) << value;
  }
}

TEST(Bfloat16, KeepsWhatIsNoNumber) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(narrowed(infinity), 0x7F80);
  EXPECT_EQ(narrowed(-infinity), 0xFF80);
  EXPECT_EQ(narrowed(std::numeric_limits<float>::max()), 0x7F80);
  for (const std::uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0xFFC00000U, 0x7F80FFFFU}) {
    const std::uint16_t half = narrowed(std::bit_cast<float>(bits));
    EXPECT_GT(half & 0x7FFF, 0x7F80) << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
  }
}

class HalfPrecision : public SpoolTest {};

TEST_F(HalfPrecision, IsTheSameWhereverARecordRests) {
  const Array floats = array_of(DataType::float32, {1001, 3}, 1);
  const Array others = array_of(DataType::bfloat16, {17}, 2);
  const Array scalar = array_of(DataType::float32, {}, 3);
  const Array none = array_of(DataType::float32, {0}, 4);
  Record expected = {floats, others, scalar, none};
  for (Array& array : expected) {
    if (array.type != DataType::float32) continue;
    auto values = std::make_shared<std::vector<std::uint32_t>>();
    for (std::size_t i = 0; i < array.bytes.size(); i += 4) {
      float value;
      std::memcpy(&value, array.bytes.data() + i, 4);
      values->push_back(static_cast<std::uint32_t>(narrowed(value)) << 16);
    }
    array.bytes = std::as_bytes(std::span(*values));
    array.owner = values;
  }
  for (const Residency residency : {Residency::memory, Residency::disk}) {
    SpoolOptions with = options(residency);
    with.half_precision = true;
    Spool spool(with);
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < 3; ++i) spool.put(lane, i, {floats, others, scalar, none});
    EXPECT_TRUE(same(spool.get(lane, 0), expected));
    spool.sync();
    EXPECT_TRUE(same(spool.get(lane, 0), expected));
    if (residency == Residency::memory) {
      EXPECT_LE(spool.use().memory_peak, 3u * (3003 * 2 + 34 + 2));
      continue;
    }
    Spool full(options(Residency::disk));  // a file knows by itself what it holds
    EXPECT_TRUE(same(full.get(full.open("a"), 2), expected));
    full.close(full.open("a"));
  }
}

}  // namespace
}  // namespace detent::store::test
