#include "base/folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>

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

}  // namespace
}  // namespace detent
