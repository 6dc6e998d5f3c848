#include "quantization/emit/hard_sigmoids.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

using onnx::Node;

// What ends at 0 and 1 in integers of 8 bits.
struct Saturating {
  int node, quantize;
  float scale;  // of the gate
  float alpha, beta;
};

const Node& node_at(const onnx::Model& model, int position) {
  return model.graph.nodes[static_cast<std::size_t>(position)];
}

const onnx::Tensor& tensor_of(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  return model.graph.initializers.at(static_cast<std::size_t>(index.initializer(name)));
}

std::optional<Saturating> saturating(const onnx::Model& model, const graph::Index& index, int position) {
  const auto& node = node_at(model, position);
  if (!node.is("HardSigmoid")) return std::nullopt;
  const int before = index.producer(node.inputs().front());
  const int after = graph::only_reader(index, node.outputs().front());
  if (before == graph::kNone || !graph::is_dequantize_linear(node_at(model, before)) || after == graph::kNone ||
      !graph::is_quantize_linear(node_at(model, after)))
    return std::nullopt;
  const auto& parameters = node_at(model, after).inputs();
  const auto& zero_point = tensor_of(model, index, parameters[2]);
  const bool is_signed = zero_point.type == onnx::DataType::int8;
  if (!is_signed && zero_point.type != onnx::DataType::uint8) return std::nullopt;
  if (onnx::to_int64s(zero_point).front() != (is_signed ? -128 : 0)) return std::nullopt;
  const float scale = graph::floats_of(tensor_of(model, index, parameters[1])).front();
  const Saturating found{position, after, scale, node.float_or("alpha", 0.2F), node.float_or("beta", 0.5F)};
  const bool ends_at_one = std::abs(255 * scale - 1) < 1e-5F;
  return ends_at_one && found.alpha > 0 && found.beta > 0 ? std::make_optional(found) : std::nullopt;
}

class Emitter {
 public:
  explicit Emitter(Emitted& emitted) : emitted_(emitted), model_(emitted.model), index_(model_) {}

  void run() {
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      if (const auto found = saturating(model_, index_, static_cast<int>(n))) make_sum(*found);
    }
    if (constants_.empty()) return;
    const std::size_t added = constants_.size();
    for (auto& node : model_.graph.nodes) constants_.push_back(std::move(node));
    model_.graph.nodes = std::move(constants_);
    for (auto& place : emitted_.provenance.nodes) {
      if (place) place = *place + added;
    }
  }

 private:
  std::string add_scale(const std::string& wanted, float scale) {
    const auto name = index_.fresh_name(wanted);
    const float values[] = {scale};
    model_.graph.initializers.push_back(onnx::make_tensor<float>(name, onnx::DataType::float32, {}, values));
    return name;
  }

  void make_sum(const Saturating& gate) {
    auto& node = model_.graph.nodes[static_cast<std::size_t>(gate.node)];
    auto& quantize = model_.graph.nodes[static_cast<std::size_t>(gate.quantize)];
    const std::string name = node.outputs().front(), zero_point = quantize.inputs()[2];
    const std::string summand = index_.fresh_name(name + "_summand"),
                      stored = index_.fresh_name(summand + "_quantized");
    const auto type = tensor_of(model_, index_, zero_point).type;
    const std::byte largest{type == onnx::DataType::int8 ? std::uint8_t{127} : std::uint8_t{255}};
    model_.graph.initializers.push_back({stored, type, {}, onnx::TensorData::owned({largest}), {}, false});
    constants_.emplace_back(
        "DequantizeLinear", index_.fresh_name(summand + "_DequantizeLinear"),
        std::vector{stored, add_scale(summand + "_scale", gate.beta / gate.alpha / 255), zero_point},
        std::vector{summand});
    quantize.set_input(1, add_scale(name + "_sum_scale", gate.scale / gate.alpha));
    node = Node("Add", node.name(), {node.inputs().front(), summand}, node.outputs());
  }

  Emitted& emitted_;
  onnx::Model& model_;
  graph::Index index_;
  std::vector<Node> constants_;  // dequantized before all others
};

}  // namespace

void emit_hard_sigmoids(Emitted& emitted) { Emitter(emitted).run(); }

}  // namespace detent::quantization
