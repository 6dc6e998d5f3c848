#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "store/child.h"
#include "store/support.h"

namespace detent::store::test {
namespace {

// Files that an earlier process left: whole, cut, damaged.

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

// A process that dies at any place loses nothing that was put before its last sync().

constexpr std::size_t kRecords = 24;
constexpr std::size_t kStride = 4;  // records between two calls of sync()

std::size_t size_of(std::size_t sample) { return sample % 3 == 0 ? 700'000 : 5000 * (sample + 1); }

DiskAccess access_of(const std::string& name) {
  for (const DiskAccess access : all_accesses()) {
    if (name == text_of(access)) return access;
  }
  return DiskAccess::automatic;
}

SpoolOptions options_of_child(const fs::path& directory) {
  SpoolOptions options;
  options.directory = directory / "spool";
  options.residency = Residency::disk;
  options.access = access_of(setting("SPOOL_ACCESS"));
  options.buffer_bytes = std::uint64_t{4} << 20;
  return options;
}

// Puts records and notes after each sync() how many are safe; releases some; puts some again.
TEST(SpoolChild, DISABLED_Writes) {
  const fs::path directory = setting("SPOOL_DIRECTORY");
  Spool spool(options_of_child(directory));
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

// Each operation of the system can fail: the error has a name, and nothing is left behind that should not be.

constexpr std::size_t kFewRecords = 8;

// Writes, syncs, reads and closes; the first error goes to a file, with its kind.
TEST(SpoolChild, DISABLED_Works) {
  const fs::path directory = setting("SPOOL_DIRECTORY");
  std::ofstream out(directory / "error");
  Spool spool(options_of_child(directory));
  std::optional<Spool::Lane> lane;
  const auto note = [&](const char* where, const Error& error) {
    out << static_cast<int>(error.kind()) << ' ' << where << ": " << error.what() << " | " << error.hint() << '\n';
  };
  try {
    lane = spool.open("lane");
    const Array floats = array_of(DataType::float32, {100'000}, 3);
    for (std::size_t i = 0; i < kFewRecords; ++i) spool.put(*lane, i, {bytes_of(600'000, i), floats});
    spool.sync();
  } catch (const Error& error) {
    note("write", error);
    // It is told again, and what was lost is not there.
    EXPECT_TRUE(!lane || [&] {
      try {
        spool.sync();
      } catch (const Error&) {
        return true;
      }
      return setting("DETENT_FAILPOINT").find("spool.allocate") != std::string::npos;
    }());
    if (lane) spool.close(*lane);
    return;
  }
  try {
    spool.prefetch({*lane}, 0, kFewRecords);
    for (std::size_t i = 0; i < kFewRecords; ++i) EXPECT_TRUE(spool.get(*lane, i).has_value());
  } catch (const Error& error) {
    note("read", error);
  }
  for (std::size_t i = 0; i < kFewRecords; ++i) spool.release(*lane, i);
  EXPECT_FALSE(spool.holds(*lane, 0));
  spool.close(*lane);
}

class Fault : public SpoolTest {
 protected:
  std::string error_at(const std::string& failpoint, const std::string& access) {
    const TempDir own(directory());
    fs::create_directory(own.path() / "spool");
    const ChildEnd end = run_child("Works", own.path(), failpoint, access);
    EXPECT_EQ(end.exit_code, 0) << failpoint << ' ' << access;
    EXPECT_TRUE(fs::is_empty(own.path() / "spool")) << failpoint << ' ' << access;
    return text_in(own.path() / "error");
  }
  void expect_at(const std::string& failpoint, ErrorKind kind, const std::vector<std::string>& parts) {
    for (const DiskAccess access : all_accesses()) {
      if (!works(access)) continue;
      const std::string text = error_at(failpoint, text_of(access));
      EXPECT_EQ(text.substr(0, 1), std::to_string(static_cast<int>(kind))) << failpoint << ": " << text;
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
      for (const std::string& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
      }
    }
  }
};

TEST_F(Fault, NoneWithoutOne) {
  for (const char* access : {"buffered", "direct", "automatic", "half"}) EXPECT_EQ(error_at("", access), "");
}

TEST_F(Fault, AFullDisk) {
  for (const char* at : {"1", "2", "4"}) {
    expect_at(std::string("spool.write=ENOSPC@") + at, ErrorKind::resource,
              {"lane.lane", "No space left", "needed", "free there", "--work-dir", "--disk-budget"});
  }
}

TEST_F(Fault, ADiskThatFails) {
  for (const char* at : {"1", "3"}) {
    expect_at(std::string("spool.write=EIO@") + at, ErrorKind::resource, {"lane.lane", "Input/output", "--work-dir"});
    expect_at(std::string("spool.read=EIO@") + at, ErrorKind::resource,
              {"read: ", "lane.lane", "sample", "Input/output"});
  }
  expect_at("spool.fsync=EIO", ErrorKind::resource, {"write: ", "lane.lane", "Input/output"});
  expect_at("spool.fsync=ENOSPC", ErrorKind::resource, {"lane.lane", "No space left"});
}

TEST_F(Fault, AFileThatCannotBeMade) {
  expect_at("spool.open=EIO@1", ErrorKind::resource, {"lane.lane", "Input/output"});
  expect_at("spool.open=ENOSPC@2", ErrorKind::resource, {"lane.lane", "No space left", "--work-dir"});
}

TEST_F(Fault, NoMemory) {
  // The recovery's block, the writer's chunks, the buffers of reads.
  for (int at = 1; at <= 12; ++at) {
    const std::string text = error_at("spool.allocate=ENOMEM@" + std::to_string(at), "direct");
    if (text.empty()) continue;  // the probe does without
    EXPECT_EQ(text.substr(0, 1), std::to_string(static_cast<int>(ErrorKind::resource))) << at << text;
    EXPECT_NE(text.find("no memory"), std::string::npos) << text;
    EXPECT_NE(text.find("--memory-budget"), std::string::npos) << text;
  }
  EXPECT_NE(error_at("spool.allocate=ENOMEM@3", "direct"), "");
  EXPECT_NE(error_at("spool.allocate=ENOMEM@10", "direct"), "");
}

TEST_F(Fault, AFileSystemThatGivesNothingBackDoesNoHarm) {
  for (const char* at : {"1", "2"}) EXPECT_EQ(error_at(std::string("spool.punch=EIO@") + at, "buffered"), "");
}

TEST_F(Fault, AMissingDirectoryIsNamed) {
  SpoolOptions with = options();
  with.directory = directory() / "absent";
  Spool spool(with);
  const auto lane = spool.open("a");
  expect_error(
      [&] {
        spool.put(lane, 0, record_of(10, 1));
        spool.sync();
      },
      ErrorKind::resource, {"absent", "No such file", "--work-dir"});
  expect_error([&] { spool.put(lane, 1, record_of(10, 1)); }, ErrorKind::resource, {"absent"});
  expect_error([&] { spool.get(lane, 0); }, ErrorKind::resource, {"absent"});
}

// What a spool may take of memory and disk, and what it says when that is not enough.

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
