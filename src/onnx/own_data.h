// Names of the data files that detent puts beside a model, `MODEL.<16 hex digits>.data`: the digits are a fingerprint
// of what is in the file. A new model and an old one never share a data file with different contents, so the old model
// works until the new one stands in its place.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/fingerprint.h"

namespace detent::onnx {

std::string own_data_name(const std::filesystem::path& model, const Fingerprint& contents);

/// Whether own_data_name() may have given `name` to a data file of this model.
bool is_own_data_name(const std::filesystem::path& model, std::string_view name);

/// The data files beside the model at `path` that it refers to and that own_data_name() named; none where the path
/// leads to no model. Opens no data file.
std::set<std::filesystem::path> own_data_files(const std::filesystem::path& path);

}  // namespace detent::onnx
