#include "run/samples/pictures.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/given_values.h"
#include "onnx/model.h"
#include "run/samples/samples.h"

namespace detent::run {

std::unique_ptr<SampleStream> open_pictures(const PictureFolder& pictures, const std::filesystem::path& model,
                                            std::size_t samples, const Resources& resources) {
  const auto inputs = data::without_given(input_specs(onnx::read_model(model), pictures.input_shapes),
                                          data::parse_given_values(pictures.input_values));
  if (inputs.size() != 1)
    throw usage_error(
        fmt::format("--images: the model has {} inputs", inputs.size()),
        "give those that are one number by --input NAME=NUMBER, or write .npz files with all of them and give "
        "--calibration-data");
  return data::open_pictures(pictures.folder, inputs.front(),
                             {.preset = pictures.preset,
                              .size = pictures.size,
                              .samples = samples,
                              .memory = memory_for_samples(resources) / 2});
}

}  // namespace detent::run
