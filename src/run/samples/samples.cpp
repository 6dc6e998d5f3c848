#include "run/samples/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "data/given_inputs.h"
#include "exec/sweep.h"
#include "graph/execution.h"
#include "graph/rewrites/unfold.h"
#include "planning/memory.h"

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

std::unique_ptr<data::SampleSource> open_samples(const Options& options, std::vector<data::InputSpec> inputs,
                                                 std::size_t share, std::size_t shares) {
  return open_samples(options.calibration_data.value_or(""), options.samples, std::move(inputs),
                      {.max_samples = options.max_samples,
                       .batch_size = options.batch_size,
                       .share = share,
                       .shares = shares,
                       .file_memory = memory_for_samples(options.resources),
                       .input_values = options.input_values});
}

std::unique_ptr<data::SampleSource> open_first(const Options& options, std::vector<data::InputSpec> inputs,
                                               std::size_t most) {
  auto first = options;
  first.max_samples = options.max_samples > 0 ? std::min(most, options.max_samples) : most;
  return open_samples(first, std::move(inputs));
}

PictureFolder with_inputs_of(PictureFolder pictures, const Options& options) {
  pictures.input_values = options.input_values;
  pictures.input_shapes = options.config.input_shapes;
  return pictures;
}

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

namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void set_shape(graph::ValueTypes& types, const std::string& value, const Shape& shape) {
  auto& dims = types.at(value).shape.emplace();
  for (const auto d : shape) dims.push_back({d, graph::kMeasured});
}

class LargestShapes : public data::TapReceiver {
 public:
  explicit LargestShapes(std::size_t values) : shapes_(values, Shape{0}) {}

  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    Shape shape(tensor.shape.begin(), tensor.shape.end());
    if (elements(shape) >= elements(shapes_[tap])) shapes_[tap] = std::move(shape);
  }
  const Shape& shape(std::size_t tap) const { return shapes_[tap]; }

 private:
  std::vector<Shape> shapes_;
};

}  // namespace

std::vector<std::string> values_of_unknown_shape(const onnx::Model& model, const graph::ValueTypes& types) {
  std::vector<std::string> values;
  for (const auto& node : model.graph.nodes) {
    for (const auto& name : node.outputs()) {
      const auto found = types.find(name);
      if (name.empty() || found == types.end() || found->second.type == onnx::DataType::undefined ||
          found->second.type == onnx::DataType::string)
        continue;
      if (!graph::static_shape(types, name)) values.push_back(name);
    }
  }
  return values;
}

void set_empty(graph::ValueTypes& types, const std::vector<std::string>& values) {
  for (const auto& value : values) set_shape(types, value, {0});
}

void measure_shapes(const Context& context, const onnx::Model& model, data::SampleSource& source,
                    const std::vector<std::string>& values, graph::ValueTypes& types) {
  const auto where = fmt::format("model '{}'", model.path.string());
  exec::BranchOptions options;
  options.session = {planning::session_mode_for(model), context.threads, context.stop};
  options.taps = values;
  exec::Branch branch(context.runtime, model, types, {}, nullptr, std::move(options));
  auto stage = branch.load(0, where);
  LargestShapes shapes(values.size());
  source.rewind();
  if (const auto sample = source.next())
    stage.run(0, sample->inputs, fmt::format("{}, sample '{}'", where, sample->origin), &shapes);
  source.rewind();
  for (std::size_t t = 0; t < stage.taps().size(); ++t) set_shape(types, stage.taps()[t], shapes.shape(t));
}

}  // namespace detent::run
