#include "graph/masks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_set>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/half.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

bool moves(const onnx::Node& node) {
  static constexpr std::string_view kOthers[] = {"Expand", "Gather", "Slice", "Split", "Tile", "Trilu"};
  return has_trait(node, Trait::rearranges) ||
         (node.domain().empty() &&
          std::find(std::begin(kOthers), std::end(kOthers), node.op_type()) != std::end(kOthers));
}

// A Cast to a type of floats.
bool makes_floats(const onnx::Node& node) {
  static constexpr onnx::DataType kFloats[] = {onnx::DataType::float32, onnx::DataType::float16,
                                               onnx::DataType::bfloat16, onnx::DataType::float64};
  const auto* to = node.attribute("to");
  return node.is("Cast") && to != nullptr &&
         std::find(std::begin(kFloats), std::end(kFloats), static_cast<onnx::DataType>(to->as_int())) !=
             std::end(kFloats);
}

// 0 and 1, as far as the graph tells: what comes from a Cast, or 1 minus that.
bool is_zero_or_one(const onnx::Model& model, const Index& index, const std::string& value) {
  const int producer = index.producer(value);
  if (producer == kNone) return index.initializer(value) == kNone;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  if (node.is("Cast")) return true;
  if (moves(node)) return is_zero_or_one(model, index, node.inputs()[0]);
  return node.is("Sub") && index.initializer(node.inputs()[0]) != kNone &&
         is_zero_or_one(model, index, node.inputs()[1]);
}

// What a node that makes scores reads as such.
std::vector<std::string> parts_of(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  const auto& inputs = node.inputs();
  if (node.is("Add")) return {inputs[0], inputs[1]};
  if (node.is("Where")) return {inputs[1], inputs[2]};
  if (node.is("ScatterND") || node.is("ScatterElements")) return {inputs[0], inputs[2]};
  if (node.is("Concat") || node.is("Max")) return inputs;
  if (moves(node) || makes_floats(node)) return {inputs[0]};
  if (node.is("Mul")) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (is_zero_or_one(model, index, inputs[1 - i])) return {inputs[i]};
    }
  }
  const auto step = any_float_constant_step(model, index, node);
  if (!step || !step->multiplies) return {};
  const auto values = step->values();
  const bool is_scale = values.size() == 1 && values.front() > 0;
  return is_scale ? std::vector{step->value} : std::vector<std::string>();
}

template <class Element>
std::vector<std::byte> bytes_of(Element element) {
  const auto bytes = std::as_bytes(std::span(&element, 1));
  return {bytes.begin(), bytes.end()};
}

// kMask as an element of a type of floats; the nearest in bfloat16 is -9984.
std::vector<std::byte> mask_in(onnx::DataType type) {
  switch (type) {
    case onnx::DataType::float16: return bytes_of(onnx::to_float16(kMask));
    case onnx::DataType::bfloat16: return bytes_of(onnx::to_bfloat16(kMask));
    case onnx::DataType::float64: return bytes_of(double{kMask});
    default: return bytes_of(kMask);
  }
}

// The tensor with no element below kMask, or nothing where it has none.
std::optional<onnx::Tensor> clamped(const onnx::Tensor& tensor, const Store& store) {
  const auto values = onnx::to_doubles(tensor);
  if (std::none_of(values.begin(), values.end(), [](double v) { return v < kMask; })) return std::nullopt;
  const auto mask = mask_in(tensor.type);
  const auto given = tensor.data.bytes();
  std::vector<std::byte> bytes(given.begin(), given.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < kMask) std::copy(mask.begin(), mask.end(), bytes.data() + i * mask.size());
  }
  return onnx::Tensor{tensor.name, tensor.type, tensor.dims, store(std::move(bytes)), {}, false};
}

// A constant that scores are made of.
bool clamp_constant(onnx::Model& model, const Index& index, const std::string& name, const Store& store) {
  const auto* tensor = any_float_constant(model, index, name);
  auto changed = tensor == nullptr ? std::nullopt : clamped(*tensor, store);
  if (!changed) return false;
  model.graph.initializers[static_cast<std::size_t>(index.initializer(name))] = std::move(*changed);
  return true;
}

// The number that a value of a computed shape is filled with.
bool clamp_filling(onnx::Model& model, const Index& index, const std::string& name) {
  const int producer = index.producer(name);
  if (producer == kNone) return false;
  auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  const auto number = constant_of_shape_value(model, node);
  const auto* value = node.attribute("value");
  if (!number || value == nullptr) return false;
  const auto in_memory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };
  const auto changed = clamped(onnx::read_attribute_tensor(model, node, *value), in_memory);
  if (!changed) return false;
  node.set_attribute(onnx::Attribute::of_messages("value", onnx::Attribute::Kind::t, {onnx::encode_tensor(*changed)}));
  return true;
}

}  // namespace

std::vector<std::string> attention_scores(const onnx::Model& model, const Index& index) {
  std::unordered_set<std::string> found;
  std::vector<std::string> order;
  const auto reads_scores = [&](const onnx::Node& node, const std::string& value) {
    if (node.is("Softmax")) return true;
    const auto parts = parts_of(model, index, node);
    return std::find(parts.begin(), parts.end(), value) != parts.end() &&
           std::all_of(node.outputs().begin(), node.outputs().end(), [&](const auto& o) { return found.contains(o); });
  };
  const auto consider = [&](const std::string& value) {
    if (value.empty() || found.contains(value) || index.is_output(value) || index.is_captured(value)) return;
    const auto readers = index.consumers(value);
    const bool all = std::all_of(readers.begin(), readers.end(), [&](int reader) {
      return reads_scores(model.graph.nodes[static_cast<std::size_t>(reader)], value);
    });
    if (!all || !found.insert(value).second) return;
    order.push_back(value);
  };
  for (std::size_t n = model.graph.nodes.size(); n-- > 0;) {
    const auto& node = model.graph.nodes[n];
    if (node.is("Softmax")) {
      consider(node.inputs()[0]);
    } else if (std::any_of(node.outputs().begin(), node.outputs().end(),
                           [&](const auto& o) { return found.contains(o); })) {
      for (const auto& part : parts_of(model, index, node)) consider(part);
    }
  }
  return order;
}

Notes clamp_masks(onnx::Model& model, const Store& store) {
  const Index index(model);
  std::size_t clamped = 0;
  for (const auto& name : attention_scores(model, index)) {
    if (clamp_constant(model, index, name, store) || clamp_filling(model, index, name)) ++clamped;
  }
  if (clamped == 0) return {};
  return {fmt::format("clamped to {:.0f}, where a Softmax gives 0 as well: {} that mask{} scores", kMask,
                      count_with_noun(clamped, "constant"), clamped == 1 ? "s" : "")};
}

}  // namespace detent::graph
