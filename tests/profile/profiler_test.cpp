#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "profile/meters.h"
#include "profile/profiler.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20;

std::vector<std::string> steps_of(const YAML::Node& root) {
  std::vector<std::string> steps;
  for (const auto& record : root["memory_usage"]) steps.push_back(record["step"].as<std::string>());
  return steps;
}

void with_ballast(
    std::size_t bytes, const std::function<void()>& meanwhile = [] {}) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(address, MAP_FAILED);
  meanwhile();
  ::munmap(address, bytes);
}

// However long a busy machine takes for it.
void wait_for_points(const Profiler& profiler, std::size_t more) {
  const std::size_t before = profiler.timeline().size();
  while (profiler.timeline().size() < before + more) std::this_thread::sleep_for(5ms);
}

using Steps = std::vector<std::string>;

TEST(Profiler, StepNames) {
  const std::vector<std::pair<Step, std::string_view>> names{
      {Step::pre_process, "Pre-process"},
      {Step::calibration, "Calibration"},
      {Step::quantization_static, "Quantization (Static)"},
      {Step::quantization_dynamic, "Quantization (Dynamic)"},
      {Step::quantization_matmul_nbits, "Quantization (MatMulNBits)"},
      {Step::post_process, "Post-process"},
      {Step::fast_finetune, "Fast Finetune"},
      {Step::model_caching, "Model Caching"},
      {Step::float_model_validation, "Float Model Validation"},
      {Step::model_loaded, "Model Loaded"}};
  for (const auto& [step, name] : names) EXPECT_EQ(step_name(step), name);
}

TEST(Profiler, WritesTheWholeStory) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  {
    Profiler profiler(path);
    profiler.checkpoint(Step::model_loaded);
    {
      const Scope outer = profiler.scope(Step::quantization_static);
      const Scope inner = profiler.scope("my \"own\" step");
    }
    profiler.finish();
    profiler.finish();
    profiler.checkpoint("too late");
  }
  const YAML::Node root = YAML::LoadFile(path);
  EXPECT_EQ(steps_of(root), (Steps{"Start", "Model Loaded", "Quantization (Static) Start", "my \"own\" step Start",
                                   "my \"own\" step End", "Quantization (Static) End", "End"}));
  const Steps keys{"step",          "timestamp",    "relative_time_secs", "cpu_memory_mb",
                   "gpu_memory_mb", "disk_read_mb", "disk_write_mb"};
  double last = 0;
  for (const auto& record : root["memory_usage"]) {
    Steps found;
    for (const auto& entry : record) found.push_back(entry.first.as<std::string>());
    EXPECT_EQ(found, keys);
    EXPECT_GE(record["relative_time_secs"].as<double>(), last);
    last = record["relative_time_secs"].as<double>();
    EXPECT_GT(record["cpu_memory_mb"].as<double>(), 0);
  }
  EXPECT_NEAR(root["total_quantization_time_seconds"].as<double>(), last, 1e-4);
  EXPECT_GT(root["peak_memory_mb"].as<double>(), 0);
  EXPECT_GT(root["peak_anonymous_memory_mb"].as<double>(), 0);
  EXPECT_EQ(root["stages"].size(), 2u);
  EXPECT_FALSE(root["peak_cache_dir_disk_usage_mb"]);
  std::ifstream file(path);
  std::string first;
  std::getline(file, first);
  EXPECT_EQ(first, "# detent profile");
}

TEST(Profiler, EveryCheckpointIsThereAtOnce) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  Profiler profiler(path);
  EXPECT_EQ(steps_of(YAML::LoadFile(path)), (Steps{"Start"}));
  const Scope scope = profiler.scope(Step::calibration);
  EXPECT_EQ(steps_of(YAML::LoadFile(path)), (Steps{"Start", "Calibration Start"}));
}

TEST(Profiler, KilledRunLeavesAReadableList) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  const pid_t child = ::fork();
  if (child == 0) {
    Profiler profiler(path);
    { const Scope scope = profiler.scope(Step::pre_process); }
    const Scope scope = profiler.scope(Step::calibration);
    std::this_thread::sleep_for(50ms);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const YAML::Node root = YAML::LoadFile(path);
  EXPECT_EQ(steps_of(root), (Steps{"Start", "Pre-process Start", "Pre-process End", "Calibration Start"}));
  EXPECT_FALSE(root["total_quantization_time_seconds"]);
}

TEST(Profiler, FailedRunStillEndsItsFile) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  try {
    Profiler profiler(path);
    const Scope scope = profiler.scope(Step::calibration);
    throw std::runtime_error("a failed run");
  } catch (const std::runtime_error&) {
  }
  const YAML::Node root = YAML::LoadFile(path);
  EXPECT_EQ(steps_of(root), (Steps{"Start", "Calibration Start", "Calibration End", "End"}));
  EXPECT_TRUE(root["total_quantization_time_seconds"]);
}

TEST(Profiler, UnusablePathIsAUsageError) {
  try {
    Profiler profiler("/nonexistent/profile.yaml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
  }
}

TEST(Profiler, SamplesThePeakInsideAStage) {
  Profiler profiler;
  with_ballast(160 * kMiB);  // so that the high-water mark stays put and only sampling can see the stage's peak
  {
    const Scope scope = profiler.scope("large");
    with_ballast(96 * kMiB, [&] { wait_for_points(profiler, 2); });
  }
  {
    const Scope scope = profiler.scope("small");
    wait_for_points(profiler, 2);
  }
  const std::vector<StageTime> stages = profiler.stages();
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_GT(stages[0].peak_memory, stages[1].peak_memory + 90 * kMiB);
  EXPECT_GT(stages[0].peak_anonymous, stages[1].peak_anonymous + 90 * kMiB);
  EXPECT_GE(profiler.peak_memory(), stages[0].peak_memory);
}

TEST(Profiler, KernelKnowsThePeakWithoutSampling) {
  Profiler profiler(ProfilerOptions{.yaml = {}, .sample = false});
  const std::uint64_t before = profiler.peak_memory();
  {
    const Scope scope = profiler.scope("record");
    with_ballast(before + 64 * kMiB);
  }
  EXPECT_GT(profiler.stages().at(0).peak_memory, before + 64 * kMiB);
}

TEST(Profiler, WatchesTheSumOfDirectories) {
  const TempDir one, two;
  const TempDir out;
  const fs::path path = out.path() / "profile.yaml";
  std::ofstream(one.path() / "a") << std::string(3 * kMiB, 'a');
  std::ofstream(two.path() / "b") << std::string(2 * kMiB, 'b');
  std::optional<Profiler> profiler;
  const auto seen = [&] { return profiler->summary().peak_directories == 5 * kMiB; };
  do {  // once more where a scan took so long that the next one is put off
    profiler.emplace(path);
    profiler->watch_directory(one.path());
    profiler->watch_directory(two.path());
    profiler->watch_directory(out.path() / "never there");
    for (int i = 0; i < 500 && !seen(); ++i) std::this_thread::sleep_for(10ms);
  } while (!seen());
  fs::remove(one.path() / "a");
  profiler->finish();
  EXPECT_TRUE(seen());
  EXPECT_DOUBLE_EQ(YAML::LoadFile(path)["peak_cache_dir_disk_usage_mb"].as<double>(), 5.0);
}

TEST(Profiler, StagesStillOpenEndWithTheRun) {
  Profiler profiler;
  const Scope scope = profiler.scope("open");
  std::this_thread::sleep_for(30ms);
  EXPECT_GE(profiler.stages().at(0).seconds, 0.03);
  profiler.finish();
  const Summary summary = profiler.summary();
  std::this_thread::sleep_for(30ms);
  EXPECT_DOUBLE_EQ(profiler.summary().seconds, summary.seconds);
  EXPECT_DOUBLE_EQ(profiler.summary().stages.at(0).seconds, summary.stages.at(0).seconds);
}

TEST(Profiler, StagesKnowWhenTheyBeganAndWhatTheyTook) {
  Profiler profiler;
  std::this_thread::sleep_for(30ms);
  const double before = profiler.now();
  {
    const Scope outer = profiler.scope("outer");
    std::this_thread::sleep_for(20ms);
    const Scope inner = profiler.scope("inner");
    volatile double sink = 0;
    for (int i = 0; i < 20'000'000; ++i) sink = sink + 1;
  }
  profiler.finish();
  const std::vector<StageTime> stages = profiler.stages();
  EXPECT_GE(stages.at(0).start, before);
  EXPECT_GE(stages.at(1).start, stages.at(0).start + 0.02);
  EXPECT_LE(stages.at(1).start + stages.at(1).seconds, stages.at(0).start + stages.at(0).seconds);
  for (const StageTime& stage : stages) {
    EXPECT_GT(stage.cpu_seconds, 0);
    EXPECT_LE(stage.start + stage.seconds, profiler.summary().seconds);
    EXPECT_LE(stage.disk_read + stage.disk_written, profiler.summary().disk_read + profiler.summary().disk_written);
  }
  EXPECT_GE(stages.at(0).cpu_seconds, stages.at(1).cpu_seconds);
}

TEST(Profiler, TimelineFollowsMemory) {
  Profiler profiler;
  wait_for_points(profiler, 3);
  const double begin = profiler.now();
  double end = 0;
  with_ballast(64 * kMiB, [&] {
    wait_for_points(profiler, 3);
    end = profiler.now();
  });
  wait_for_points(profiler, 2);
  profiler.finish();
  const std::vector<TimelinePoint> points = profiler.timeline();
  std::uint64_t inside = 0;
  std::uint64_t outside = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(points[i].time, points[i - 1].time);
    }
    EXPECT_LE(points[i].anonymous, points[i].resident);
    if (points[i].time > begin && points[i].time < end) inside = std::max(inside, points[i].anonymous);
    if (points[i].time < begin) outside = std::max(outside, points[i].anonymous);
  }
  EXPECT_GT(inside, outside + 60 * kMiB);
  EXPECT_LE(points.back().time, profiler.summary().seconds + 1e-9);
  EXPECT_GE(profiler.peak_memory(), inside);
}

TEST(Profiler, SpansAreInTheTraceOnly) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  Profiler profiler(path);
  profiler.add_span("conv", 0.25, 0.5);
  profiler.finish();
  profiler.add_span("late", 1, 2);
  ASSERT_EQ(profiler.spans().size(), 2u);
  EXPECT_EQ(profiler.spans()[0].name, "conv");
  EXPECT_DOUBLE_EQ(profiler.spans()[0].start, 0.25);
  EXPECT_DOUBLE_EQ(profiler.spans()[1].seconds, 2);
  EXPECT_EQ(steps_of(YAML::LoadFile(path)), (Steps{"Start", "End"}));
  EXPECT_TRUE(profiler.stages().empty());
}

TEST(Profiler, ScopesOfOnesOwnNestAndRepeat) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  {
    Profiler profiler(path);
    const Scope outer = profiler.scope(Step::calibration);
    for (int i = 0; i < 2; ++i) {
      const Scope mine = profiler.scope("mine: #1\n");
      const Scope inner = profiler.scope("inner");
    }
  }
  const YAML::Node root = YAML::LoadFile(path);
  EXPECT_EQ(steps_of(root),
            (Steps{"Start", "Calibration Start", "mine: #1\n Start", "inner Start", "inner End", "mine: #1\n End",
                   "mine: #1\n Start", "inner Start", "inner End", "mine: #1\n End", "Calibration End", "End"}));
  EXPECT_EQ(root["stages"].size(), 5u);
  EXPECT_EQ(root["stages"][1]["name"].as<std::string>(), "mine: #1\n");
}

TEST(Profiler, TakesCallsFromManyThreads) {
  const TempDir directory;
  const fs::path path = directory.path() / "profile.yaml";
  Profiler profiler(path);
  profiler.watch_directory(directory.path());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&profiler, t] {
        for (int i = 0; i < 20; ++i) {
          const Scope scope = profiler.scope("thread " + std::to_string(t));
          profiler.checkpoint("between");
          static_cast<void>(profiler.summary());
        }
      });
    }
  }
  std::jthread other([&profiler] { profiler.finish(); });
  profiler.finish();
  other.join();
  const YAML::Node root = YAML::LoadFile(path);
  EXPECT_EQ(root["memory_usage"].size(), 2u + 8 * 20 * 3);
  EXPECT_EQ(root["stages"].size(), 160u);
}

void write_file(const fs::path& path, std::size_t bytes) {
  std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
}

/// Anonymous pages that are resident for the object's life, whatever malloc does.
class Ballast {
 public:
  explicit Ballast(std::size_t bytes)
      : bytes_(bytes),
        address_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  Ballast(const Ballast&) = delete;
  Ballast& operator=(const Ballast&) = delete;
  ~Ballast() { ::munmap(address_, bytes_); }

 private:
  std::size_t bytes_;
  void* address_;
};

/// A forked child that is ready when the constructor returns, and is killed and waited for by the destructor.
class Child {
 public:
  template <typename Work>
  explicit Child(Work work) {
    int ready[2];
    if (::pipe(ready) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      work();
      if (::write(ready[1], "r", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(Meters, MemoryFollowsAnonymousPages) {
  const Memory before = memory_now({});
  EXPECT_GT(before.resident, 0u);
  EXPECT_GT(before.file_backed, 0u);
  EXPECT_EQ(before.resident, before.anonymous + before.file_backed);
  const Ballast ballast(64 * kMiB);
  const Memory during = memory_now({});
  EXPECT_NEAR(static_cast<double>(during.anonymous - before.anonymous), 64.0 * kMiB, 4.0 * kMiB);
  EXPECT_GE(peak_resident() + kMiB, during.resident);
}

TEST(Meters, FilePagesAreNotAnonymous) {
  const TempDir directory;
  write_file(directory.path() / "file", 32 * kMiB);
  const UniqueFd file(::open((directory.path() / "file").c_str(), O_RDONLY));
  const Memory before = memory_now({});
  void* address = ::mmap(nullptr, 32 * kMiB, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  const Memory after = memory_now({});
  EXPECT_NEAR(static_cast<double>(after.file_backed - before.file_backed), 32.0 * kMiB, 2.0 * kMiB);
  EXPECT_LT(after.anonymous, before.anonymous + 2 * kMiB);
  ::munmap(address, 32 * kMiB);
}

TEST(Meters, PeakOutlivesTheMemory) {
  const std::uint64_t resident = memory_now({}).resident;
  { const Ballast ballast(96 * kMiB); }
  EXPECT_GE(peak_resident(), resident + 90 * kMiB);
}

TEST(Meters, LiveDescendantsAreCounted) {
  ASSERT_TRUE(live_descendants().empty());
  {
    const Child child([] {
      if (::fork() == 0) {  // a grandchild, which dies with its parent's group no later than the alarm
        ::alarm(200);
        while (true) ::pause();
      }
      static const Ballast ballast(48 * kMiB);
    });
    const std::vector<pid_t> all = live_descendants();
    EXPECT_EQ(all.size(), 2u);
    EXPECT_EQ(std::count(all.begin(), all.end(), child.pid()), 1);
    EXPECT_GT(memory_now(all).resident, memory_now({}).resident + 48 * kMiB);
    for (const pid_t pid : all) {
      if (pid != child.pid()) ::kill(pid, SIGKILL);
    }
  }
  EXPECT_TRUE(live_descendants().empty());
}

TEST(Meters, PagesThatAChildSharesCountOnce) {
  if (::access("/proc/self/smaps_rollup", R_OK) != 0) GTEST_SKIP() << "the kernel does not tell parts of pages";
  const Ballast ballast(256 * kMiB);
  const Child child([] {});  // has all of our pages
  const std::vector<pid_t> all = live_descendants();
  ASSERT_EQ(all.size(), 1u);
  const std::uint64_t own = memory_now({}).resident, both = memory_now(all).resident;
  EXPECT_GE(both, own);
  EXPECT_LT(both, own + 240 * kMiB);
  EXPECT_LE(memory_of(all).anonymous, memory_of(all).resident);
}

TEST(Meters, ChildrenOfOtherThreadsAreCounted) {
  std::vector<pid_t> all;
  std::jthread([&all] {
    const Child child([] {});
    all = live_descendants();
  }).join();
  EXPECT_EQ(all.size(), 1u);
}

TEST(Meters, VanishedProcessesCountAsZero) {
  const std::vector<pid_t> nobody{0x3FFFFFFF};
  EXPECT_NEAR(static_cast<double>(memory_now(nobody).resident), static_cast<double>(memory_now({}).resident), kMiB);
  EXPECT_NO_THROW(disk_traffic(nobody));
}

TEST(Meters, CpuTimeGrowsWithWork) {
  const double before = cpu_seconds();
  volatile double sink = 0;
  for (int i = 0; i < 30'000'000; ++i) sink = sink + 1;
  EXPECT_GT(cpu_seconds(), before);
}

TEST(Meters, DiskTrafficNeverFalls) {
  const DiskTraffic before = disk_traffic();
  const TempDir directory;
  write_file(directory.path() / "file", 4 * kMiB);
  ::sync();
  const DiskTraffic after = disk_traffic();
  EXPECT_GE(after.read, before.read);
  EXPECT_GE(after.written, before.written);
}

TEST(DirectorySize, SumsLogicalSizesOfTheTree) {
  const TempDir directory;
  fs::create_directories(directory.path() / "a" / "b");
  write_file(directory.path() / "one", 1000);
  write_file(directory.path() / "a" / "two", 200);
  write_file(directory.path() / "a" / "b" / "three", 30);
  fs::resize_file(directory.path() / "a" / "b" / "three", 5 * kMiB);  // sparse
  EXPECT_EQ(directory_size(directory.path()), 1200 + 5 * kMiB);
}

TEST(DirectorySize, NeverFollowsLinks) {
  const TempDir outside;
  write_file(outside.path() / "large", 10000);
  const TempDir directory;
  fs::create_symlink(outside.path() / "large", directory.path() / "file_link");
  fs::create_directory_symlink(outside.path(), directory.path() / "directory_link");
  fs::create_directory_symlink(directory.path(), directory.path() / "loop");
  write_file(directory.path() / "small", 7);
  EXPECT_EQ(directory_size(directory.path()), 7u);
}

TEST(DirectorySize, MissingDirectoryIsEmpty) { EXPECT_EQ(directory_size("/nonexistent/directory"), 0u); }

TEST(DirectorySize, ToleratesFilesThatVanish) {
  const TempDir directory;
  write_file(directory.path() / "kept", 100);
  std::jthread churn([&directory](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      fs::create_directories(directory.path() / "x" / "y");
      write_file(directory.path() / "x" / "y" / "f", 11);
      fs::remove_all(directory.path() / "x");
    }
  });
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t size = directory_size(directory.path());
    EXPECT_GE(size, 100u);
    EXPECT_LE(size, 111u);
  }
}

}  // namespace
}  // namespace detent::profile
