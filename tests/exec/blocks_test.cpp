#include <gtest/gtest.h>

#include <sys/resource.h>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "exec/operators.h"
#include "exec/runtime.h"

namespace detent::exec {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(BlockCache, GivesAlignedMemoryOfAnySize) {
  BlockCache cache;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{65}, std::size_t{65535},
                                 std::size_t{65536}, std::size_t{65537}, kMiB, 5 * kMiB + 1}) {
    void* block = cache.allocate(size);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0U);
    std::memset(block, 0x5a, size);
    cache.free(block);
  }
  cache.free(nullptr);
  EXPECT_EQ(cache.in_use(), 0U);
}

TEST(BlockCache, ReusesAndJoinsBlocks) {
  BlockCache cache;
  void* a = cache.allocate(4 * kMiB);
  cache.free(a);
  EXPECT_EQ(cache.allocate(4 * kMiB), a);
  cache.free(a);
  // Split for two, joined for one again.
  void* b = cache.allocate(kMiB);
  void* c = cache.allocate(3 * kMiB);
  cache.free(b);
  cache.free(c);
  EXPECT_EQ(cache.allocate(4 * kMiB), a);
  EXPECT_EQ(cache.peak_in_use(), 4 * kMiB);
  cache.free(a);
}

TEST(BlockCache, RefusesAbsurdSizes) {
  BlockCache cache;
  cache.free(cache.allocate(kMiB));
  EXPECT_THROW(cache.allocate(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  EXPECT_THROW(cache.allocate(std::numeric_limits<std::size_t>::max() - 100), std::bad_alloc);
  EXPECT_THROW(cache.allocate(std::size_t{1} << 60), std::bad_alloc);
  EXPECT_EQ(cache.in_use(), 0U);
}

// In a child, since the limit stays.
[[noreturn, maybe_unused]] void run_out_of_memory() {
  BlockCache cache;
  void* const kept = cache.allocate(kMiB);
  cache.free(cache.allocate(32 * kMiB));  // lies idle
  std::ifstream pages("/proc/self/statm");
  std::size_t size = 0;
  pages >> size;
  const rlimit limit{size * 4096 + 8 * kMiB, RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
  std::vector<void*> blocks;
  blocks.reserve(1 << 10);
  blocks.push_back(cache.allocate(36 * kMiB));  // there is room once the idle block has gone
  try {
    for (;;) blocks.push_back(cache.allocate(kMiB));
  } catch (const std::bad_alloc&) {
    const std::size_t in_use = cache.in_use();
    if (in_use != blocks.size() * kMiB + 36 * kMiB) std::_Exit(1);
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) cache.free(blocks[i]);
  for (std::size_t i = 1; i < blocks.size(); i += 2) cache.free(blocks[i]);
  cache.free(kept);
  cache.allocate(4 * kMiB);
  std::_Exit(cache.in_use() == 4 * kMiB ? 7 : 2);
}

TEST(BlockCache, RunsOutOfMemoryAndGoesOn) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs memory, too";
#endif
  EXPECT_EXIT(run_out_of_memory(), testing::ExitedWithCode(7), "");
}

TEST(BlockCache, LiveBlocksNeverOverlap) {
  BlockCache cache;
  std::mt19937 generator(1);
  struct Block {
    unsigned char* data;
    std::size_t size;
    unsigned char mark;
  };
  std::vector<Block> live;
  std::size_t bytes = 0, peak = 0;
  const auto check_and_free = [&](std::size_t i) {
    const Block b = live[i];
    for (const std::size_t at : {std::size_t{0}, b.size / 2, b.size - 1}) ASSERT_EQ(b.data[at], b.mark);
    cache.free(b.data);
    bytes -= b.size;
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int step = 0; step < 3000; ++step) {
    if (live.empty() || (generator() % 2 == 0 && live.size() < 20)) {
      const std::size_t size = (16 + generator() % 500) * 4096;
      auto* data = static_cast<unsigned char*>(cache.allocate(size));
      const auto mark = static_cast<unsigned char>(step);
      std::memset(data, mark, size);
      live.push_back({data, size, mark});
      bytes += size;
      peak = std::max(peak, bytes);
    } else {
      check_and_free(generator() % live.size());
    }
    ASSERT_EQ(cache.in_use(), bytes);
    ASSERT_EQ(cache.peak_in_use(), peak);
  }
  while (!live.empty()) check_and_free(0);
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST(BlockCache, HoldsNoMoreThanThePeak) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory is in the measure";
#endif
  BlockCache cache;
  const std::size_t before = resident_bytes();
  for (std::size_t size = 8 * kMiB; size <= 64 * kMiB; size += 4 * kMiB) {  // each too large for what is kept
    void* block = cache.allocate(size);
    std::memset(block, 1, size);
    cache.free(block);
    EXPECT_LT(resident_bytes(), before + 64 * kMiB + 8 * kMiB);
  }
  cache.trim();
  EXPECT_LT(resident_bytes(), before + 8 * kMiB);
}

TEST(BlockCache, ServesManyThreads) {
  BlockCache cache;
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&cache, t] {
      std::mt19937 generator(t);
      for (int i = 0; i < 500; ++i) {
        const std::size_t size = 1 + generator() % (i % 2 == 0 ? kMiB : std::size_t{1000});
        auto* data = static_cast<unsigned char*>(cache.allocate(size));
        data[0] = data[size - 1] = static_cast<unsigned char>(t);
        std::this_thread::yield();
        EXPECT_EQ(data[0], t);
        EXPECT_EQ(data[size - 1], t);
        cache.free(data);
        if (i % 100 == 0) cache.trim();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(cache.in_use(), 0U);
}

// Blocks of numbers with one exponent, rounded as AMD Quark's operators round them.

#include "exec/block_rounding_table.inc"

constexpr std::size_t kCount = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every number of `kNumbers`, in blocks.
template <class Format>
void expect_rounded(const Format& format, std::size_t size, const float (&expected)[kCount]) {
  std::vector<float> out(kCount);
  const std::array<std::int64_t, 1> shape{kCount};
  for_each_block(shape, 0, size, kNumbers, out, [&](std::span<float> block) { round_block(format, block); });
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(out[i], expected[i]) << i << ": " << kNumbers[i];
}

TEST(BlockRounding, EveryFormatGivesQuarksNumbers) {
  expect_rounded(SharedExponent{16}, 8, k_bfp16);
  expect_rounded(Microexponents{11}, 16, k_mx4);
  expect_rounded(Microexponents{13}, 16, k_mx6);
  expect_rounded(Microexponents{16}, 16, k_mx9);
  expect_rounded(microscaling_of("fp8_e5m2"), 32, k_fp8_e5m2);
  expect_rounded(microscaling_of("fp8_e4m3"), 32, k_fp8_e4m3);
  expect_rounded(microscaling_of("fp6_e3m2"), 32, k_fp6_e3m2);
  expect_rounded(microscaling_of("fp6_e2m3"), 32, k_fp6_e2m3);
  expect_rounded(microscaling_of("fp4_e2m1"), 32, k_fp4_e2m1);
  expect_rounded(microscaling_of("int8"), 32, k_int8);
  EXPECT_THROW(microscaling_of("fp5"), Error);
}

TEST(BlockRounding, WhatIsNotFinite) {
  std::array<float, 4> block{1, kInfinity, -kInfinity, std::nanf("")};
  round_block(SharedExponent{}, block);
  EXPECT_EQ(block[0], 1);
  EXPECT_EQ(block[1], kInfinity);
  EXPECT_TRUE(std::isnan(block[3]));
  round_block(Microexponents{}, block);
  for (const float value : block) EXPECT_TRUE(std::isnan(value));
}

TEST(BlockRounding, NumbersHalfWay) {
  // Steps of 1/64: 0.5 of them lies in the middle.
  const auto rounded = [](HalfWay half_way, float value) {
    std::array<float, 2> block{1, value / 64};
    round_block(SharedExponent{16, half_way}, block);
    return block[1] * 64;
  };
  EXPECT_EQ(rounded(HalfWay::to_even, 2.5F), 2);
  EXPECT_EQ(rounded(HalfWay::away, 2.5F), 3);
  EXPECT_EQ(rounded(HalfWay::away, -2.5F), -3);
  EXPECT_EQ(rounded(HalfWay::up, -2.5F), -2);
}

TEST(BlockRounding, BlocksAlongAnAxisWithARest) {
  // 3 rows of 5, cut along the columns in blocks of 2: each becomes its largest number.
  std::vector<float> values(15), out(15);
  for (std::size_t i = 0; i < 15; ++i) values[i] = static_cast<float>(i);
  const std::array<std::int64_t, 2> shape{3, 5};
  for_each_block(shape, 0, 2, values, out, [](std::span<float> block) {
    ASSERT_EQ(block.size(), 2U);
    std::fill(block.begin(), block.end(), std::max(block[0], block[1]));
  });
  EXPECT_EQ(out, (std::vector<float>{5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
}

}  // namespace
}  // namespace detent::exec
