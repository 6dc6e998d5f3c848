#include "base/leftovers.h"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/file.h"

namespace detent {
namespace {

namespace fs = std::filesystem;

// A process that ends without unwinding, with what it has made in `folder`.
[[noreturn]] void end_in(const fs::path& folder) {
  const TempDir removed(folder);
  TempDir kept(folder);
  kept.outlive_process();
  std::ofstream(removed.path() / "file") << "1";
  fs::create_directory(removed.path() / "inner");
  AtomicFile half(folder / "output");
  Leftover(folder / "released").release();
  std::ofstream(folder / "released") << "1";
  remove_leftovers();
  std::_Exit(7);
}

TEST(Leftovers, AreRemovedWithoutUnwinding) {
  const TempDir folder;
  EXPECT_EXIT(end_in(folder.path()), testing::ExitedWithCode(7), "");
  std::size_t folders = 0, files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) ++(entry.is_directory() ? folders : files);
  EXPECT_EQ(folders, 1u) << "what may outlive the process";
  EXPECT_EQ(files, 1u) << "what was released";
}

// While other threads make directories and files.
[[noreturn]] void end_amid_making(const fs::path& folder) {
  std::atomic<int> made = 0;
  for (int thread = 0; thread < 3; ++thread) {
    std::thread([&] {
      for (;;) {
        const TempDir directory(folder);
        const AtomicFile file(folder / "output");
        ++made;
      }
    }).detach();
  }
  while (made < 10) std::this_thread::yield();
  remove_leftovers();
  std::_Exit(7);
}

TEST(Leftovers, AreKnownFromTheMomentThatTheyAreMade) {
  const TempDir folder;
  for (int i = 0; i < 30; ++i) {
    EXPECT_EXIT(end_amid_making(folder.path()), testing::ExitedWithCode(7), "");
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

// The same, but nothing is removed.
[[noreturn]] void crash_in(const fs::path& folder, int journal) {
  keep_journal_of_leftovers(journal);
  const TempDir removed(folder);
  TempDir kept(folder);
  kept.outlive_process();
  { const TempDir gone(folder); }
  std::ofstream(removed.path() / "file") << "1";
  AtomicFile half(folder / "output");
  AtomicFile whole(folder / "whole");
  whole.commit();
  std::_Exit(7);
}

TEST(Leftovers, OfAProcessThatCrashedAreKnownByItsJournal) {
  const TempDir folder;
  const UniqueFd journal(::memfd_create("journal", MFD_CLOEXEC));
  EXPECT_EXIT(crash_in(folder.path(), journal.get()), testing::ExitedWithCode(7), "");
  const auto left = [&] { return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()); };
  EXPECT_EQ(left(), 4);
  remove_leftovers_of(journal.get());
  EXPECT_EQ(left(), 2) << "what may outlive the process, and what was renamed";
  EXPECT_TRUE(fs::exists(folder.path() / "whole"));
}

}  // namespace
}  // namespace detent
