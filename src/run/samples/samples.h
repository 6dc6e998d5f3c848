// The samples of a run: where they come from, and what inputs they are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/pictures.h"
#include "data/sample.h"
#include "detent/options.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "run/context.h"

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
std::unique_ptr<data::SampleSource> open_samples(const Options& options, std::vector<data::InputSpec> inputs,
                                                 std::size_t share = 0, std::size_t shares = 1);
/// The first of them, at most so many.
std::unique_ptr<data::SampleSource> open_first(const Options& options, std::vector<data::InputSpec> inputs,
                                               std::size_t most);

/// A folder of pictures, and how they become inputs.
struct PictureFolder {
  std::filesystem::path folder;
  data::ImagePreset preset = data::ImagePreset::none;
  std::size_t size = 0;                        // of both sides, where the model does not fix them
  std::vector<std::string> input_values = {};  // other inputs of the model: "sr=16000"
  std::map<std::string, std::vector<std::int64_t>> input_shapes = {};  // that inputs get for good
};

/// What a run says of the inputs of its model.
PictureFolder with_inputs_of(PictureFolder pictures, const Options& options);

/// As many as `samples`, spread evenly over the folder (0: all), for the one input of `model`. Throws usage for a model
/// with several beside those of input_values, and what data::open_pictures() throws.
std::unique_ptr<SampleStream> open_pictures(const PictureFolder& pictures, const std::filesystem::path& model,
                                            std::size_t samples, const Resources& resources);

/// Tensors that nodes make and whose shapes `types` do not tell.
std::vector<std::string> values_of_unknown_shape(const onnx::Model& model, const graph::ValueTypes& types);

/// Gives `values` the shape of no element.
void set_empty(graph::ValueTypes& types, const std::vector<std::string>& values);

/// Runs the first sample in one piece and gives `values` the shapes that they have in it: the largest, where a value is
/// made several times; that of no element, where it is not made. The source is rewound.
void measure_shapes(const Context& context, const onnx::Model& model, data::SampleSource& source,
                    const std::vector<std::string>& values, graph::ValueTypes& types);

}  // namespace detent::run
