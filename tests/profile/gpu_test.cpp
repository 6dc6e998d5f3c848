#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "profile/gpu_memory.h"
#include "profile/machine.h"
#include "profile/meters.h"
#include "profile/profiler.h"
#include "profile/report.h"
#include "profile/trace.h"

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

// On a made-up tree of the files that the driver amdgpu shows.

namespace fs = std::filesystem;

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

using Clock = DeviceActivity::Clock;

TEST(DeviceActivity, AddsUpByDeviceLaneAndKind) {
  DeviceActivity activity(Clock::now());
  activity.add(1, DeviceLane::compute, "steps", 0, 0.5, {100, 7});
  activity.add(0, DeviceLane::copy, "sample", 0, 0.25, {30, 0});
  activity.add(0, DeviceLane::copy, "sample", 1, 0.25, {12, 0});
  activity.add(0, DeviceLane::read, "sample", 1, 1, {5, 0});
  const auto totals = activity.totals();
  ASSERT_EQ(totals.size(), 3U);
  EXPECT_EQ(totals[0].lane, DeviceLane::read);
  EXPECT_EQ(totals[1].what, "sample");
  EXPECT_EQ(totals[1].count, 2U);
  EXPECT_EQ(totals[1].seconds, 0.5);
  EXPECT_EQ(totals[1].amount.bytes, 42U);
  EXPECT_EQ(totals[2].device, 1);
  EXPECT_EQ(totals[2].amount.flops, 7);
  const auto counters = activity.counters();
  EXPECT_EQ(counters.bus_bytes, 42U);
  EXPECT_EQ(counters.storage_bytes, 5U);
}

TEST(DeviceActivity, KeepsTheFirstSpansOfEachWork) {
  DeviceActivity activity(Clock::now());
  for (const char* work : {"conv1", "conv2"}) {
    activity.begin(work, 3);
    for (int i = 0; i < 10; ++i) {
      activity.add(0, DeviceLane::copy, "sample", i, 1, {1, 0});
      activity.add(0, DeviceLane::compute, "mini-batches", i, 1, {1, 1});
    }
  }
  std::map<std::string, int> names;
  for (const auto& span : activity.spans()) ++names[span.lane + ", " + span.name];
  EXPECT_EQ(names, (std::map<std::string, int>{{"cuda:0 copy, sample: conv1", 3},
                                               {"cuda:0 copy, sample: conv2", 3},
                                               {"cuda:0 compute, mini-batches: conv1", 3},
                                               {"cuda:0 compute, mini-batches: conv2", 3}}));
  EXPECT_EQ(activity.counters().bus_bytes, 20U);  // of all
}

TEST(DeviceActivity, LongRunsStaySmallAndLateWorkIsSeen) {
  DeviceActivity activity(Clock::now());
  for (int layer = 0; layer < 2000; ++layer) {
    activity.begin("layer " + std::to_string(layer));
    for (int i = 0; i < 300; ++i) activity.add(0, DeviceLane::compute, "steps", i, 1, {});
  }
  const auto spans = activity.spans();
  EXPECT_LE(spans.size(), DeviceActivity::kMostSpans);
  EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [](const auto& s) { return s.name == "steps: layer 250"; }));
}

TEST(DeviceActivity, MemoryIsThatOfAllDevices) {
  DeviceActivity activity(Clock::now());
  activity.add_device(1, "one", 1000);
  activity.add_device(0, "zero", 500);
  activity.set_memory(0, 100);
  activity.set_memory(1, 300);
  activity.set_memory(1, 50);
  EXPECT_EQ(activity.counters().memory_peak, 400U);
  const auto now = activity.counters();
  EXPECT_EQ(now.memory, 150U);
  EXPECT_EQ(now.memory_peak, 150U);  // since the reading before
  activity.set_storage(1, "a way: its reason");
  activity.add_memory_estimate(1, 320);
  activity.add_memory_estimate(1, 200);
  const auto devices = activity.devices();
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].name, "zero");
  EXPECT_EQ(devices[0].memory_peak, 100U);
  EXPECT_EQ(devices[1].memory_peak, 300U);
  EXPECT_EQ(devices[1].memory_budget, 1000U);
  EXPECT_EQ(devices[1].memory_foretold, 320U);
  EXPECT_EQ(devices[1].storage, "a way: its reason");
}

TEST(DeviceActivity, RunsThatShareAProfileHaveTheirOwnTotals) {
  DeviceActivity activity(Clock::now());
  activity.add_device(0, "zero", 500);
  activity.add(0, DeviceLane::copy, "sample", 0, 1, {30, 0});
  activity.set_memory(0, 100);
  activity.set_memory(0, 0);
  activity.begin_run();
  EXPECT_TRUE(activity.totals().empty());
  EXPECT_TRUE(activity.devices().empty());
  EXPECT_EQ(activity.spans().size(), 1U);
  activity.add_device(0, "zero", 200);
  activity.add(0, DeviceLane::copy, "sample", 2, 1, {12, 0});
  activity.set_memory(0, 40);
  EXPECT_EQ(activity.totals().at(0).amount.bytes, 12U);
  EXPECT_EQ(activity.devices().at(0).memory_budget, 200U);
  EXPECT_EQ(activity.devices().at(0).memory_peak, 40U);
  EXPECT_EQ(activity.counters().bus_bytes, 42U);
}

TEST(DeviceActivity, HasTracksAndCurvesOfItsOwn) {
  Profiler profiler;
  profiler.device().set_memory(0, 3 << 20);
  profiler.device().add(0, DeviceLane::copy, "sample", 0.5, 1, {std::uint64_t{8} << 20, 0});
  profiler.device().add(0, DeviceLane::compute, "sums", 1, 1, {});  // beside the copy
  profiler.checkpoint("here");
  profiler.finish();
  const auto timeline = profiler.timeline();
  EXPECT_EQ(timeline.back().device_copied, std::uint64_t{8} << 20);
  EXPECT_GE(timeline.back().device_memory, std::uint64_t{3} << 20);
  auto spans = profiler.device().spans();
  spans.push_back({"conv", 0, 1});
  const TempDir directory;
  write_trace(directory.path() / "t.json", {}, timeline, spans);
  std::ifstream file(directory.path() / "t.json");
  std::map<std::string, nlohmann::json> tracks;  // by name
  std::set<std::string> curves;
  const auto events = nlohmann::json::parse(file);
  for (const auto& event : events.at("traceEvents")) {
    if (event["name"] == "thread_name") tracks[event["args"]["name"]] = event["tid"];
    if (event["ph"] == "C") curves.insert(event["name"]);
  }
  ASSERT_EQ(tracks.size(), 3U);
  EXPECT_TRUE(tracks.contains("layers"));
  EXPECT_NE(tracks.at("cuda:0 copy"), tracks.at("cuda:0 compute"));
  for (const char* name : {"GPU memory taken by detent (MB)", "bus to the GPU (MB/s)", "storage to the GPU (MB/s)"})
    EXPECT_TRUE(curves.contains(name)) << name;
}

using Bound = Bottleneck::Bound;

constexpr double kG = 1e9;
const MachinePeaks kMachine{100 * kG, 20 * kG, 1 * kG, 4, 10 * kG};
constexpr const char* kStages[] = {"Pre-process",
                                   "Float Model Validation",
                                   "Calibration",
                                   "Post-process",
                                   "Quantization (Static)",
                                   "Quantization (Dynamic)",
                                   "Fast Finetune",
                                   "Quantization (MatMulNBits)",
                                   "Model Caching",
                                   "Model Loaded",
                                   "Calibration on a GPU",
                                   "Fast Finetune on a GPU",
                                   "a step of the caller's own"};
/// For each bound, and for a busy processor, work that makes it so.
const Work kWorks[] = {{.seconds = 10, .flops = 900 * kG},    {.seconds = 10, .memory_bytes = 150 * kG},
                       {.seconds = 10, .disk_bytes = 9 * kG}, {.seconds = 10, .bus_bytes = 80 * kG},
                       {.seconds = 10, .cpu_seconds = 2},     {.seconds = 10, .cpu_seconds = 9.5},
                       {.seconds = 10, .cpu_seconds = 39},    {.seconds = 10, .cpu_seconds = 2, .pressure_seconds = 9}};

TEST(Roofline, TheLargestShareIsTheBound) {
  const struct {
    Work work;
    Bound bound;
    double share;
  } cases[] = {
      {{.seconds = 10, .flops = 900 * kG, .memory_bytes = 100 * kG, .disk_bytes = kG}, Bound::compute, 0.9},
      {{.seconds = 10, .flops = 400 * kG, .memory_bytes = 160 * kG, .cpu_seconds = 40}, Bound::memory, 0.8},
      {{.seconds = 10, .flops = 400 * kG, .memory_bytes = 20 * kG, .disk_bytes = 7 * kG}, Bound::disk, 0.7},
      {{.seconds = 10, .flops = 300 * kG, .disk_bytes = kG, .bus_bytes = 60 * kG}, Bound::transfer, 0.6},
      {{.seconds = 10, .flops = 200 * kG, .memory_bytes = 10 * kG, .cpu_seconds = 8}, Bound::waiting, 0.2},
      {{.seconds = 10, .flops = 250 * kG}, Bound::compute, 0.25},
      {{.seconds = 10, .flops = 249 * kG}, Bound::waiting, 0.249},
  };
  for (const auto& c : cases) {
    const Bottleneck verdict = find_bottleneck(c.work, kMachine, "Calibration");
    EXPECT_EQ(verdict.bound, c.bound) << bound_name(verdict.bound);
    EXPECT_NEAR(verdict.share, c.share, 1e-9);
    EXPECT_FALSE(verdict.advice.empty());
  }
}

TEST(Roofline, BusyWithOtherWorkIsNotWaiting) {
  const Work work{.seconds = 10, .flops = 50 * kG, .memory_bytes = 20 * kG, .cpu_seconds = 30};
  const Bottleneck verdict = find_bottleneck(work, kMachine, "Calibration");
  EXPECT_EQ(verdict.bound, Bound::compute);
  EXPECT_NEAR(verdict.share, 0.05, 1e-9);
  EXPECT_NE(verdict.advice.find("--method minmax"), std::string::npos);
}

TEST(Roofline, WaitingForOtherProgramsIsContention) {
  const Work work{.seconds = 10, .flops = 50 * kG, .cpu_seconds = 12, .pressure_seconds = 4};
  const Bottleneck verdict = find_bottleneck(work, kMachine, "Calibration");
  EXPECT_EQ(verdict.bound, Bound::contention);
  EXPECT_NE(verdict.advice.find("Other programs"), std::string::npos);
  Work busy = work;
  busy.cpu_seconds = 30;  // whoever waited, it was not this run
  EXPECT_EQ(find_bottleneck(busy, kMachine, "Calibration").bound, Bound::compute);
  Work calm = work;
  calm.pressure_seconds = 2;
  EXPECT_EQ(find_bottleneck(calm, kMachine, "Calibration").bound, Bound::waiting);
}

TEST(Roofline, MoreThanThePeakIsThePeak) {
  EXPECT_DOUBLE_EQ(find_bottleneck({.seconds = 1, .disk_bytes = 3 * kG}, kMachine, "Post-process").share, 1);
}

TEST(Roofline, UnknownFiguresHaveNoPart) {
  EXPECT_EQ(find_bottleneck({}, kMachine, "Calibration").bound, Bound::waiting);
  EXPECT_EQ(find_bottleneck({}, {}, "").bound, Bound::waiting);
  EXPECT_DOUBLE_EQ(find_bottleneck({}, {}, "").share, 0);
  EXPECT_EQ(find_bottleneck({.seconds = 1, .flops = 1e12}, {}, "x").bound, Bound::waiting);
  EXPECT_EQ(find_bottleneck({.seconds = -1, .flops = 1e12}, kMachine, "x").bound, Bound::waiting);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Bottleneck verdict = find_bottleneck({.seconds = 1, .flops = nan, .disk_bytes = 0.5 * kG}, kMachine, "x");
  EXPECT_EQ(verdict.bound, Bound::disk);
  EXPECT_DOUBLE_EQ(verdict.share, 0.5);
}

TEST(Roofline, AdviceIsOneSentence) {
  for (const char* stage : kStages) {
    for (const Work& work : kWorks) {
      const std::string advice = find_bottleneck(work, kMachine, stage).advice;
      EXPECT_EQ(advice.find('.'), advice.size() - 1) << advice;
      EXPECT_EQ(advice.find('\n'), std::string::npos);
    }
  }
}

/// The page of all options, which is generated from their rows.
std::string page_of_options() {
  const auto path = std::filesystem::path(DETENT_TEST_DATA) / "../../../docs/options.md";
  std::ostringstream text;
  text << std::ifstream(path.lexically_normal()).rdbuf();
  return text.str();
}

TEST(Roofline, AdviceNamesOnlyOptionsThatExist) {
  const std::string page = page_of_options();
  ASSERT_NE(page.find("`--threads "), std::string::npos);
  const std::regex option("--[a-z][a-z-]*[a-z]");
  std::set<std::string> named;
  for (const char* stage : kStages) {
    for (const Work& work : kWorks) {
      const std::string advice = find_bottleneck(work, kMachine, stage).advice;
      for (std::sregex_iterator it(advice.begin(), advice.end(), option), end; it != end; ++it) named.insert(it->str());
    }
  }
  EXPECT_TRUE(named.contains("--workers"));
  for (const std::string& name : named) {
    EXPECT_TRUE(page.find(name + ' ') != std::string::npos || page.find(name + '`') != std::string::npos)
        << name << " is no option of detent";
  }
}

std::ptrdiff_t entries(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

TEST(Machine, FiguresArePossibleOnes) {
  const TempDir directory;
  const MachinePeaks peaks = measure_machine(2, directory.path());
  EXPECT_GE(peaks.threads, 1);
  EXPECT_LE(peaks.threads, 2);
  EXPECT_GT(peaks.disk_bytes_per_second, 0);
  EXPECT_EQ(peaks.bus_bytes_per_second, 0);
  for (const double figure : {peaks.flops_per_second, peaks.memory_bytes_per_second}) {
    EXPECT_GT(figure, 1e6);  // however busy
    EXPECT_LT(figure, 1e13);
  }
  EXPECT_EQ(entries(directory.path()), 0);
}

TEST(Machine, FootprintIsBounded) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer keeps several bytes for each";
#endif
  const TempDir directory;
  const pid_t child = ::fork();  // whose high-water mark is its own
  if (child == 0) {
    const std::uint64_t before = memory_now({}).resident;
    measure_machine(2, directory.path());
    const bool bounded = peak_resident() < before + (22ULL << 20);  // stacks of threads are beside the buffer
    const bool given_back = memory_now({}).resident < before + (16ULL << 20);
    ::_exit(bounded && given_back ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Machine, OddArgumentsAreNoError) {
  const MachinePeaks peaks = measure_machine(-3, "/nonexistent/directory");
  EXPECT_EQ(peaks.threads, 1);
  EXPECT_GT(peaks.flops_per_second, 0);
  EXPECT_GT(peaks.memory_bytes_per_second, 0);
  EXPECT_EQ(peaks.disk_bytes_per_second, 0);
  const MachinePeaks many = measure_machine(1'000'000, "/proc");
  EXPECT_LT(many.threads, 1'000'000);
  EXPECT_EQ(many.disk_bytes_per_second, 0);
}

TEST(DiskRate, LeavesNothing) {
  const TempDir directory;
  std::ofstream(directory.path() / "kept") << "x";
  EXPECT_GT(disk_rate(directory.path()), 0);
  EXPECT_EQ(entries(directory.path()), 1);
  EXPECT_EQ(disk_rate(directory.path() / "kept"), 0);
}

}  // namespace
}  // namespace detent::profile
