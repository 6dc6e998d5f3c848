#include "base/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/error.h"

namespace detent {
namespace {

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace detent
