// Each operation of the system can fail: the error has a name, and nothing is left behind that should not be.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "store/child.h"
#include "store/support.h"

namespace detent::store::test {
namespace {

constexpr std::size_t kRecords = 8;

DiskAccess access_of(const std::string& name) {
  for (const DiskAccess access : all_accesses()) {
    if (name == text_of(access)) return access;
  }
  return DiskAccess::automatic;
}

// Writes, syncs, reads and closes; the first error goes to a file, with its kind.
TEST(SpoolChild, DISABLED_Works) {
  const fs::path directory = setting("SPOOL_DIRECTORY");
  std::ofstream out(directory / "error");
  SpoolOptions options;
  options.directory = directory / "spool";
  options.residency = Residency::disk;
  options.access = access_of(setting("SPOOL_ACCESS"));
  options.buffer_bytes = std::uint64_t{4} << 20;
  Spool spool(options);
  std::optional<Spool::Lane> lane;
  const auto note = [&](const char* where, const Error& error) {
    out << static_cast<int>(error.kind()) << ' ' << where << ": " << error.what() << " | " << error.hint() << '\n';
  };
  try {
    lane = spool.open("lane");
    const Array floats = array_of(DataType::float32, {100'000}, 3);
    for (std::size_t i = 0; i < kRecords; ++i) spool.put(*lane, i, {bytes_of(600'000, i), floats});
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
    spool.prefetch({*lane}, 0, kRecords);
    for (std::size_t i = 0; i < kRecords; ++i) EXPECT_TRUE(spool.get(*lane, i).has_value());
  } catch (const Error& error) {
    note("read", error);
  }
  for (std::size_t i = 0; i < kRecords; ++i) spool.release(*lane, i);
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

}  // namespace
}  // namespace detent::store::test
