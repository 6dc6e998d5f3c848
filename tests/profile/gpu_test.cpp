#include "profile/gpu_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "profile/profiler.h"

namespace detent::profile {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20;

/// Settings of the fake library for the length of a test.
class Gpu : public ::testing::Test {
 protected:
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
  void TearDown() override {
    for (const char* name : {"FAKE_NVML_INIT", "FAKE_NVML_DEVICES", "FAKE_NVML_SELF", "FAKE_NVML_OTHERS",
                             "FAKE_NVML_STATUS", "FAKE_NVML_BUSY"}) {
      ::unsetenv(name);
    }
  }
  static GpuMeter::Options fake(std::optional<bool> sees_own_pid = true) { return {FAKE_NVML, sees_own_pid}; }
  static GpuMemory reading(const GpuMeter::Options& options = fake()) {
    auto meter = GpuMeter::open(options);
    EXPECT_TRUE(meter);
    return meter ? meter->now() : GpuMemory();
  }
  static int open_meters() {
    void* handle = ::dlopen(FAKE_NVML, RTLD_NOW);
    const auto count = reinterpret_cast<int (*)()>(::dlsym(handle, "fake_nvml_initialized"));
    return count != nullptr ? count() : -1;
  }
};

TEST_F(Gpu, NoLibraryNoMeter) {
  EXPECT_FALSE(GpuMeter::open({.library = "libnot-there.so.1", .sees_own_pid = {}}));
  EXPECT_FALSE(GpuMeter::open({.library = "libc.so.6", .sees_own_pid = {}}));  // some other library
}

TEST_F(Gpu, TheBusiestDeviceCounts) {
  set("FAKE_NVML_DEVICES", "3");
  EXPECT_EQ(reading().busy_percent, 0U);
  set("FAKE_NVML_BUSY", "90");
  EXPECT_EQ(reading().busy_percent, 90U);
  Profiler profiler({.yaml = {}, .sample = false, .gpu = fake()});
  profiler.checkpoint("x");
  unsigned busy = 0;
  for (const TimelinePoint& point : profiler.timeline()) busy = std::max(busy, point.gpu_busy);
  EXPECT_EQ(busy, 90U);
}

TEST_F(Gpu, NoDeviceNoMeter) {
  set("FAKE_NVML_DEVICES", "0");
  EXPECT_FALSE(GpuMeter::open(fake()));
  set("FAKE_NVML_DEVICES", "1");
  set("FAKE_NVML_INIT", "9");
  EXPECT_FALSE(GpuMeter::open(fake()));
  EXPECT_EQ(open_meters(), 0);
}

TEST_F(Gpu, CountsThisProcessOnEveryDevice) {
  set("FAKE_NVML_DEVICES", "2");
  set("FAKE_NVML_SELF", "300");
  set("FAKE_NVML_OTHERS", "3");
  const GpuMemory memory = reading();
  EXPECT_EQ(memory.bytes, 600 * kMiB);
  EXPECT_TRUE(memory.of_this_process);
}

TEST_F(Gpu, ManyProcessesTakeSeveralCalls) {
  set("FAKE_NVML_SELF", "300");
  set("FAKE_NVML_OTHERS", "500");
  EXPECT_EQ(reading().bytes, 300 * kMiB);
}

TEST_F(Gpu, ProcessWithoutGpuUsesNothing) {
  set("FAKE_NVML_OTHERS", "2");
  const GpuMemory memory = reading();
  EXPECT_EQ(memory.bytes, 0u);
  EXPECT_TRUE(memory.of_this_process);
}

TEST_F(Gpu, WholeDevicesWhereProcessesCannotBeTold) {
  set("FAKE_NVML_DEVICES", "2");
  const auto expect_devices = [](const GpuMemory& memory) {
    EXPECT_EQ(memory.bytes, 3000 * kMiB);
    EXPECT_FALSE(memory.of_this_process);
  };
  set("FAKE_NVML_OTHERS", "1");
  expect_devices(reading(fake(false)));  // a container: the list has the host's numbers
  set("FAKE_NVML_SELF", "na");
  expect_devices(reading());
  set("FAKE_NVML_STATUS", "3");
  expect_devices(reading());
}

TEST_F(Gpu, OnceListedAlwaysItself) {
  auto meter = GpuMeter::open(fake(false));
  ASSERT_TRUE(meter);
  EXPECT_FALSE(meter->now().of_this_process);
  set("FAKE_NVML_SELF", "40");
  EXPECT_EQ(meter->now().bytes, 40 * kMiB);
  ::unsetenv("FAKE_NVML_SELF");
  EXPECT_TRUE(meter->now().of_this_process);
  EXPECT_EQ(meter->now().bytes, 0u);
}

TEST_F(Gpu, CudaIsSeenOnceItIsLoaded) {
  if (GpuMeter::driver_is_loaded()) GTEST_SKIP() << "something has loaded CUDA";
  const TempDir directory;
  const auto library = directory.path() / "libcuda.so.1";
  std::filesystem::copy_file(FAKE_NVML, library);
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr);
  EXPECT_TRUE(GpuMeter::driver_is_loaded());
  ::dlclose(handle);  // which need not unload it
}

TEST_F(Gpu, MetersLeaveTheLibraryInOrder) {
  {
    auto one = GpuMeter::open(fake());
    EXPECT_EQ(open_meters(), 1);
    const GpuMeter two = std::move(*one);
    EXPECT_EQ(open_meters(), 1);
  }
  EXPECT_EQ(open_meters(), 0);
}

TEST_F(Gpu, ShowsInTheProfile) {
  const TempDir directory;
  const auto path = directory.path() / "profile.yaml";
  const auto use = reinterpret_cast<void (*)(long)>(::dlsym(::dlopen(FAKE_NVML, RTLD_NOW), "fake_nvml_use"));
  ASSERT_NE(use, nullptr);
  use(512);
  {
    Profiler profiler({.yaml = path, .sample = true, .gpu = fake()});
    use(2048);
    const auto highest = [&] {
      std::uint64_t bytes = 0;
      for (const TimelinePoint& point : profiler.timeline()) bytes = std::max(bytes, point.gpu_memory);
      return bytes;
    };
    while (highest() < 2048 * kMiB) std::this_thread::sleep_for(5ms);  // by a reading between checkpoints
    use(1024);
    profiler.checkpoint("later");
    profiler.finish();
    use(-1);
    EXPECT_EQ(profiler.summary().peak_gpu_memory, 2048 * kMiB);
    EXPECT_EQ(highest(), 2048 * kMiB);
  }
  const YAML::Node root = YAML::LoadFile(path);
  std::vector<double> found;
  for (const auto& record : root["memory_usage"]) found.push_back(record["gpu_memory_mb"].as<double>());
  EXPECT_EQ(found, (std::vector<double>{512, 1024, 1024}));
  EXPECT_DOUBLE_EQ(root["peak_gpu_memory_mb"].as<double>(), 2048);
}

TEST_F(Gpu, PeakOfDevicesIsForgottenOnceTheProcessIsListed) {
  Profiler profiler({.yaml = {}, .sample = false, .gpu = fake(false)});
  EXPECT_EQ(profiler.summary().peak_gpu_memory, 1000 * kMiB);
  set("FAKE_NVML_SELF", "30");
  profiler.checkpoint("listed");
  EXPECT_EQ(profiler.summary().peak_gpu_memory, 30 * kMiB);
}

TEST_F(Gpu, ZeroInTheProfileWithoutIt) {
  const TempDir directory;
  const auto path = directory.path() / "profile.yaml";
  Profiler({.yaml = path, .sample = true, .gpu = GpuMeter::Options{.library = "libnot-there.so.1", .sees_own_pid = {}}})
      .finish();
  const YAML::Node root = YAML::LoadFile(path);
  EXPECT_EQ(root["memory_usage"][0]["gpu_memory_mb"].as<double>(), 0);
  EXPECT_EQ(root["peak_gpu_memory_mb"].as<double>(), 0);
}

}  // namespace
}  // namespace detent::profile
