#include "run/samples/measured_shapes.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <utility>

#include "data/tap.h"
#include "exec/sweep.h"
#include "graph/liveness.h"
#include "planning/calibration.h"

namespace detent::run {
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
