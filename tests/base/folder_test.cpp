#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/leftovers.h"
#include "base/paths.h"
#include "detent/error.h"

namespace detent {
namespace {

namespace fs = std::filesystem;

class AtomicFolderTest : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return place_.path() / name; }
  fs::path file(const std::string& name) const {
    std::ofstream(at(name)) << "text";
    return at(name);
  }
  bool refuses(const fs::path& target) const {
    try {
      const AtomicFolder folder(target);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      return true;
    }
    return false;
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(place_.path()), fs::directory_iterator()));
  }

  TempDir place_;
};

TEST_F(AtomicFolderTest, AppearsOnCommitWithAllItsFiles) {
  AtomicFolder folder(at("out/"));
  folder.copy(*MappedFile::open(file("a"), "file"), "inner/a");
  EXPECT_FALSE(fs::exists(at("out")));
  folder.commit();
  EXPECT_TRUE(fs::is_regular_file(at("out/inner/a")));
  EXPECT_EQ(entries(), 2U);
}

TEST_F(AtomicFolderTest, LeavesNothingWithoutCommit) {
  {
    const AtomicFolder folder(at("out"));
    folder.copy(*MappedFile::open(file("a"), "file"), "a");
  }
  EXPECT_EQ(entries(), 1U);
}

TEST_F(AtomicFolderTest, TakesAnEmptyFolderAndNothingElseThatExists) {
  fs::create_directory(at("empty"));
  AtomicFolder folder(at("empty"));
  folder.copy(*MappedFile::open(file("a"), "file"), "a");
  folder.commit();
  EXPECT_TRUE(fs::exists(at("empty/a")));
  EXPECT_TRUE(refuses(at("empty")));
  EXPECT_TRUE(refuses(at("a")));
  EXPECT_TRUE(refuses(at("missing/out")));
  fs::create_symlink(at("nowhere"), at("link"));
  EXPECT_TRUE(refuses(at("link")));
}

TEST_F(AtomicFolderTest, ClearsWhatAKilledRunLeft) {
  fs::create_directories(at(".out.partial/inner"));
  file(".out.partial/inner/stale");
  fs::permissions(at(".out.partial"), fs::perms::sticky_bit, fs::perm_options::add);
  AtomicFolder folder(at("out"));
  folder.commit();
  EXPECT_TRUE(fs::is_empty(at("out")));
  EXPECT_EQ(fs::status(at("out")).permissions() & fs::perms::sticky_bit, fs::perms::none);
}

TEST_F(AtomicFolderTest, LeavesAFolderOfThatNameAlone) {
  fs::create_directories(at(".out.partial/inner"));
  file(".out.partial/inner/mine");
  EXPECT_TRUE(refuses(at("out")));
  EXPECT_TRUE(fs::exists(at(".out.partial/inner/mine")));
}

TEST_F(AtomicFolderTest, IsFilledByOneRunOnly) {
  const AtomicFolder folder(at("out"));
  EXPECT_TRUE(refuses(at("out")));
  EXPECT_TRUE(fs::exists(folder.path()));
}

TEST_F(AtomicFolderTest, FollowsNoLinkInItsPlace) {
  fs::create_directory(at("theirs"));
  file("theirs/kept");
  fs::create_directory_symlink(at("theirs"), at(".out.partial"));
  EXPECT_TRUE(refuses(at("out")));
  EXPECT_TRUE(fs::exists(at("theirs/kept")));
}

class BoundaryTest : public ::testing::Test {
 protected:
  BoundaryTest() {
    fs::create_directories(at("model/inner"));
    fs::create_directories(at("blobs"));
    for (const char* name : {"secret", "model/own", "model/inner/own", "blobs/model", "blobs/own"})
      std::ofstream(at(name)) << name;
    fs::create_symlink("../blobs/model", at("model/model.onnx"));
  }
  fs::path at(const std::string& name) const { return place_.path() / name; }
  std::string read(const std::string& name) const {
    const auto file = Boundary(at("model"), at("model/model.onnx")).open(name, "file");
    const auto bytes = file->bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void refuse(const std::string& name, const std::string& message) const {
    try {
      read(name);
      FAIL() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }

  TempDir place_;
};

TEST_F(BoundaryTest, OpensWhatLiesWithTheModel) {
  fs::create_symlink("../blobs/own", at("model/link"));
  fs::create_directory_symlink(at("model/inner"), at("model/folder"));
  EXPECT_EQ(read("own"), "model/own");
  EXPECT_EQ(read("inner/own"), "model/inner/own");
  EXPECT_EQ(read("link"), "blobs/own");
  EXPECT_EQ(read("folder/own"), "model/inner/own");
}

TEST_F(BoundaryTest, RefusesWhatLiesElsewhere) {
  fs::create_symlink(at("secret"), at("model/absolute"));
  fs::create_symlink("../secret", at("model/relative"));
  fs::create_symlink("relative", at("model/twice"));
  fs::create_directory_symlink("..", at("model/up"));
  for (const char* name : {"absolute", "relative", "twice", "up/secret"}) refuse(name, "leads outside");
  for (const auto& name : {std::string(""), std::string("../secret"), at("secret").string()})
    refuse(name, "is not a path inside");
}

TEST_F(BoundaryTest, RefusesFilesWithOtherNamesAndNoFiles) {
  fs::create_hard_link(at("secret"), at("model/hard"));
  refuse("hard", "hard links");
  refuse("inner", "a directory");
  refuse("missing", "cannot be opened");
  ASSERT_EQ(::mkfifo(at("model/pipe").c_str(), 0600), 0);
  refuse("pipe", "not a regular file");
}

class PathsTest : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return place_.path() / name; }
  TempDir place_;
};

TEST_F(PathsTest, WhatIsThere) {
  std::ofstream(at("file")) << "text";
  fs::create_symlink(at("file"), at("link"));
  fs::create_symlink(at("nothing"), at("dangling"));
  EXPECT_TRUE(paths::exists(at("file")) && paths::exists(at("link")) && paths::exists(place_.path()));
  EXPECT_FALSE(paths::exists(at("none")) || paths::exists(at("none/below")) || paths::exists(at("file/below")));
  EXPECT_FALSE(paths::exists(at("dangling")));
  EXPECT_EQ(paths::size_of(at("link")), 4u);
  EXPECT_EQ(paths::target_of(at("link")), at("file"));
  EXPECT_EQ(paths::resolved(at("link")), paths::resolved(place_.path()) / "file");
  EXPECT_EQ(paths::entries_of(place_.path()), (std::vector{at("dangling"), at("file"), at("link")}));
}

TEST_F(PathsTest, MakesAndRemoves) {
  paths::make_folder(at("a/b"));
  paths::make_folder(at("a/b"));
  std::ofstream(at("a/b/file")) << "text";
  paths::remove(at("a"));
  EXPECT_FALSE(paths::exists(at("a")));
  paths::remove(at("a"));
}

TEST_F(PathsTest, WhatCannotBeKnownIsAnErrorThatNamesThePath) {
  fs::create_symlink(at("loop"), at("loop"));
  std::ofstream(at("file")) << "text";
  const std::vector<fs::path> paths{at("loop"), at("loop/below"), at(std::string(300, 'x')),
                                    "/" + std::string(5000, 'x')};
  const std::vector<std::function<void(const fs::path&)>> questions{
      [](const auto& p) { paths::exists(p); },     [](const auto& p) { paths::size_of(p); },
      [](const auto& p) { paths::changed_at(p); }, [](const auto& p) { paths::make_folder(p / "below"); },
      [](const auto& p) { paths::entries_of(p); }, [](const auto& p) { paths::target_of(p / "below"); },
  };
  for (const auto& path : paths) {
    for (const auto& ask : questions) {
      try {
        ask(path);
        ADD_FAILURE() << path;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::bad_input);
        EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
      }
    }
  }
}

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

void write(const fs::path& path) { std::ofstream(path) << "1"; }

// Folders side by side and within one another, with files, links and a FIFO.
void make_tree(const fs::path& top) {
  fs::create_directories(top / "a/b/c/d");
  fs::create_directories(top / "a/empty");
  for (int i = 0; i < 300; ++i) write(top / "a/b" / (std::string(40, 'n') + std::to_string(i)));
  write(top / "a/b/c/d/deep");
  fs::create_symlink(top.parent_path() / "kept", top / "link");
  fs::create_directory_symlink(top.parent_path() / "folder", top / "a/link");
  ::mkfifo((top / "fifo").c_str(), 0600);
}

TEST(RemoveTree, RemovesAllButWhatLinksLeadTo) {
  const TempDir place;
  write(place.path() / "kept");
  fs::create_directory(place.path() / "folder");
  write(place.path() / "folder/kept");
  make_tree(place.path() / "tree");
  EXPECT_TRUE(remove_tree((place.path() / "tree").c_str()));
  EXPECT_FALSE(fs::exists(place.path() / "tree"));
  EXPECT_TRUE(fs::exists(place.path() / "kept"));
  EXPECT_TRUE(fs::exists(place.path() / "folder/kept"));
}

TEST(RemoveTree, TakesFilesLinksAndNothing) {
  const TempDir place;
  write(place.path() / "file");
  fs::create_directory(place.path() / "folder");
  fs::create_directory_symlink("folder", place.path() / "link");
  for (const char* name : {"file", "link", "missing", "missing/below"})
    EXPECT_TRUE(remove_tree((place.path() / name).c_str())) << name;
  EXPECT_FALSE(fs::exists(place.path() / "file"));
  EXPECT_FALSE(fs::exists(fs::symlink_status(place.path() / "link")));
  EXPECT_TRUE(fs::exists(place.path() / "folder"));
}

TEST(RemoveTree, TellsOfWhatStays) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may remove anything";
  const TempDir place;
  fs::create_directories(place.path() / "tree/inner");
  write(place.path() / "tree/inner/file");
  fs::permissions(place.path() / "tree/inner", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_FALSE(remove_tree((place.path() / "tree").c_str()));
  fs::permissions(place.path() / "tree/inner", fs::perms::owner_all);
}

// Folders within one another: a path that is too long to be removed.
void make_deep(const fs::path& top) {
  const std::string name(250, 'd');
  UniqueFd folder(::open(top.c_str(), O_RDONLY | O_DIRECTORY));
  for (int depth = 0; depth < 18; ++depth) {
    ASSERT_EQ(::mkdirat(folder.get(), name.c_str(), 0700), 0);
    folder = UniqueFd(::openat(folder.get(), name.c_str(), O_RDONLY | O_DIRECTORY));
  }
}

TEST(RemoveTree, WhoseItIsIsEmptiedFirstAndGoesLast) {
  const TempDir place;
  const fs::path tree = place.path() / "tree";
  const std::string name(250, 'd');
  for (const char* stays : {"a", "b", "c", "d", "e", "f", "g", "h"}) {  // in whatever order the folder lists them
    fs::create_directories(tree / stays);
    write(tree / kIdentityFile);
    make_deep(tree / stays);
    EXPECT_FALSE(remove_tree(tree.c_str()));
    EXPECT_TRUE(fs::is_empty(tree / kIdentityFile)) << stays;
    fs::rename(tree / stays / name / name / name / name / name / name / name / name, place.path() / "half");
    EXPECT_TRUE(remove_tree((place.path() / "half").c_str()));
    EXPECT_TRUE(remove_tree(tree.c_str()));
  }
  fs::create_directories(tree / kIdentityFile / "folder");
  EXPECT_TRUE(remove_tree(tree.c_str()));
  EXPECT_FALSE(fs::exists(tree));
}

TEST(RemoveTree, OtherNamesOfAFileKeepWhatIsInIt) {
  const TempDir place;
  const fs::path tree = place.path() / "tree", kept = place.path() / "kept";
  write(kept);
  for (const bool is_link : {false, true}) {
    fs::create_directory(tree);
    is_link ? fs::create_symlink(kept, tree / kIdentityFile) : fs::create_hard_link(kept, tree / kIdentityFile);
    EXPECT_TRUE(remove_tree(tree.c_str()));
    EXPECT_EQ(fs::file_size(kept), 1U);
  }
}

// With no descriptor to be had but those that are reserved, and no memory.
[[noreturn]] void remove_without_means(const char* tree) {
  if (!reserve_descriptors()) std::_Exit(1);
  int highest = 0;
  for (int fd = 0; fd < 1024; ++fd) highest = ::fcntl(fd, F_GETFD) >= 0 ? fd : highest;
  const rlimit files{static_cast<rlim_t>(highest) + 1, static_cast<rlim_t>(highest) + 1};
  ::setrlimit(RLIMIT_NOFILE, &files);
  while (::dup(0) >= 0) {
  }
  const rlimit memory{0, 0};
  ::setrlimit(RLIMIT_AS, &memory);
  std::_Exit(remove_tree(tree) ? 7 : 2);
}

TEST(RemoveTree, NeedsNoMeans) {
  const TempDir place;
  const std::string tree = (place.path() / "tree").string();
  make_tree(tree);
  EXPECT_EXIT(remove_without_means(tree.c_str()), testing::ExitedWithCode(7), "");
  EXPECT_FALSE(fs::exists(tree));
}

}  // namespace
}  // namespace detent
