// Pictures of a file: 8 bits for each of red, green and blue.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "data/sample.h"
#include "detent/samples.h"

namespace detent::data {

/// No picture is larger, neither as it is read nor on the way to another size.
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 28;

struct Picture {
  std::size_t width = 0;
  std::size_t height = 0;
  std::vector<std::uint8_t> rgb;  // row after row, three bytes a pixel
};

/// Whether a file of this name is taken for a picture: .jpg, .jpeg or .png, in any case.
bool is_picture(std::string_view name);

/// Reads a JPEG or PNG file, told apart by their first bytes. Grey becomes red, green and blue; transparency and the
/// orientation that a camera noted are ignored, as by PIL.Image.open(path).convert("RGB"). Throws bad_input for a file
/// that is damaged, neither of them, larger than kMostPixels, a JPEG of more than 500 scans, or of a kind that this
/// build does not read, and resource where the size in its header needs more than `memory` bytes; 0: no limit.
Picture read_picture(const std::filesystem::path& path, std::uint64_t memory = 0);

/// Another size, by a triangle filter as wide as the pixels it takes together: PIL.Image.resize(…, BILINEAR), but for
/// the rounding of a value here and there.
Picture resized(const Picture& picture, std::size_t width, std::size_t height);

/// How a picture becomes an input; the names are those of --image-preset.
enum class ImagePreset {
  none,
  imagenet,     // as torchvision's: short side 256 / 224 of the input's, its centre; mean and deviation of ImageNet
  zero_to_one,  // the whole picture; 0 to 1
  one_to_one,   // the whole picture; -1 to 1
  bytes,        // the whole picture; 0 to 255
  letterbox,    // as YOLO's: the whole picture in its proportions, the rest 114; 0 to 1
};

struct ImageRecipe {
  ImagePreset preset = ImagePreset::none;
  std::size_t size = 0;      // of both sides, where the model does not fix them
  std::size_t samples = 0;   // as many pictures, spread evenly over the folder; 0: all
  std::uint64_t memory = 0;  // bytes that reading one may take; 0: no limit
};

/// Pictures below `folder`, in natural order of their paths, hidden files and links to folders left out. Layout, size,
/// and whether colours are kept follow from the input: [N, 3, H, W], [N, H, W, 3], or 1 in the place of 3 for grey.
/// Throws usage for an input that pictures cannot feed or a size that is missing, bad_input when there are no pictures.
std::unique_ptr<SampleStream> open_pictures(const std::filesystem::path& folder, const InputSpec& input,
                                            const ImageRecipe& recipe);

}  // namespace detent::data
