#include "base/paths.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <vector>

#include "base/file.h"
#include "detent/error.h"

namespace detent {
namespace {
namespace fs = std::filesystem;

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

}  // namespace
}  // namespace detent
