#include "base/paths.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/file.h"

namespace detent {
namespace {

namespace fs = std::filesystem;

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
