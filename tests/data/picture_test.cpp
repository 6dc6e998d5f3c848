// Pictures: other sizes as PIL makes them, and how they become the input of a model.
#include "data/pictures.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "detent/error.h"

namespace detent::data {
namespace {

Picture pattern() {
  Picture picture{5, 4, {}};
  for (unsigned i = 0; i < 60; ++i) picture.rgb.push_back(static_cast<std::uint8_t>(37 * i * i + 11 * i));
  return picture;
}

// PIL.Image.fromarray(pattern).resize((width, height), Image.Resampling.BILINEAR), Pillow 11.
struct Reference {
  std::size_t width, height;
  std::vector<int> rgb;
};
const Reference kReferences[] = {
    {3, 2, {79, 137, 160, 129, 167, 160, 95, 172, 218, 115, 125, 111, 132, 114, 116, 125, 138, 179}},
    {2, 4, {73,  99,  187, 68,  201, 221, 117, 217, 147, 116, 148, 185,
            171, 113, 117, 174, 141, 159, 72,  88,  97,  91,  121, 143}},
};

TEST(Picture, IsResizedAsPilDoes) {
  for (const auto& reference : kReferences) {
    const auto small = resized(pattern(), reference.width, reference.height);
    ASSERT_EQ(small.rgb.size(), reference.rgb.size());
    for (std::size_t i = 0; i < small.rgb.size(); ++i) EXPECT_NEAR(small.rgb[i], reference.rgb[i], 1) << i;
  }
  EXPECT_EQ(resized(pattern(), 5, 4).rgb, pattern().rgb);
  const auto large = resized(pattern(), 7, 6);
  EXPECT_NEAR(large.rgb[3], 63, 1);
  EXPECT_NEAR(large.rgb[7 * 6 * 3 - 2], 178, 1);
}

TEST(Picture, FilesAreKnownByTheirNames) {
  for (const char* name : {"a.jpg", "a.JPG", "a.b.jpeg", ".png"}) EXPECT_TRUE(is_picture(name)) << name;
  for (const char* name : {"a", "jpg", "a.jpg.txt", "", "."}) EXPECT_FALSE(is_picture(name)) << name;
}

class Folder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& contents) {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
  }
  std::string error(const InputSpec& input, const ImageRecipe& recipe) {
    try {
      open_pictures(directory_.path(), input, recipe)->next();
    } catch (const Error& e) {
      return std::string(e.what()) + "; " + e.hint();
    }
    return {};
  }

  TempDir directory_{""};
  InputSpec input_{"x", onnx::DataType::float32, std::vector<std::int64_t>{-1, 3, 8, 8}};
};

TEST_F(Folder, WhatIsMissingIsAskedForInOneLine) {
  write("a.png", "x");
  EXPECT_NE(error(input_, {}).find("give --image-preset: imagenet, 01"), std::string::npos);
  input_.shape = {-1, 3, -1, -1};
  EXPECT_NE(error(input_, {ImagePreset::bytes}).find("give --set image-size"), std::string::npos);
  input_.shape = {-1, 128};
  EXPECT_NE(error(input_, {ImagePreset::bytes}).find("takes no pictures"), std::string::npos);
  input_.shape = {-1, 3, 8, 8};
  input_.type = onnx::DataType::uint8;
  EXPECT_NE(error(input_, {ImagePreset::zero_to_one}).find("give --image-preset 255"), std::string::npos);
}

TEST_F(Folder, FilesThatAreNoPicturesAreNamed) {
  EXPECT_NE(error(input_, {ImagePreset::bytes}).find("holds no .jpg, .jpeg or .png"), std::string::npos);
  for (const char* start : {"", "text", "\xFF\xD8\xFF\xE0 cut off", "\x89PNG\r\n\x1a\n cut off"}) {
    write("class/a.jpg", start);
    EXPECT_NE(error(input_, {ImagePreset::bytes}).find("a.jpg"), std::string::npos) << start;
  }
}

TEST_F(Folder, FewPicturesAreSpreadOverTheFolder) {
  for (int i = 0; i < 10; ++i) write("class" + std::to_string(i / 5) + "/" + std::to_string(i) + ".png", "");
  EXPECT_EQ(open_pictures(directory_.path(), input_, {ImagePreset::bytes, 0, 4})->size(), 4U);
  EXPECT_EQ(open_pictures(directory_.path(), input_, {ImagePreset::bytes, 0, 40})->size(), 10U);
}

}  // namespace
}  // namespace detent::data
