// A model that is written to be measured.
#pragma once

#include <filesystem>

#include "base/paths.h"
#include "detent/quantize.h"
#include "onnx/write.h"

namespace detent::run {

/// Writes a model there, gives back what `measure(path)` finds of it, and removes it with its data.
template <typename Measure>
auto measure_candidate(const onnx::Model& model, const std::filesystem::path& path, const QuantizeOptions& options,
                       Measure measure) {
  const auto written = onnx::write_model(model, path, {options.external_data_threshold});
  auto found = measure(path);
  paths::remove(path);
  if (!written.data_file.empty()) paths::remove(written.data_file);
  return found;
}

}  // namespace detent::run
