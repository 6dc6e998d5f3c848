#include "run/model/float_types_16_bit.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "exec/guarded_session.h"
#include "graph/bfloat16.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

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

// Whether products are in 16 bits: weights that are only stored so, or a Cast somewhere, make no such model.
bool multiplies_low(const onnx::Model& model, const graph::ValueTypes& types) {
  bool any = false;
  for (const auto& node : model.graph.nodes) {
    if (!graph::is_product(node)) continue;
    any = true;
    const auto type = graph::type_of(model, types, node.outputs()[0]);
    if (type == DataType::float16 || type == DataType::bfloat16) return true;
  }
  return !any;
}

}  // namespace

Has16BitFloats find_16_bit_floats(const onnx::Model& model) {
  return {mentions(model, DataType::float16), mentions(model, DataType::bfloat16)};
}

Has16BitFloats find_16_bit_floats(const std::filesystem::path& file) {
  auto model = onnx::read_model(file);
  graph::unfold(model);
  graph::lift_constants(model);
  return find_16_bit_floats(model);
}

graph::ValueTypes low_types(onnx::Model model, const Has16BitFloats& low, const exec::PortsOf& ports_of) {
  if (low.brain) graph::relabel_bfloat16_as_float16(model);
  return exec::infer_value_types(ports_of, model);
}

std::optional<KeptFloats> kept_floats(onnx::Model model, const QuantConfig& config, const exec::Runtime& runtime,
                                      const graph::UnfoldLimits& limits) {
  if (config.float_type != FloatType::keep) return std::nullopt;
  graph::unfold(model, limits);
  graph::lift_constants(model);
  graph::drop_initializer_inputs(model);
  graph::sort_topologically(model);
  const auto low = find_16_bit_floats(model);
  if (!low.half && !low.brain) return std::nullopt;
  const auto types = low_types(model, low, exec::guarded_ports(runtime, {.stop = limits.stop}));
  if (!multiplies_low(model, types)) return std::nullopt;
  if (low.half && low.brain)
    throw bad_input(fmt::format("model '{}' has both float16 and bfloat16", model.path.string()),
                    "say with --float 16, bf16 or 32 which type it is to have");
  KeptFloats kept{low.half ? FloatType::float16 : FloatType::bfloat16, {}};
  for (const auto& node : model.graph.nodes) {
    const auto is_high = [&](const auto& value) {
      return !value.empty() && graph::type_of(model, types, value) == DataType::float32;
    };
    if (!node.is("Cast") && std::any_of(node.outputs().begin(), node.outputs().end(), is_high))
      kept.in_float32.insert(node.id());
  }
  return kept;
}

}  // namespace detent::run
