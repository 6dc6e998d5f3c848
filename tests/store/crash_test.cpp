// A process that dies at any place loses nothing that was put before its last sync().
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>

#include "store/child.h"
#include "store/support.h"

namespace detent::store::test {
namespace {

constexpr std::size_t kRecords = 24;
constexpr std::size_t kStride = 4;  // records between two calls of sync()

std::size_t size_of(std::size_t sample) { return sample % 3 == 0 ? 700'000 : 5000 * (sample + 1); }

DiskAccess access_of(const std::string& name) {
  for (const DiskAccess access : all_accesses()) {
    if (name == text_of(access)) return access;
  }
  return DiskAccess::automatic;
}

// Puts records and notes after each sync() how many are safe; releases some; puts some again.
TEST(SpoolChild, DISABLED_Writes) {
  const fs::path directory = setting("SPOOL_DIRECTORY");
  SpoolOptions options;
  options.directory = directory / "spool";
  options.residency = Residency::disk;
  options.access = access_of(setting("SPOOL_ACCESS"));
  options.buffer_bytes = std::uint64_t{4} << 20;
  Spool spool(options);
  const auto lane = spool.open("lane");
  for (std::size_t i = 0; i < kRecords; ++i) {
    spool.put(lane, i, record_of(size_of(i), i));
    if (i % kStride != kStride - 1) continue;
    spool.sync();
    std::ofstream(directory / "synced") << i + 1 << '\n';
    spool.put(lane, 1, record_of(size_of(1), 1));  // the same again: the older one may go only when this one is there
    spool.release(lane, 0);
    spool.put(lane, 0, record_of(size_of(0), 0));
    EXPECT_TRUE(same(spool.get(lane, i), record_of(size_of(i), i)));
  }
  spool.sync();
}

class Crash : public SpoolTest {
 protected:
  // How many records were safe when the child died at `failpoint`; all that are there must be right.
  void die_at(const std::string& failpoint, DiskAccess access) {
    SCOPED_TRACE(failpoint + " " + text_of(access));
    const TempDir own(directory());
    fs::create_directory(own.path() / "spool");
    const ChildEnd end = run_child("Writes", own.path(), failpoint, text_of(access));
    EXPECT_TRUE(end.killed || end.exit_code == 0) << end.exit_code;
    killed_ += end.killed ? 1 : 0;
    const std::string synced = text_in(own.path() / "synced");
    const std::size_t safe = synced.empty() ? 0 : std::stoul(synced);
    SpoolOptions with = options(Residency::disk, access);
    with.directory = own.path() / "spool";
    Spool spool(with);
    const auto lane = spool.open("lane");
    std::size_t absent = 0;
    for (std::size_t i = 0; i < kRecords; ++i) {
      const auto record = spool.get(lane, i);
      // The child releases sample 0 now and then.
      if (i < safe && i != 0) {
        EXPECT_TRUE(record.has_value()) << i << " of " << safe;
      }
      if (record) {
        EXPECT_TRUE(same(record, record_of(size_of(i), i)));
      }
      absent += record ? 0 : 1;
    }
    if (!end.killed) {
      EXPECT_EQ(absent, 0u);
    }
    // What was not there can be put, and the file goes on.
    for (std::size_t i = 0; i < kRecords; ++i) {
      if (!spool.holds(lane, i)) spool.put(lane, i, record_of(size_of(i), i));
    }
    spool.sync();
    for (std::size_t i = 0; i < kRecords; ++i) EXPECT_TRUE(same(spool.get(lane, i), record_of(size_of(i), i)));
    spool.close(lane);
    EXPECT_TRUE(fs::is_empty(own.path() / "spool"));
  }

  std::size_t killed_ = 0;
};

TEST_F(Crash, AtAnyWrite) {
  for (const DiskAccess access : all_accesses()) {
    if (!works(access)) continue;
    for (const int at : {1, 2, 3, 5, 8, 12, 17, 23, 30, 38}) die_at("spool.write=kill@" + std::to_string(at), access);
  }
  EXPECT_GE(killed_, 15u);
}

TEST_F(Crash, AtAnySync) {
  for (int at = 1; at <= 7; ++at) die_at("spool.fsync=kill@" + std::to_string(at), DiskAccess::direct);
  EXPECT_GE(killed_, 5u);
}

TEST_F(Crash, WhileSpaceIsGivenBack) {
  for (int at = 1; at <= 6; ++at) die_at("spool.punch=kill@" + std::to_string(at), DiskAccess::buffered);
  EXPECT_GE(killed_, 5u);
}

TEST_F(Crash, WhileReadingOpeningOrAllocating) {
  for (const char* place : {"spool.read=kill@2", "spool.open=kill@1", "spool.open=kill@2", "spool.allocate=kill@3",
                            "spool.allocate=kill@10"}) {
    die_at(place, DiskAccess::direct);
  }
  EXPECT_GE(killed_, 4u);
}

}  // namespace
}  // namespace detent::store::test
