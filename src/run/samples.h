// Calibration samples as a story opens them.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "data/sample.h"
#include "detent/resources.h"
#include "onnx/model.h"

namespace detent::run {

/// The inputs that a caller has to feed.
std::vector<data::InputSpec> input_specs(const onnx::Model& model);

/// What one file of samples may take in memory: the budget, or what there is.
std::uint64_t memory_for_samples(const Resources& resources);

/// Samples from the path or the stream, whichever is given. Throws usage unless it is exactly one. Files may not take
/// more memory than there is, if options do not say how much.
std::unique_ptr<data::SampleSource> open_samples(const std::filesystem::path& path, SampleStream* stream,
                                                 std::vector<data::InputSpec> inputs,
                                                 const data::SourceOptions& options);

}  // namespace detent::run
