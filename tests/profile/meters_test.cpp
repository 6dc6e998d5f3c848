#include "profile/meters.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = 1 << 20;

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
