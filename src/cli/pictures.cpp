#include "cli/pictures.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/picture_stream.h"
#include "onnx/model.h"
#include "run/samples.h"

namespace detent::cli {

std::unique_ptr<SampleStream> open_pictures(const config::CommandLine& line, const std::filesystem::path& model,
                                            const std::optional<std::filesystem::path>& data, std::size_t samples,
                                            const Resources& resources) {
  if (!line.images) {
    if (line.image_preset != data::ImagePreset::none || line.image_size != 0)
      throw usage_error("--image-preset and --set image-size go with --images", "give the folder of the pictures");
    return nullptr;
  }
  if (data) throw usage_error("--images and --calibration-data both give samples", "leave one of them out");
  const auto inputs = run::input_specs(onnx::read_model(model));
  if (inputs.size() != 1)
    throw usage_error(fmt::format("--images: the model has {} inputs", inputs.size()),
                      "write .npz files with all of them, and give --calibration-data");
  return data::open_pictures(*line.images, inputs.front(),
                             {.preset = line.image_preset,
                              .size = line.image_size,
                              .samples = samples,
                              .memory = run::memory_for_samples(resources) / 2});
}

}  // namespace detent::cli
