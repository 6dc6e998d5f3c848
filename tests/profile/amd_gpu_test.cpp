// On a made-up tree of the files that the driver amdgpu shows.
#include "profile/gpu_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/file.h"

namespace detent::profile {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = 1 << 20;

class AmdGpu : public ::testing::Test {
 protected:
  AmdGpu() {
    for (const auto& folder : {places_.devices, places_.own_files}) fs::create_directories(folder);
  }
  void TearDown() override {
    ::unsetenv("ROCR_VISIBLE_DEVICES");
    ::unsetenv("HIP_VISIBLE_DEVICES");
  }
  static void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text << "\n"; }
  void card(int number, const std::string& address, std::uint64_t used, unsigned busy, const std::string& id = "",
            const std::string& vendor = "0x1002") const {
    const auto device = place_.path() / "pci" / address, entry = places_.devices / ("card" + std::to_string(number));
    fs::create_directories(device);
    fs::create_directories(entry);
    fs::create_directory_symlink(device, entry / "device");
    write(device / "vendor", vendor);
    write(device / "mem_info_vram_used", std::to_string(used));
    write(device / "gpu_busy_percent", std::to_string(busy));
    if (!id.empty()) write(device / "unique_id", id);
  }
  void open_file(int fd, const std::string& address, int client, const std::string& memory,
                 const std::string& driver = "amdgpu") const {
    write(places_.own_files / std::to_string(fd), "pos:\t0\nflags:\t02100002\ndrm-driver:\t" + driver +
                                                      "\ndrm-pdev:\t" + address + "\ndrm-client-id:\t" +
                                                      std::to_string(client) + "\n" + memory);
  }
  GpuMemory reading() const {
    const auto gpus = AmdGpus::open(places_);
    EXPECT_TRUE(gpus);
    return gpus ? gpus->now() : GpuMemory();
  }

  TempDir place_;
  AmdPlaces places_{place_.path() / "drm", place_.path() / "fdinfo"};
};

TEST_F(AmdGpu, NoDeviceNoMeter) {
  EXPECT_FALSE(AmdGpus::open(places_));
  EXPECT_FALSE(AmdGpus::open({place_.path() / "none", place_.path() / "none"}));
  card(0, "0000:01:00.0", 5 * kMiB, 1, "", "0x10de");
  EXPECT_FALSE(AmdGpus::open(places_));
}

TEST_F(AmdGpu, AllProgramsOnAllCardsWhereProcessesAreNotTold) {
  card(1, "0000:83:00.0", 100 * kMiB, 30);
  card(0, "0000:03:00.0", 20 * kMiB, 70);
  card(2, "0000:a3:00.0", 900 * kMiB, 99, "", "0x8086");
  fs::create_directories(places_.devices / "card0-DP-1");
  fs::create_directories(places_.devices / "renderD128");
  open_file(3, "0000:03:00.0", 7, "drm-engine-gfx:\t10 ns");  // of an older kernel
  const auto memory = reading();
  EXPECT_EQ(memory.bytes, 120 * kMiB);
  EXPECT_FALSE(memory.of_this_process);
  EXPECT_EQ(memory.busy_percent, 70U);
}

TEST_F(AmdGpu, ThisProcessWhereItIsTold) {
  card(0, "0000:03:00.0", 800 * kMiB, 5);
  card(1, "0000:83:00.0", 800 * kMiB, 6);
  write(places_.own_files / "0", "pos:\t0");
  open_file(4, "0000:03:00.0", 7, "drm-memory-vram:\t2048 KiB");
  open_file(5, "0000:03:00.0", 7, "drm-memory-vram:\t2048 KiB");  // the same client
  open_file(6, "0000:83:00.0", 8, "drm-memory-vram:\t3 MiB");
  open_file(7, "0000:83:00.0", 9, "drm-memory-vram:\t512");
  open_file(8, "0000:c3:00.0", 9, "drm-memory-vram:\t64 MiB", "i915");
  const auto memory = reading();
  EXPECT_EQ(memory.bytes, 5 * kMiB + 512);
  EXPECT_TRUE(memory.of_this_process);
}

TEST_F(AmdGpu, VisibleDevices) {
  card(0, "0000:83:00.0", 100, 0, "00000000000000b2");  // the second by its address
  card(1, "0000:03:00.0", 10, 0, "00000000000000a1");
  card(2, "0000:c3:00.0", 1000, 0);
  const auto sum_with = [&](const char* rocr, const char* hip) -> std::uint64_t {
    TearDown();
    if (rocr != nullptr) ::setenv("ROCR_VISIBLE_DEVICES", rocr, 1);
    if (hip != nullptr) ::setenv("HIP_VISIBLE_DEVICES", hip, 1);
    const auto gpus = AmdGpus::open(places_);
    return gpus ? gpus->now().bytes : 0;
  };
  EXPECT_EQ(sum_with(nullptr, nullptr), 1110U);
  EXPECT_EQ(sum_with("1", nullptr), 100U);
  EXPECT_EQ(sum_with("0,2", nullptr), 1010U);
  EXPECT_EQ(sum_with("0,2", "1"), 1000U);
  EXPECT_EQ(sum_with("GPU-00000000000000b2,0", nullptr), 110U);
  EXPECT_EQ(sum_with("0,7,1", nullptr), 10U);
  EXPECT_EQ(sum_with(nullptr, "-1"), 0U);
  EXPECT_EQ(sum_with("", nullptr), 0U);
}

TEST_F(AmdGpu, OneMeterForAll) {
  card(0, "0000:03:00.0", 3 * kMiB, 50);
  auto meter = GpuMeter::open({.library = "libnot-there.so.1", .sees_own_pid = {}, .amd = places_});
  ASSERT_TRUE(meter);
  EXPECT_EQ(meter->now().bytes, 3 * kMiB);
  EXPECT_EQ(meter->now().busy_percent, 50U);
}

}  // namespace
}  // namespace detent::profile
