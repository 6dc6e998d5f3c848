#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/bytes.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

// A product whose weight is a constant of its own.
struct Layer {
  const onnx::Tensor* weight;
  const onnx::Tensor* bias;  // null: none
  bool takes_bias;
  std::size_t axis;      // of the weight, along the output channels
  std::size_t channels;  // of the output
  std::size_t behind;    // axes of the output behind that of its channels
  std::size_t rank;      // of the output
};

// scale * product + shift, for each output channel.
struct Affine {
  std::vector<double> scale, shift;
  bool scales = false, shifts = false;

  bool is_finite() const {
    for (std::size_t c = 0; c < scale.size(); ++c) {
      if (!std::isfinite(scale[c]) || !std::isfinite(shift[c])) return false;
    }
    return true;
  }
};

class Folding {
 public:
  Folding(onnx::Model& model, const ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model), removed_(model.graph.nodes.size()) {}

  std::size_t run() {
    std::size_t folded = 0;
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto layer = layer_of(model_.graph.nodes[n]);
      if (layer) folded += fold(model_.graph.nodes[n], *layer);
    }
    if (folded > 0) remove_nodes(model_, removed_);
    return folded;
  }

 private:
  std::optional<Layer> layer_of(const onnx::Node& node) const {
    if (!is_product(node)) return std::nullopt;
    const auto* weight = float32_constant(model_, index_, node, kWeightInput);
    if (weight == nullptr || only_reader(index_, weight->name) == kNone || weight->count() == 0) return std::nullopt;
    const auto axis = channel_axis(node, weight->dims.size());
    if (!axis || (node.is("ConvTranspose") && node.int_or("group", 1) != 1)) return std::nullopt;
    const bool is_convolution = has_trait(node, Trait::convolution);
    const auto rank = is_convolution ? weight->dims.size() : rank_of(types_, node.outputs().front());
    if (!rank || *rank < 2) return std::nullopt;
    const auto channels = weight->dims[*axis];
    const bool has_bias = node.inputs().size() > 2 && !node.inputs()[2].empty();
    const auto* bias = has_bias ? float32_constant(model_, index_, node, 2) : nullptr;
    // A MatMul of two matrices is a Gemm without a bias.
    bool takes_bias = !node.is("MatMul") || *rank == 2;
    if (node.is("Gemm") && node.float_or("beta", 1) != 1) takes_bias = false;
    if (has_bias && (bias == nullptr || bias->count() != channels || bias->dims.size() != 1)) return std::nullopt;
    return Layer{weight, bias, takes_bias, *axis, static_cast<std::size_t>(channels), is_convolution ? *rank - 2 : 0,
                 *rank};
  }

  // What the step does to each channel; empty: to other parts of the output than its channels.
  static std::vector<double> by_channel(const ConstantStep& step, const Layer& layer) {
    if (const auto scalar = scalar_of(step, layer.rank)) return std::vector<double>(layer.channels, *scalar);
    const auto& dims = step.constant->dims;
    const bool fits = dims.size() <= layer.rank && dims.size() > layer.behind &&
                      step.constant->count() == static_cast<std::int64_t>(layer.channels) &&
                      dims[dims.size() - 1 - layer.behind] == static_cast<std::int64_t>(layer.channels);
    return fits ? step.values() : std::vector<double>();
  }

  std::size_t fold(onnx::Node& node, const Layer& layer) {
    Affine all{std::vector<double>(layer.channels, 1), std::vector<double>(layer.channels)};
    std::size_t folded = 0;
    std::string value = node.outputs().front();
    for (int next = only_reader(index_, value); next != kNone; next = only_reader(index_, value)) {
      const auto& reader = model_.graph.nodes[static_cast<std::size_t>(next)];
      const auto step = float32_constant_step(model_, index_, reader);
      if (!step || (!step->multiplies && !layer.takes_bias)) break;
      const auto values = by_channel(*step, layer);
      if (values.empty()) break;
      Affine longer = all;
      add(longer, values, step->multiplies);
      if (!longer.is_finite()) break;
      all = std::move(longer);
      removed_[static_cast<std::size_t>(next)] = true;
      value = reader.outputs().front();
      ++folded;
    }
    if (folded == 0) return 0;
    rewrite(node, layer, all);
    node.set_output(0, value);
    return folded;
  }

  static void add(Affine& affine, const std::vector<double>& values, bool multiplies) {
    (multiplies ? affine.scales : affine.shifts) = true;
    for (std::size_t c = 0; c < values.size(); ++c) {
      if (multiplies) affine.scale[c] *= values[c];
      affine.shift[c] = multiplies ? affine.shift[c] * values[c] : affine.shift[c] + values[c];
    }
  }

  void rewrite(onnx::Node& node, const Layer& layer, const Affine& affine) {
    auto inputs = node.inputs();
    std::vector<onnx::Tensor> made;
    if (affine.scales) {
      const std::vector<float> factors(affine.scale.begin(), affine.scale.end());
      made.push_back(stored_floats(index_.fresh_name(layer.weight->name + "_scaled"), layer.weight->dims,
                                   scaled_along(*layer.weight, layer.axis, factors), store_));
      inputs[kWeightInput] = made.back().name;
    }
    if (affine.shifts || layer.bias != nullptr) {
      std::vector<float> bias = layer.bias != nullptr ? floats_of(*layer.bias) : std::vector<float>(layer.channels);
      for (std::size_t c = 0; c < bias.size(); ++c)
        bias[c] = static_cast<float>(affine.scale[c] * static_cast<double>(bias[c]) + affine.shift[c]);
      made.push_back(
          stored_floats(index_.fresh_name((layer.bias != nullptr ? layer.bias : layer.weight)->name + "_bias"),
                        {static_cast<std::int64_t>(layer.channels)}, bias, store_));
      inputs.resize(2);
      inputs.push_back(made.back().name);
      if (node.is("MatMul")) node.set_op_type("Gemm");
    }
    node.set_inputs(std::move(inputs));
    for (auto& tensor : made) model_.graph.initializers.push_back(std::move(tensor));
  }

  onnx::Model& model_;
  const ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::vector<bool> removed_;
};

}  // namespace

Notes fold_after_products(onnx::Model& model, const ValueTypes& types, const Store& store) {
  const std::size_t folded = Folding(model, types, store).run();
  if (folded == 0) return {};
  drop_unused_initializers(model);
  return {"folded into the products before them: " + count_with_noun(folded, "node") +
          " (multiplications and additions of constants)"};
}

}  // namespace detent::graph
