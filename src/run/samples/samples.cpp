#include "run/samples/samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "graph/index.h"
#include "graph/rewrites/fixed_shapes.h"
#include "planning/limits.h"

namespace detent::run {

std::vector<data::InputSpec> input_specs(const onnx::Model& model) {
  const graph::Index index(model);
  std::vector<data::InputSpec> specs;
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) != graph::kNone) continue;
    if (input.type == onnx::DataType::undefined || input.type == onnx::DataType::string) {
      throw bad_input(fmt::format("model '{}': input '{}' is not a numeric tensor", model.path.string(), input.name),
                      "detent calibrates models whose inputs are numeric tensors");
    }
    data::InputSpec spec{input.name, input.type, std::nullopt};
    if (input.shape) {
      spec.shape.emplace();
      for (const auto& dim : *input.shape) spec.shape->push_back(dim.value);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<data::InputSpec> input_specs(onnx::Model model,
                                         const std::map<std::string, std::vector<std::int64_t>>& fixed) {
  if (!fixed.empty()) (void)graph::fix_input_shapes(model, fixed);
  return input_specs(model);
}

std::vector<data::InputSpec> with_dimensions_of(std::vector<data::InputSpec> inputs,
                                                const std::vector<data::InputSpec>& other) {
  for (auto& input : inputs) {
    const auto found =
        std::find_if(other.begin(), other.end(), [&](const auto& spec) { return spec.name == input.name; });
    if (found == other.end() || !found->shape) continue;
    if (!input.shape) input.shape = found->shape;
    if (input.shape->size() != found->shape->size()) continue;
    for (std::size_t d = 0; d < input.shape->size(); ++d) {
      if ((*input.shape)[d] < 0) (*input.shape)[d] = (*found->shape)[d];
    }
  }
  return inputs;
}

std::uint64_t bytes_of(std::span<const data::Array> arrays) {
  std::uint64_t bytes = 0;
  for (const auto& array : arrays) bytes += array.bytes.size();
  return bytes;
}

std::uint64_t memory_for_samples(const Resources& resources) {
  return resources.memory_budget.value_or(planning::available_memory());
}

std::unique_ptr<data::SampleSource> open_samples(const std::filesystem::path& path, SampleStream* stream,
                                                 std::vector<data::InputSpec> inputs,
                                                 const data::SourceOptions& given) {
  auto options = given;
  if (options.file_memory == 0) options.file_memory = planning::available_memory();
  if (path.empty() == (stream == nullptr))
    throw usage_error(stream == nullptr ? "there is no calibration data" : "samples are given twice",
                      "give a path or a stream of samples");
  return stream != nullptr ? data::open_samples(*stream, std::move(inputs), options)
                           : data::open_samples(path, std::move(inputs), options);
}

}  // namespace detent::run
