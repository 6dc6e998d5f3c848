// --images: samples made of pictures.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "config/option.h"
#include "detent/samples.h"
#include "run/samples/pictures.h"

namespace detent::cli {

/// The stream that --images asks for, for the one input of `model`; nullptr without. Throws usage where --images and
/// samples are both given, or for a model with several inputs.
std::unique_ptr<SampleStream> open_pictures(const config::CommandLine& line, run::PictureFolder pictures,
                                            const std::filesystem::path& model, bool has_data, std::size_t samples,
                                            const Resources& resources);

/// Has `options.samples` read them, where they are asked for. The stream must outlive the run.
template <class Options>
std::unique_ptr<SampleStream> take_pictures(const config::CommandLine& line, const std::filesystem::path& model,
                                            Options& options) {
  const std::optional<std::filesystem::path> data(options.calibration_data);
  Resources resources;
  if constexpr (requires { options.resources.memory_budget; }) resources = options.resources;
  auto pictures = open_pictures(line, run::with_inputs_of({}, options), model, data && !data->empty(),
                                options.max_samples, resources);
  if (pictures != nullptr) options.samples = pictures.get();
  return pictures;
}

}  // namespace detent::cli
