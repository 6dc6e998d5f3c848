// Calibration samples as a story opens them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/resources.h"
#include "onnx/model.h"

namespace detent::run {

/// The inputs that a caller has to feed.
std::vector<data::InputSpec> input_specs(const onnx::Model& model);
/// With the shapes that inputs get for good. Throws usage as graph::fix_input_shapes().
std::vector<data::InputSpec> input_specs(onnx::Model model,
                                         const std::map<std::string, std::vector<std::int64_t>>& fixed);
/// Inputs of one model whose free dimensions are as long as those of the other: samples that both can read.
std::vector<data::InputSpec> narrowed(std::vector<data::InputSpec> inputs, const std::vector<data::InputSpec>& other);

/// What one file of samples may take in memory: the budget, or what there is.
std::uint64_t memory_for_samples(const Resources& resources);

/// Samples from the path or the stream, whichever is given. Throws usage unless it is exactly one. Files may not take
/// more memory than there is, if options do not say how much.
std::unique_ptr<data::SampleSource> open_samples(const std::filesystem::path& path, SampleStream* stream,
                                                 std::vector<data::InputSpec> inputs,
                                                 const data::SourceOptions& options);

}  // namespace detent::run
