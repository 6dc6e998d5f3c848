// Pictures as samples of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/formats/picture_stream.h"
#include "detent/resources.h"
#include "detent/samples.h"

namespace detent::run {

/// A folder of pictures, and how they become inputs.
struct PictureFolder {
  std::filesystem::path folder;
  data::ImagePreset preset = data::ImagePreset::none;
  std::size_t size = 0;                        // of both sides, where the model does not fix them
  std::vector<std::string> input_values = {};  // other inputs of the model: "sr=16000"
  std::map<std::string, std::vector<std::int64_t>> input_shapes = {};  // that inputs get for good
};

/// What a run says of the inputs of its model.
template <class Options>
PictureFolder with_inputs_of(PictureFolder pictures, const Options& options) {
  pictures.input_values = options.input_values;
  if constexpr (requires { options.config.input_shapes; }) pictures.input_shapes = options.config.input_shapes;
  if constexpr (requires { options.input_shapes; }) pictures.input_shapes = options.input_shapes;
  return pictures;
}

/// As many as `samples`, spread evenly over the folder (0: all), for the one input of `model`. Throws usage for a model
/// with several beside those of input_values, and what data::open_pictures() throws.
std::unique_ptr<SampleStream> open_pictures(const PictureFolder& pictures, const std::filesystem::path& model,
                                            std::size_t samples, const Resources& resources);

}  // namespace detent::run
