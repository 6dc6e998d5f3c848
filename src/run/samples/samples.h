// Calibration samples as a story opens them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
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
std::vector<data::InputSpec> with_dimensions_of(std::vector<data::InputSpec> inputs,
                                                const std::vector<data::InputSpec>& other);

std::uint64_t bytes_of(std::span<const data::Array> arrays);

/// What one file of samples may take in memory: the budget, or what there is.
std::uint64_t memory_for_samples(const Resources& resources);

/// Samples from the path or the stream, whichever is given. Throws usage unless it is exactly one. Files may not take
/// more memory than there is, if options do not say how much.
std::unique_ptr<data::SampleSource> open_samples(const std::filesystem::path& path, SampleStream* stream,
                                                 std::vector<data::InputSpec> inputs,
                                                 const data::SourceOptions& options);

/// The samples that the options of a run name, or every `shares`-th of them, beginning with the one at `share`.
template <class Options>
std::unique_ptr<data::SampleSource> open_samples(const Options& options, std::vector<data::InputSpec> inputs,
                                                 std::size_t share = 0, std::size_t shares = 1) {
  return open_samples(options.calibration_data.value_or(""), options.samples, std::move(inputs),
                      {.max_samples = options.max_samples,
                       .batch_size = options.batch_size,
                       .share = share,
                       .shares = shares,
                       .file_memory = memory_for_samples(options.resources),
                       .input_values = options.input_values});
}

}  // namespace detent::run
