// Pictures as samples of a model.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "data/picture_stream.h"
#include "detent/resources.h"
#include "detent/samples.h"

namespace detent::run {

/// A folder of pictures, and how they become inputs.
struct PictureFolder {
  std::filesystem::path folder;
  data::ImagePreset preset = data::ImagePreset::none;
  std::size_t size = 0;  // of both sides, where the model does not fix them
};

/// As many as `samples`, spread evenly over the folder (0: all), for the one input of `model`. Throws usage for a model
/// with several, and what data::open_pictures() throws.
std::unique_ptr<SampleStream> open_pictures(const PictureFolder& pictures, const std::filesystem::path& model,
                                            std::size_t samples, const Resources& resources);

}  // namespace detent::run
