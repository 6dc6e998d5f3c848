// What a spool may take of memory and disk, and what it says when that is not enough.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "store/support.h"

namespace detent::store::test {
namespace {

using Budget = SpoolTest;

std::uint64_t bytes_on_disk(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_blocks) * 512 : 0;
}

TEST_F(Budget, MemoryPeakStaysWithinItsShares) {
  constexpr std::size_t kRecord = 1'000'000;
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    for (const std::uint64_t buffer : {4'000'000, 16'000'000}) {
      SpoolOptions with = options(Residency::memory_then_disk, access);
      with.memory_bytes = 5'500'000;
      with.buffer_bytes = buffer;
      with.prefetch = 16;
      Spool spool(with);
      const auto a = spool.open("a");
      const auto b = spool.open("b");
      for (std::size_t i = 0; i < 40; ++i) spool.put(a, i, record_of(kRecord, i));
      spool.sync();
      spool.prefetch({a}, 0, 40);
      for (std::size_t i = 0; i < 40; ++i) {
        auto record = spool.get(a, i);
        ASSERT_TRUE(same(record, record_of(kRecord, i)));
        spool.put(b, i, std::move(*record));
        spool.release(a, i);
      }
      spool.sync();
      EXPECT_LE(spool.use().memory_peak, with.memory_bytes + buffer + kRecord) << text_of(access) << buffer;
      EXPECT_GE(spool.use().memory_peak, 5'000'000u);
      spool.close(a);
      spool.close(b);
    }
  }
}

TEST_F(Budget, MemoryFillsFirstAndAgainAfterARelease) {
  SpoolOptions with = options(Residency::memory_then_disk);
  with.memory_bytes = 2500;
  Spool spool(with);
  const auto lane = spool.open("a");
  for (std::size_t i = 0; i < 4; ++i) spool.put(lane, i, record_of(1000, i));
  EXPECT_TRUE(spool.in_memory(lane, 0));
  EXPECT_TRUE(spool.in_memory(lane, 1));
  EXPECT_FALSE(spool.in_memory(lane, 2));
  spool.release(lane, 0);
  spool.put(lane, 4, record_of(1000, 4));
  EXPECT_TRUE(spool.in_memory(lane, 4));
  spool.put(lane, 4, record_of(1400, 5));  // replaced where it rests
  EXPECT_TRUE(spool.in_memory(lane, 4));
  spool.close(lane);
}

TEST_F(Budget, AllInMemoryAndNotEnoughOfIt) {
  SpoolOptions with = options(Residency::memory);
  with.memory_bytes = 10'000;
  Spool spool(with);
  const auto lane = spool.open("a");
  spool.put(lane, 0, record_of(8000, 0));
  expect_error([&] { spool.put(lane, 1, record_of(8192, 1)); }, ErrorKind::resource,
               {"15.8 KiB", "--memory-budget", "--set memory-level"});
  EXPECT_TRUE(same(spool.get(lane, 0), record_of(8000, 0)));
  EXPECT_FALSE(spool.holds(lane, 1));
  EXPECT_EQ(files(), 0u);
}

TEST_F(Budget, DiskTakesNoMoreThanItsShare) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    SpoolOptions with = options(Residency::disk, access);
    with.disk_bytes = 20'000'000;
    Spool spool(with);
    const auto a = spool.open("a");
    const auto b = spool.open("b");
    for (std::size_t i = 0; i < 60; ++i) {
      const auto lane = i % 2 == 0 ? a : b;
      spool.put(lane, i, record_of(1'000'000, i));
      if (i >= 16) spool.release(i % 2 == 0 ? a : b, i - 16);
      if (i % 5 == 0) {
        spool.sync();
        EXPECT_LE(bytes_on_disk(lane_path("a")) + bytes_on_disk(lane_path("b")), with.disk_bytes + 100'000);
      }
    }
    EXPECT_LE(spool.use().disk_peak, with.disk_bytes);
    EXPECT_GE(spool.use().disk_peak, 16'000'000u);
    spool.close(a);
    spool.close(b);
    EXPECT_EQ(files(), 0u);
  }
}

TEST_F(Budget, SmallAndLargeLanesReserveLittleAhead) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    Spool spool(options(Residency::disk, access));
    const auto a = spool.open("a");
    std::size_t at = 0;
    for (const std::uint64_t data : {100'000, 40'000'000}) {
      for (; at * 100'000 < data; ++at) spool.put(a, at, record_of(100'000, at));
      spool.sync();
      EXPECT_LE(bytes_on_disk(lane_path("a")), data + std::max(data / 2, std::uint64_t{3} << 19)) << text_of(access);
    }
    spool.close(a);
  }
}

TEST_F(Budget, AFullShareOfTheDiskIsNamedAndReleaseHelps) {
  SpoolOptions with = options();
  with.disk_bytes = 100'000;
  Spool spool(with);
  const auto lane = spool.open("a");
  for (std::size_t i = 0; i < 4; ++i) spool.put(lane, i, record_of(20'000, i));
  expect_error([&] { spool.put(lane, 4, record_of(20'000, 4)); }, ErrorKind::resource,
               {"120 KiB", "22.3 KiB more", "97.7 KiB", "--disk-budget", "--memory-budget"});
  EXPECT_FALSE(spool.holds(lane, 4));
  spool.sync();
  spool.release(lane, 0);
  spool.put(lane, 4, record_of(20'000, 4));
  EXPECT_TRUE(same(spool.get(lane, 4), record_of(20'000, 4)));
  spool.close(lane);
  const auto again = spool.open("b");
  for (std::size_t i = 0; i < 4; ++i) spool.put(again, i, record_of(20'000, i));
  spool.sync();
}

TEST_F(Budget, AClosedLaneGivesItsDiskBackWhileItIsWritten) {
  SpoolOptions with = options(Residency::disk, DiskAccess::direct);
  with.disk_bytes = 10'000'000;
  Spool spool(with);
  for (int round = 0; round < 20; ++round) {
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < 3; ++i) spool.put(lane, i, record_of(1'500'000, i));
    spool.close(lane);
    spool.sync();
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(Budget, WaitsAreCounted) {
  SpoolOptions with = options();
  with.buffer_bytes = 2'000'000;
  with.prefetch = 0;
  Spool spool(with);
  const auto lane = spool.open("a");
  for (std::size_t i = 0; i < 20; ++i) spool.put(lane, i, record_of(1'000'000, i));
  spool.sync();
  for (std::size_t i = 0; i < 20; ++i) spool.get(lane, i);
  const SpoolUse use = spool.use();
  EXPECT_GT(use.write_wait_seconds, 0);
  EXPECT_GT(use.read_wait_seconds, 0);
  EXPECT_GE(use.bytes_written, 20'000'000u);
  EXPECT_GE(use.bytes_read, 20'000'000u);
}

}  // namespace
}  // namespace detent::store::test
