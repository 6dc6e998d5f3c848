#include "cli/pictures.h"

#include "base/error.h"
#include "run/pictures.h"

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
  return run::open_pictures({*line.images, line.image_preset, line.image_size}, model, samples, resources);
}

}  // namespace detent::cli
