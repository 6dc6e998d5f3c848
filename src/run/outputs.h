// Checks of the files that a run will write, made before anything else.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "onnx/model.h"

namespace detent::run {

/// Throws usage when writing `output` (or the data file beside it) would overwrite a file that the model is read from,
/// or when its directory cannot be written.
void check_output(const std::filesystem::path& output, const onnx::Model& model);

/// Throws usage when two of the files that a run will write are one, or one of them is a calibration sample or `read`.
void check_apart(const std::vector<std::filesystem::path>& written, const std::optional<std::filesystem::path>& samples,
                 const std::optional<std::filesystem::path>& read = {});

}  // namespace detent::run
