// Ways from disk to a device: what is chosen and why, and the passage through the host, whose device is memory here.
#include "store/device_route.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <thread>

#include "store/buffers.h"
#include "store/support.h"

namespace detent::store::test {
namespace {

struct FakeMachine {
  std::string refusal = {};
  double storage_rate = 5e9, host_rate = 2e9;
  int measured = 0;

  RouteProbe probe() {
    return {[this] { return refusal; },
            [] {
              return ProbedAccess{DiskAccess::uring, "io_uring 2 GB/s"};
            },
            [this](const DeviceRoute& route) {
              ++measured;
              return route.direct_storage ? storage_rate : host_rate;
            }};
  }
};

TEST(DeviceRoute, OnIsAnErrorWithTheReason) {
  for (const char* reason : {"no CUDA driver (libcuda.so.1: not there)", "the kernel module nvidia-fs is not loaded",
                             "cuFile does not take files of this file system (error 5027)"}) {
    FakeMachine machine{.refusal = reason};
    try {
      choose_route(GdsMode::on, machine.probe());
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::device);
      EXPECT_EQ(std::string(e.what()), "--set gds=on: " + std::string(reason));
      EXPECT_NE(e.hint().find("--work-dir"), std::string::npos);
    }
    EXPECT_EQ(machine.measured, 0);
  }
  FakeMachine machine{.storage_rate = 1};
  EXPECT_TRUE(choose_route(GdsMode::on, machine.probe()).direct_storage) << "slow or not, it was asked for";
}

TEST(DeviceRoute, OffAsksNothingOfCuFile) {
  RouteProbe probe = FakeMachine().probe();
  probe.refusal = []() -> std::string { throw std::logic_error("asked"); };
  probe.rate = [](const DeviceRoute&) -> double { throw std::logic_error("measured"); };
  const auto route = choose_route(GdsMode::off, probe);
  EXPECT_FALSE(route.direct_storage);
  EXPECT_EQ(route.access, DiskAccess::uring);
  EXPECT_EQ(route.reason, "asked for (--set gds=off); host reads: io_uring 2 GB/s");
  EXPECT_EQ(route.name(), "pinned buffers filled by io_uring reads");
}

TEST(DeviceRoute, AutoTakesTheFasterAndSaysWhy) {
  FakeMachine faster;
  auto route = choose_route(GdsMode::automatic, faster.probe());
  EXPECT_TRUE(route.direct_storage);
  EXPECT_EQ(route.reason, "GPUDirect Storage 5 GB/s, pinned buffers filled by io_uring reads 2 GB/s");
  FakeMachine even{.storage_rate = 2e9, .host_rate = 2.1e9};
  EXPECT_TRUE(choose_route(GdsMode::automatic, even.probe()).direct_storage) << "within a tenth";
  FakeMachine slower{.storage_rate = 1e9, .host_rate = 2e9};
  EXPECT_FALSE(choose_route(GdsMode::automatic, slower.probe()).direct_storage);
  FakeMachine without{.refusal = "the kernel module nvidia-fs is not loaded"};
  route = choose_route(GdsMode::automatic, without.probe());
  EXPECT_FALSE(route.direct_storage);
  EXPECT_EQ(route.reason,
            "no GPUDirect Storage (the kernel module nvidia-fs is not loaded); host reads: io_uring 2 GB/s");
  EXPECT_EQ(without.measured, 0) << "there is nothing to choose from";
}

/// A device that is memory of the host; copies are done when they are waited for, as late as can be.
class LateBuffers : public BounceBuffers {
 public:
  LateBuffers() : memory_(kPiece * kSlots) {}

  std::span<std::byte> slot(std::size_t number) override {
    EXPECT_EQ(copies_[number].bytes, 0U) << "a slot is filled again before it was copied";
    return memory_.bytes().subspan(number * kPiece, kPiece);
  }
  void upload(std::size_t number, std::size_t bytes, void* to) override { copies_[number] = {bytes, to}; }
  void wait(std::size_t number) override {
    auto& [bytes, to] = copies_[number];
    if (bytes > 0) std::memcpy(to, memory_.bytes().data() + number * kPiece, bytes);
    bytes = 0;
  }

 private:
  struct Copy {
    std::size_t bytes = 0;
    void* to = nullptr;
  };
  AlignedBuffer memory_;
  std::array<Copy, kSlots> copies_{};
};

class Bounce : public testing::TestWithParam<DiskAccess> {
 protected:
  std::vector<std::byte> read(const RecordOnDisk& record) {
    std::vector<std::byte> to(record.size);
    LateBuffers buffers;
    BounceReader(GetParam(), buffers).read(record, to.data());
    return to;
  }
  SpoolOptions options() const {
    SpoolOptions options;
    options.directory = folder_.path();
    options.residency = Residency::disk;
    options.access = GetParam();
    return options;
  }

  TempDir folder_{fs::current_path()};
};

TEST_P(Bounce, BringsARecordOfTheSpool) {
  for (const std::size_t size : {1UL, 70'000UL, std::size_t{1} << 20, (std::size_t{41} << 20) + 17}) {
    Spool spool(options());
    const auto lane = spool.open("lane");
    const Record record = record_of(size, size);
    spool.put(lane, 0, record_of(100, 1));
    spool.put(lane, 1, record);
    spool.sync();
    const auto resting = spool.resting(lane, 1);
    ASSERT_TRUE(resting);
    const auto payload = read(*resting);
    ASSERT_EQ(resting->parts.size(), record.size());
    for (std::size_t i = 0; i < record.size(); ++i) {
      const auto& part = resting->parts[i];
      EXPECT_EQ(part.type, record[i].type);
      EXPECT_EQ(part.shape, record[i].shape);
      ASSERT_EQ(part.size, record[i].bytes.size());
      const auto expected = record[i].bytes;  // may be empty
      EXPECT_TRUE(
          std::equal(expected.begin(), expected.end(), reinterpret_cast<const std::byte*>(payload.data()) + part.begin))
          << size;
    }
    spool.close(lane);
  }
}

TEST_P(Bounce, FindsDamage) {
  Spool spool(options());
  const auto lane = spool.open("lane");
  spool.put(lane, 0, record_of(std::size_t{20} << 20, 1));
  spool.sync();
  const auto resting = spool.resting(lane, 0);
  ASSERT_TRUE(resting);
  std::fstream(resting->file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(resting->offset + 12'345'678))
      .put('x');
  try {
    read(*resting);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::resource);
    EXPECT_NE(std::string(e.what()).find("damaged"), std::string::npos) << e.what();
  }
}

TEST_P(Bounce, SaysThatAFileEndsTooSoon) {
  Spool spool(options());
  const auto lane = spool.open("lane");
  spool.put(lane, 0, record_of(std::size_t{20} << 20, 1));
  spool.sync();
  const auto resting = spool.resting(lane, 0);
  ASSERT_TRUE(resting);
  fs::resize_file(resting->file, resting->offset + (std::size_t{5} << 20));
  EXPECT_THROW(read(*resting), Error);
  fs::remove(resting->file);
  EXPECT_THROW(read(*resting), Error);
}

INSTANTIATE_TEST_SUITE_P(Accesses, Bounce, testing::Values(DiskAccess::buffered, DiskAccess::direct),
                         [](const auto& test) { return test.param == DiskAccess::direct ? "direct" : "buffered"; });

TEST(Resting, IsOnlyWhatStandsInAFile) {
  const TempDir folder;
  Spool in_memory({.directory = folder.path(), .residency = Residency::memory});
  const auto lane = in_memory.open("lane");
  in_memory.put(lane, 0, record_of(1000, 1));
  EXPECT_FALSE(in_memory.resting(lane, 0));
  EXPECT_FALSE(in_memory.resting(lane, 1));
}

class CopyingReader : public DeviceReader {
 public:
  void read(const RecordOnDisk& record, void* to) override {
    LateBuffers buffers;
    BounceReader(DiskAccess::buffered, buffers).read(record, to);
  }
};

TEST(ProbePayload, IsThereWhileItIsMeasured) {
  const TempDir folder;
  {
    const ProbePayload payload(folder.path());
    std::vector<std::byte> to(ProbePayload::kBytes);
    CopyingReader reader;
    EXPECT_GT(measure_reads(reader, payload, to.data()), 0);
  }
  EXPECT_TRUE(fs::is_empty(folder.path())) << "nothing is left";
  EXPECT_THROW(ProbePayload(folder.path() / "none"), Error);
}

}  // namespace
}  // namespace detent::store::test
