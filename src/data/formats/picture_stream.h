// A folder of pictures as samples of a model with one input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/samples.h"

namespace detent::data {

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
