#include "profile/machine.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/file.h"
#include "profile/meters.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;

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
