#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/bodies.h"

namespace detent::graph {
namespace {

// The tensor that a Constant node stands for; nullopt for forms without a dense tensor (sparse values, strings).
std::optional<onnx::Tensor> constant_value(const onnx::Model& model, const onnx::Node& node) {
  using onnx::DataType;
  const std::string& name = node.outputs().front();
  if (const auto* a = node.attribute("value")) {
    auto tensor = read_attribute_tensor(model, node, *a);
    if (tensor.type == DataType::string || onnx::bits_of(tensor.type) == 0) return std::nullopt;
    tensor.name = name;
    tensor.raw = {};  // the message carries another name
    return tensor;
  }
  if (const auto* a = node.attribute("value_float")) {
    const float value = a->as_float();
    return onnx::make_tensor<float>(name, DataType::float32, {}, {&value, 1});
  }
  if (const auto* a = node.attribute("value_int")) {
    const std::int64_t value = a->as_int();
    return onnx::make_tensor<std::int64_t>(name, DataType::int64, {}, {&value, 1});
  }
  if (const auto* a = node.attribute("value_floats")) {
    const auto values = a->as_floats();
    return onnx::make_tensor<float>(name, DataType::float32, {static_cast<std::int64_t>(values.size())}, values);
  }
  if (const auto* a = node.attribute("value_ints")) {
    const auto values = a->as_ints();
    return onnx::make_tensor<std::int64_t>(name, DataType::int64, {static_cast<std::int64_t>(values.size())}, values);
  }
  return std::nullopt;
}

}  // namespace

Notes lift_constants(onnx::Model& model) {
  const Index index(model);
  std::vector<onnx::Node> kept;
  kept.reserve(model.graph.nodes.size());
  for (auto& node : model.graph.nodes) {
    const bool candidate =
        node.is("Constant") && node.outputs().size() == 1 && !index.is_output(node.outputs().front());
    auto tensor = candidate ? constant_value(model, node) : std::nullopt;
    if (tensor) {
      model.graph.initializers.push_back(std::move(*tensor));
    } else {
      kept.push_back(std::move(node));
    }
  }
  const std::size_t lifted = model.graph.nodes.size() - kept.size();
  model.graph.nodes = std::move(kept);
  if (lifted == 0) return {};
  return {fmt::format("made initializers: {}", count_with_noun(lifted, "Constant node"))};
}

Notes drop_initializer_inputs(onnx::Model& model) {
  const Index index(model);
  auto& inputs = model.graph.inputs;
  const auto dropped = std::erase_if(inputs, [&](const auto& input) { return index.initializer(input.name) != kNone; });
  if (dropped == 0) return {};
  // Before IR version 4 an initializer had to be an input; without the listing the file must say at least 4.
  if (model.ir_version < 4) model.set_ir_version(4);
  return {"constants now, and no graph inputs any more: " + count_with_noun(dropped, "initializer")};
}

void drop_unused_initializers(onnx::Model& model) {
  const Index index(model);
  std::vector<onnx::Tensor> kept;
  for (auto& tensor : model.graph.initializers) {
    if (!index.consumers(tensor.name).empty() || index.is_output(tensor.name) || index.is_input(tensor.name)) {
      kept.push_back(std::move(tensor));
    }
  }
  model.graph.initializers = std::move(kept);
}

namespace {

// What an If decides by, where that is known before anything runs.
class Conditions {
 public:
  explicit Conditions(const onnx::Model& model) : model_(model) {
    for (const auto& tensor : model.graph.initializers) constants_.emplace(tensor.name, &tensor);
    for (const auto& input : model.graph.inputs) constants_.erase(input.name);  // which a caller may give
    for (const auto& node : model.graph.nodes) {
      for (const auto& output : node.outputs()) makers_.emplace(output, &node);
    }
  }

  std::optional<bool> of(const std::string& value) const {
    constexpr int kMostSteps = 16;
    bool turned = false;
    auto name = value;
    for (int step = 0; step < kMostSteps; ++step) {
      if (const auto constant = constants_.find(name); constant != constants_.end())
        return known(*constant->second, turned);
      const auto maker = makers_.find(name);
      if (maker == makers_.end()) return std::nullopt;
      const auto& node = *maker->second;
      if (node.is("Constant") && node.attribute("value") != nullptr) {
        const auto tensor = constant_value(model_, node);
        return tensor ? known(*tensor, turned) : std::nullopt;
      }
      if (!node.is("Identity") && !node.is("Not")) return std::nullopt;
      turned = turned != node.is("Not");
      name = node.inputs()[0];
    }
    return std::nullopt;
  }

 private:
  static std::optional<bool> known(const onnx::Tensor& tensor, bool turned) {
    if (tensor.type != onnx::DataType::boolean || tensor.count() != 1 || tensor.data.is_produced()) return std::nullopt;
    return (tensor.data.bytes()[0] != std::byte{0}) != turned;
  }

  const onnx::Model& model_;
  std::unordered_map<std::string, const onnx::Tensor*> constants_;
  std::unordered_map<std::string, const onnx::Node*> makers_;
};

// The node comes to be one of the graph around the If, which gives on what the branch gives.
void put_in_place(onnx::Model& model, const onnx::Node& branching, bool condition, std::vector<bool>& gone,
                  std::vector<onnx::Node>& handing) {
  auto at = onnx::inputs_before_unfolding(model, branching);
  for (const int body : branching.bodies()) {
    const auto& held = model.bodies[static_cast<std::size_t>(body - 1)];
    const bool taken = held.attribute == (condition ? "then_branch" : "else_branch");
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
      auto& node = model.graph.nodes[n];
      if (!taken && node.body() != 0 && onnx::is_inside(model, node.body(), body)) gone[n] = true;
      if (taken && node.body() == body) node.set_body(branching.body());
    }
    for (auto& other : model.bodies) {
      if (taken && other.around == body) other.around = branching.body();
    }
    for (std::size_t o = 0; taken && o < held.outputs.size() && o < branching.outputs().size(); ++o) {
      const auto& output = branching.outputs()[o];
      if (output.empty()) continue;
      handing.emplace_back("Identity", branching.id() + "/" + output, std::vector{branching.inputs()[at + o]},
                           std::vector{output});
      handing.back().set_body(branching.body());
    }
    at += held.outputs.size();
  }
}

}  // namespace

void take_constant_branches(onnx::Model& model) {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    const Conditions conditions(model);
    for (std::size_t n = 0; n < model.graph.nodes.size() && !again; ++n) {
      const auto branching = model.graph.nodes[n];
      if (!branching.is("If") || branching.bodies().size() != 2) continue;
      const auto condition = conditions.of(branching.inputs()[0]);
      if (!condition) continue;
      std::vector<bool> gone(model.graph.nodes.size());
      std::vector<onnx::Node> handing, kept;
      put_in_place(model, branching, *condition, gone, handing);
      for (std::size_t k = 0; k < model.graph.nodes.size(); ++k) {
        if (k == n) std::move(handing.begin(), handing.end(), std::back_inserter(kept));
        if (k != n && !gone[k]) kept.push_back(std::move(model.graph.nodes[k]));
      }
      model.graph.nodes = std::move(kept);
      any = again = true;
    }
  }
  if (any) drop_unused_initializers(model);
}

}  // namespace detent::graph
