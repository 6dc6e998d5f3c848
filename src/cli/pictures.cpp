#include "cli/pictures.h"

#include "base/error.h"

namespace detent::cli {

std::unique_ptr<SampleStream> open_pictures(const config::CommandLine& line, run::PictureFolder pictures,
                                            const std::filesystem::path& model, bool has_data, std::size_t samples,
                                            const Resources& resources) {
  if (!line.images) {
    if (line.image_preset != data::ImagePreset::none || line.image_size != 0)
      throw usage_error("--image-preset and --set image-size go with --images", "give the folder of the pictures");
    return nullptr;
  }
  if (has_data) throw usage_error("--images and --calibration-data both give samples", "leave one of them out");
  pictures.folder = *line.images;
  pictures.preset = line.image_preset;
  pictures.size = line.image_size;
  return run::open_pictures(pictures, model, samples, resources);
}

}  // namespace detent::cli
