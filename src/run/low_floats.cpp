#include "run/low_floats.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "graph/bfloat16.h"
#include "graph/index.h"
#include "graph/rewrite.h"
#include "run/model_folder.h"

namespace detent::run {
namespace {

using onnx::DataType;

// Where a type comes into a graph.
bool mentions(const onnx::Model& model, DataType type) {
  const auto is = [type](const auto& each) { return each.type == type; };
  const auto names_it = [type](const onnx::Attribute& a) {
    return a.kind() == onnx::Attribute::Kind::i && (a.name() == "to" || a.name() == "dtype") &&
           a.as_int() == static_cast<std::int64_t>(type);
  };
  const auto& graph = model.graph;
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), is) ||
         std::any_of(graph.initializers.begin(), graph.initializers.end(), is) ||
         std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
           return std::any_of(node.attributes().begin(), node.attributes().end(), names_it);
         });
}

}  // namespace

std::optional<FloatType> low_type(const onnx::Model& model, const std::string& cure) {
  const bool half = mentions(model, DataType::float16), brain = mentions(model, DataType::bfloat16);
  if (half && brain)
    throw bad_input(fmt::format("model '{}' has both float16 and bfloat16", model.path.string()), cure);
  if (half) return FloatType::float16;
  return brain ? std::optional(FloatType::bfloat16) : std::nullopt;
}

graph::ValueTypes low_types(onnx::Model model, FloatType type, const exec::Runtime& runtime) {
  if (type == FloatType::bfloat16) graph::call_bfloat16_float16(model);
  return exec::probe_values(runtime, model);
}

std::optional<KeptFloats> kept_floats(const std::filesystem::path& path, const QuantConfig& config,
                                      const std::optional<std::filesystem::path>& runtime) {
  if (config.float_type != FloatType::keep) return std::nullopt;
  auto model = onnx::read_model(model_file(path));
  graph::unfold(model);
  graph::lift_constants(model);
  graph::drop_initializer_inputs(model);
  graph::sort_topologically(model);
  const auto type = low_type(model, "say with --float 16, bf16 or 32 which type it is to have");
  if (!type) return std::nullopt;
  KeptFloats kept{*type, {}};
  const auto types = low_types(model, *type, exec::Runtime(runtime));
  for (const auto& node : model.graph.nodes) {
    const auto is_high = [&](const auto& value) {
      return !value.empty() && graph::type_of(model, types, value) == DataType::float32;
    };
    if (!node.is("Cast") && std::any_of(node.outputs().begin(), node.outputs().end(), is_high))
      kept.in_float32.push_back(node.id());
  }
  return kept;
}

}  // namespace detent::run
