#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <unordered_set>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

using Floats = std::vector<float>;

// scale, B, mean and var of BatchNormalization (inputs 1..4), one value per channel.
struct BatchNorm {
  Floats scale, shift, mean, variance;
  float epsilon = 1e-5F;
};

std::optional<BatchNorm> read_batch_norm(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  if (!node.is("BatchNormalization") || node.int_or("training_mode", 0) != 0 || node.int_or("spatial", 1) != 1)
    return std::nullopt;
  if (node.outputs().empty()) return std::nullopt;
  for (std::size_t o = 1; o < node.outputs().size(); ++o) {
    if (!node.outputs()[o].empty()) return std::nullopt;
  }
  BatchNorm bn;
  Floats* const parts[] = {&bn.scale, &bn.shift, &bn.mean, &bn.variance};
  for (std::size_t p = 0; p < 4; ++p) {
    const auto* tensor = float32_constant(model, index, node, p + 1);
    if (tensor == nullptr) return std::nullopt;
    *parts[p] = floats_of(*tensor);
    if (parts[p]->size() != bn.scale.size()) return std::nullopt;
  }
  bn.epsilon = node.float_or("epsilon", 1e-5F);
  return bn;
}

// The one Conv or ConvTranspose that feeds only this node, or kNone.
int folding_target(const onnx::Model& model, const Index& index, const onnx::Node& bn) {
  const std::string& value = bn.inputs().front();
  const int producer = index.producer(value);
  if (producer == kNone || only_reader(index, value) == kNone) return kNone;
  const auto& conv = model.graph.nodes[static_cast<std::size_t>(producer)];
  const bool transposed = conv.is("ConvTranspose") && conv.int_or("group", 1) == 1;
  return (conv.is("Conv") || transposed) && conv.inputs().size() >= 2 ? producer : kNone;
}

// Multiplies the weights of each output channel: axis 0 for Conv [M, C/g, k…], axis 1 for ConvTranspose [C, M, k…].
Floats scaled_weight(const onnx::Tensor& weight, const Floats& scale, bool transposed) {
  Floats w = floats_of(weight);
  const auto outer = transposed ? static_cast<std::size_t>(weight.dims[0]) : std::size_t{1};
  const std::size_t inner = w.size() / (outer * scale.size());
  for (std::size_t o = 0; o < outer; ++o) {
    for (std::size_t c = 0; c < scale.size(); ++c) {
      float* row = w.data() + (o * scale.size() + c) * inner;
      for (std::size_t i = 0; i < inner; ++i) row[i] *= scale[c];
    }
  }
  return w;
}

Floats scale_of(const BatchNorm& bn) {
  Floats scale = bn.scale;
  for (std::size_t c = 0; c < scale.size(); ++c) scale[c] /= std::sqrt(bn.variance[c] + bn.epsilon);
  return scale;
}

// The order of operations is ONNX Runtime's (conv_bn_fusion.cc), in float32, so that results agree bit for bit.
Floats folded_bias(const BatchNorm& bn, const Floats& scale, const onnx::Tensor* bias) {
  Floats b = bias != nullptr ? floats_of(*bias) : bn.shift;
  for (std::size_t c = 0; c < b.size(); ++c) {
    b[c] = bias != nullptr ? (b[c] - bn.mean[c]) * scale[c] + bn.shift[c] : b[c] - bn.mean[c] * scale[c];
  }
  return b;
}

bool fold(onnx::Model& model, Index& index, const BatchNorm& bn, const onnx::Node& bn_node, onnx::Node& conv,
          const Store& store) {
  const bool transposed = conv.is("ConvTranspose");
  const auto* weight = float32_constant(model, index, conv, 1);
  const bool has_bias = conv.inputs().size() > 2 && !conv.inputs()[2].empty();
  const auto* bias = has_bias ? float32_constant(model, index, conv, 2) : nullptr;
  if (weight == nullptr || (has_bias && bias == nullptr)) return false;
  const auto channels = static_cast<std::int64_t>(bn.scale.size());
  if (weight->dims.size() < 3 || weight->dims[transposed ? 1 : 0] != channels || weight->count() == 0) return false;
  if (bias != nullptr && bias->count() != channels) return false;

  const Floats scale = scale_of(bn);
  const std::string bias_source =
      bias != nullptr ? "ConvBnFusion_B_" + bias->name : "ConvBnFusion_BN_B_" + bn_node.inputs()[2];
  auto new_weight = stored_floats(index.fresh_name("ConvBnFusion_W_" + weight->name), weight->dims,
                                  scaled_weight(*weight, scale, transposed), store);
  auto new_bias = stored_floats(index.fresh_name(bias_source), {channels}, folded_bias(bn, scale, bias), store);
  conv.set_inputs({conv.inputs()[0], new_weight.name, new_bias.name});
  conv.set_output(0, bn_node.outputs().front());
  model.graph.initializers.push_back(std::move(new_weight));
  model.graph.initializers.push_back(std::move(new_bias));
  return true;
}

}  // namespace

Notes fold_batch_norm(onnx::Model& model, const Store& store) {
  Index index(model);
  std::vector<bool> removed(model.graph.nodes.size());
  std::size_t removed_count = 0;
  // A weight that two convolutions share is folded into the first only: the copy would cost what sharing saves.
  std::unordered_set<std::string> folded_weights;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto bn = read_batch_norm(model, index, model.graph.nodes[n]);
    if (!bn) continue;
    const int target = folding_target(model, index, model.graph.nodes[n]);
    if (target == kNone) continue;
    auto& conv = model.graph.nodes[static_cast<std::size_t>(target)];
    const std::string weight = conv.inputs()[1];
    if (folded_weights.contains(weight) || !fold(model, index, *bn, model.graph.nodes[n], conv, store)) continue;
    folded_weights.insert(weight);
    removed[n] = true;
    ++removed_count;
  }
  if (removed_count == 0) return {};
  remove_nodes(model, removed);
  drop_unused_initializers(model);
  return {fmt::format("folded into the convolutions before them: {}",
                      count_with_noun(removed_count, "BatchNormalization node"))};
}

Notes batch_norms_as_convolutions(onnx::Model& model, const ValueTypes& types, const Store& store) {
  constexpr std::size_t kImageRank = 4;
  Index index(model);
  std::size_t changed = 0;
  for (auto& node : model.graph.nodes) {
    const auto bn = read_batch_norm(model, index, node);
    const auto type = bn ? types.find(node.inputs().front()) : types.end();
    if (type == types.end() || !type->second.shape || type->second.shape->size() != kImageRank) continue;
    const auto channels = static_cast<std::int64_t>(bn->scale.size());
    const Floats scale = scale_of(*bn);
    auto weight = stored_floats(index.fresh_name(node.inputs()[1] + "_weight"), {channels, 1, 1, 1}, scale, store);
    auto bias = stored_floats(index.fresh_name(node.inputs()[2] + "_bias"), {channels},
                              folded_bias(*bn, scale, nullptr), store);
    const int body = node.body();
    node = onnx::Node("Conv", node.name(), {node.inputs().front(), weight.name, bias.name}, {node.outputs().front()},
                      {onnx::Attribute::of_int("group", channels), onnx::Attribute::of_ints("kernel_shape", {1, 1})});
    node.set_body(body);
    model.graph.initializers.push_back(std::move(weight));
    model.graph.initializers.push_back(std::move(bias));
    ++changed;
  }
  if (changed == 0) return {};
  drop_unused_initializers(model);
  return {fmt::format("made convolutions of one place for each channel: {}",
                      count_with_noun(changed, "BatchNormalization node"))};
}

}  // namespace detent::graph
