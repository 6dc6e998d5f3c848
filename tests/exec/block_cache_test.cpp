#include "exec/runtime.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

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

}  // namespace
}  // namespace detent::exec
