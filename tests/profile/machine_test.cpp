#include "profile/machine.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/file.h"
#include "profile/disk_rate.h"
#include "profile/meters.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t entries(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

TEST(Machine, FiguresArePositiveAndSteady) {
  const TempDir directory;
  std::vector<double> flops, memory, seconds;
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const MachinePeaks peaks = measure_machine(2, directory.path());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    EXPECT_GE(peaks.threads, 1);
    EXPECT_LE(peaks.threads, 2);
    EXPECT_GT(peaks.disk_bytes_per_second, 0);
    EXPECT_EQ(peaks.bus_bytes_per_second, 0);
    flops.push_back(peaks.flops_per_second);
    memory.push_back(peaks.memory_bytes_per_second);
  }
  for (const auto& figures : {flops, memory}) {
    const auto [least, most] = std::minmax_element(figures.begin(), figures.end());
    EXPECT_GT(*least, 1e8);
    EXPECT_LE(*most, 2 * *least);
  }
  EXPECT_EQ(entries(directory.path()), 0);
  EXPECT_LT(*std::min_element(seconds.begin(), seconds.end()), 4);  // 0.35 on a machine with nothing else to do
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
    const bool bounded = peak_resident() < before + (280ULL << 20);
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
