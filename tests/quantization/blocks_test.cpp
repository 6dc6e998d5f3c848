#include "quantization/blocks/blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "detent/error.h"

namespace detent::quantization {
namespace {

struct Reference {
  int bits;
  bool symmetric;
  std::string scales, zero_points, integers;
};

const Reference kReferences[] = {
#include "nearest_blocks.inc"
};

constexpr std::int64_t kRows = 70;
constexpr std::int64_t kColumns = 4;

// Plain values, values far from zero, a block of zeros before constant blocks, plain values.
std::vector<float> reference_weight() {
  std::vector<float> values;
  for (std::uint64_t i = 0; i < kRows * kColumns; ++i) {
    const auto x = static_cast<float>(((i * 1103515245 + 12345) >> 7) & 0xffffU);
    const auto column = i / kRows;
    float v = (x - 32768) / 4096;
    if (column == 1) v += 16;
    if (column == 2) v = i % kRows < 32 ? 0.0F : 1.5F;
    values.push_back(v);
  }
  return values;
}

template <class T>
std::string hex(const std::vector<T>& values) {
  std::string text;
  for (const auto v : values) {
    char digits[9];
    if constexpr (sizeof(T) == 4) {
      std::snprintf(digits, sizeof digits, "%08x", std::bit_cast<unsigned>(v));
    } else {
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(v));
    }
    text += digits;
  }
  return text;
}

TEST(Blocks, NearestIsAsOnnxRuntimesQuantizerHasIt) {
  for (const auto& reference : kReferences) {
    const BlockFormat format{.bits = reference.bits, .block = 32, .symmetric = reference.symmetric};
    const auto made = nearest(reference_weight(), kRows, format);
    EXPECT_EQ(made.columns, kColumns);
    EXPECT_EQ(hex(made.scales), reference.scales) << reference.bits << " bits, symmetric " << reference.symmetric;
    EXPECT_EQ(hex(made.zero_points), reference.zero_points) << reference.bits;
    EXPECT_EQ(hex(made.integers), reference.integers) << reference.bits << " bits, symmetric " << reference.symmetric;
  }
}

TEST(Blocks, HalvesGoAwayFromZeroExactly) {
  const float below = std::nextafter(0.5F, 0.0F);
  const std::vector<float> values{0.5F, below, 1.5F, -0.5F, -3.0F, 200.0F};
  std::vector<std::uint8_t> integers(values.size());
  round_block(values, {.scale = 1, .zero_point = 0}, 4, integers.data());
  EXPECT_EQ(integers, (std::vector<std::uint8_t>{1, 0, 2, 0, 0, 15}));
}

TEST(Blocks, DequantizedValuesAreWithinHalfAStep) {
  const auto values = reference_weight();
  for (const std::int64_t block : {16, 32, 0}) {
    const auto made = nearest(values, kRows, {.bits = 8, .block = block, .symmetric = false});
    EXPECT_EQ(made.blocks(), block == 0 ? 1 : (kRows + block - 1) / block);
    std::vector<float> back(values.size());
    dequantize(made, back);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i) / kRows;
      const auto b = static_cast<std::int64_t>(i) % kRows / made.format.block_of(kRows);
      const float scale = made.scales[static_cast<std::size_t>(n * made.blocks() + b)];
      EXPECT_NEAR(back[i], values[i], 0.5001F * scale) << i;
    }
  }
}

TEST(Blocks, RangesBeyondFloatAreRefused) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_THROW(block_scale(-kMax, kMax, {.bits = 4, .block = 32, .symmetric = false}), Error);
}

TEST(Blocks, NothingIsNothing) {
  EXPECT_TRUE(nearest({}, 0, {}).integers.empty());
  EXPECT_TRUE(nearest({}, 32, {}).scales.empty());
}

}  // namespace
}  // namespace detent::quantization
