// Files that an earlier process left: whole, cut, damaged.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "store/support.h"

namespace detent::store::test {
namespace {

class Recover : public SpoolTest {
 protected:
  // Leaves a lane of `count` records of `size` bytes each.
  void leave(std::size_t count, std::size_t size, DiskAccess access = DiskAccess::buffered) const {
    Spool spool(options(Residency::disk, access));
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < count; ++i) spool.put(lane, i, record_of(size, i));
    spool.sync();
  }
  void flip(std::uint64_t offset) const {
    std::fstream file(lane_path("a"), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
};

TEST_F(Recover, TakesUpWhatIsThere) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    leave(10, 100'000, access);
    Spool spool(options(Residency::disk, access));
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < 10; ++i) EXPECT_TRUE(same(spool.get(lane, i), record_of(100'000, i)));
    EXPECT_FALSE(spool.in_memory(lane, 0));
    spool.put(lane, 10, record_of(100'000, 10));
    spool.put(lane, 3, record_of(70, 33));
    spool.sync();
    Spool third(options(Residency::disk, access));
    const auto again = third.open("a");
    for (std::size_t i = 0; i < 11; ++i) {
      EXPECT_TRUE(same(third.get(again, i), i == 3 ? record_of(70, 33) : record_of(100'000, i))) << i;
    }
    EXPECT_EQ(third.damaged(), 0u);
    third.close(again);
  }
}

TEST_F(Recover, ReleasedRecordsStayAway) {
  leave(6, 100'000);
  {
    Spool spool(options());
    const auto lane = spool.open("a");
    for (const std::size_t i : {0, 2, 3, 5}) spool.release(lane, i);
  }
  Spool spool(options());
  const auto lane = spool.open("a");
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(spool.holds(lane, i), i == 1 || i == 4) << i;
  EXPECT_TRUE(same(spool.get(lane, 1), record_of(100'000, 1)));
  EXPECT_TRUE(same(spool.get(lane, 4), record_of(100'000, 4)));
  EXPECT_EQ(spool.damaged(), 0u);
}

TEST_F(Recover, ATornTailIsCutOffWhereverItIs) {
  leave(3, 9000);
  const auto size = fs::file_size(lane_path("a"));
  ASSERT_EQ(size, 3u * 16'384);
  const auto copy = directory() / "copy";
  fs::copy_file(lane_path("a"), copy);
  for (std::uintmax_t cut = 0; cut <= size; cut += 512) {
    fs::copy_file(copy, lane_path("a"), fs::copy_options::overwrite_existing);
    fs::resize_file(lane_path("a"), cut);
    Spool spool(options());
    const auto lane = spool.open("a");
    EXPECT_EQ(fs::file_size(lane_path("a")), cut / 16'384 * 16'384);
    for (std::size_t i = 0; i < 3; ++i) {
      const bool whole = 16'384 * (i + 1) <= cut;
      EXPECT_EQ(spool.holds(lane, i), whole) << cut;
      if (whole) {
        EXPECT_TRUE(same(spool.get(lane, i), record_of(9000, i)));
      }
    }
    spool.put(lane, 2, record_of(9000, 2));
    spool.sync();
    EXPECT_TRUE(same(spool.get(lane, 2), record_of(9000, 2)));
    EXPECT_EQ(spool.damaged(), 0u);
  }
}

TEST_F(Recover, AFlippedBitIsSeenWhenTheRecordIsRead) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    // In the header, in the payload, in its padding.
    for (const std::uint64_t at : {0, 17, 60, 80, 4095, 4096, 9000, 13'095, 16'383}) {
      leave(3, 9000, access);
      Spool spool(options(Residency::disk, access));
      const auto lane = spool.open("a");
      flip(16'384 + at);
      EXPECT_TRUE(same(spool.get(lane, 0), record_of(9000, 0)));
      EXPECT_TRUE(spool.holds(lane, 1));
      EXPECT_EQ(spool.get(lane, 1), std::nullopt) << at;
      EXPECT_FALSE(spool.holds(lane, 1));
      EXPECT_TRUE(same(spool.get(lane, 2), record_of(9000, 2)));
      EXPECT_EQ(spool.damaged(), 1u);
      spool.put(lane, 1, record_of(9000, 1));
      EXPECT_TRUE(same(spool.get(lane, 1), record_of(9000, 1)));
      spool.close(lane);
    }
  }
}

TEST_F(Recover, ADamagedHeaderHidesOnlyItsOwnRecord) {
  for (const std::uint64_t at : {0, 8, 17, 33, 60, 80, 4000}) {
    leave(4, 900'000);
    const auto record = fs::file_size(lane_path("a")) / 4;
    flip(record + at);
    Spool spool(options());
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(spool.holds(lane, i), i != 1) << at;
      if (i != 1) {
        EXPECT_TRUE(same(spool.get(lane, i), record_of(900'000, i)));
      }
    }
    EXPECT_EQ(spool.damaged(), 1u) << at;
    spool.close(lane);
  }
}

TEST_F(Recover, AFileCutWhileItIsOpenIsDamage) {
  leave(3, 900'000);
  Spool spool(options());
  const auto lane = spool.open("a");
  fs::resize_file(lane_path("a"), 1'500'000);
  EXPECT_TRUE(same(spool.get(lane, 0), record_of(900'000, 0)));
  EXPECT_EQ(spool.get(lane, 1), std::nullopt);
  EXPECT_EQ(spool.get(lane, 2), std::nullopt);
  EXPECT_EQ(spool.damaged(), 2u);
}

TEST_F(Recover, SomethingElseIsNoLane) {
  for (const std::string& text : {std::string("hello"), std::string(100'000, 'x'), std::string(9000, '\0')}) {
    std::ofstream(lane_path("a"), std::ios::binary) << text;
    Spool spool(options());
    const auto lane = spool.open("a");
    EXPECT_FALSE(spool.holds(lane, 0));
    spool.put(lane, 0, record_of(10, 1));
    spool.sync();
    EXPECT_TRUE(same(spool.get(lane, 0), record_of(10, 1)));
    spool.close(lane);
  }
}

TEST_F(Recover, RandomBytesInAFileDoNoHarm) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    leave(4, 9000);
    for (int i = 0; i < 3; ++i) flip(random() % (4 * 16'384));
    if (round % 4 == 0) fs::resize_file(lane_path("a"), random() % (4 * 16'384));
    Spool spool(options());
    const auto lane = spool.open("a");
    for (std::size_t i = 0; i < 4; ++i) {
      if (const auto record = spool.get(lane, i)) {
        EXPECT_TRUE(same(record, record_of(9000, i)));
      }
    }
    spool.close(lane);
  }
}

}  // namespace
}  // namespace detent::store::test
