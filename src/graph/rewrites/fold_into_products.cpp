#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

using Floats = std::vector<float>;

// scale, B, mean and var of BatchNormalization (inputs 1..4), one value per channel.
struct BatchNorm {
  Floats scale, shift, mean, variance;
  float epsilon = 1e-5F;
};

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

class BatchNormFolder : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes fold_all() {
    std::size_t count = 0;
    // A weight that two convolutions share is folded into the first only: the copy would cost what sharing saves.
    std::unordered_set<std::string> folded_weights;
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      const auto bn = read(node);
      const int target = bn ? folding_target(node) : kNone;
      if (target == kNone) continue;
      const std::string weight = node_at(target).inputs()[1];
      if (folded_weights.contains(weight) || !fold(*bn, node, node_at(target))) continue;
      folded_weights.insert(weight);
      removed_[n] = true;
      ++count;
    }
    return finish(count, fmt::format("folded into the convolutions before them: {}",
                                     count_with_noun(count, "BatchNormalization node")));
  }

  Notes as_convolutions() {
    constexpr std::size_t kImageRank = 4;
    std::size_t changed = 0;
    for (auto& node : model_.graph.nodes) {
      const auto bn = read(node);
      if (!bn || rank_of(types_, node.inputs().front()) != kImageRank) continue;
      const auto channels = static_cast<std::int64_t>(bn->scale.size());
      const Floats scale = scale_of(*bn);
      const auto weight = add(node.inputs()[1] + "_weight", {channels, 1, 1, 1}, scale);
      const auto bias = add(node.inputs()[2] + "_bias", {channels}, folded_bias(*bn, scale, nullptr));
      exchange(node, "Conv", {node.inputs().front(), weight, bias},
               {onnx::Attribute::of_int("group", channels), onnx::Attribute::of_ints("kernel_shape", {1, 1})});
      ++changed;
    }
    return finish(changed, fmt::format("made convolutions of one place for each channel: {}",
                                       count_with_noun(changed, "BatchNormalization node")));
  }

 private:
  std::optional<BatchNorm> read(const onnx::Node& node) const {
    const auto is_named = [](const std::string& output) { return !output.empty(); };
    if (!node.is("BatchNormalization") || node.int_or("training_mode", 0) != 0 || node.int_or("spatial", 1) != 1 ||
        node.outputs().empty() || std::any_of(node.outputs().begin() + 1, node.outputs().end(), is_named))
      return std::nullopt;
    BatchNorm bn;
    Floats* const parts[] = {&bn.scale, &bn.shift, &bn.mean, &bn.variance};
    for (std::size_t p = 0; p < 4; ++p) {
      const auto* tensor = floats(node, p + 1);
      if (tensor == nullptr) return std::nullopt;
      *parts[p] = floats_of(*tensor);
      if (parts[p]->size() != bn.scale.size()) return std::nullopt;
    }
    bn.epsilon = node.float_or("epsilon", 1e-5F);
    return bn;
  }

  // The one Conv or ConvTranspose that feeds only this node, or kNone.
  int folding_target(const onnx::Node& bn) const {
    const int producer = index_.producer(bn.inputs().front());
    if (producer == kNone || only_reader(bn.inputs().front()) == kNone) return kNone;
    const auto& conv = node_at(producer);
    const bool transposed = conv.is("ConvTranspose") && conv.int_or("group", 1) == 1;
    return (conv.is("Conv") || transposed) && conv.inputs().size() >= 2 ? producer : kNone;
  }

  bool fold(const BatchNorm& bn, const onnx::Node& bn_node, onnx::Node& conv) {
    const bool transposed = conv.is("ConvTranspose");
    const auto* weight = floats(conv, 1);
    const bool has_bias = conv.inputs().size() > 2 && !conv.inputs()[2].empty();
    const auto* bias = has_bias ? floats(conv, 2) : nullptr;
    if (weight == nullptr || (has_bias && bias == nullptr)) return false;
    const auto channels = static_cast<std::int64_t>(bn.scale.size());
    if (weight->dims.size() < 3 || weight->dims[transposed ? 1 : 0] != channels || weight->count() == 0) return false;
    if (bias != nullptr && bias->count() != channels) return false;

    const Floats scale = scale_of(bn);
    const std::string bias_source =
        bias != nullptr ? "ConvBnFusion_B_" + bias->name : "ConvBnFusion_BN_B_" + bn_node.inputs()[2];
    const auto new_weight =
        add("ConvBnFusion_W_" + weight->name, weight->dims, scaled_weight(*weight, scale, transposed));
    const auto new_bias = add(bias_source, {channels}, folded_bias(bn, scale, bias));
    conv.set_inputs({conv.inputs()[0], new_weight, new_bias});
    conv.set_output(0, bn_node.outputs().front());
    return true;
  }
};

// Each takes away the steps next to a product: of (x + a) * b first the product with b, then the sum.
constexpr int kPasses = 3;

class FoldingBefore : Rewriter {
 public:
  FoldingBefore(onnx::Model& model, ValueTypes& types, const Store& store)
      : Rewriter(model, types, store), made_types_(types) {}

  std::size_t run() {
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto step = step_at(static_cast<int>(n));
      if (step) step->multiplies ? fold_factor(n, *step) : fold_sum(n, *step);
    }
    const auto count = static_cast<std::size_t>(std::count(removed_.begin(), removed_.end(), true));
    finish(count, {});
    return count;
  }

 private:
  std::optional<ScalarStep> step_at(int node) const {
    if (node == kNone) return std::nullopt;
    const auto step = scalar_step(model_, index_, types_, node_at(node));
    if (!step || !std::isfinite(step->number) || (step->multiplies && step->number == 0)) return std::nullopt;
    return step;
  }

  // Empty: not all readers of the value are products of it with constants that nobody else reads.
  std::vector<int> products_of(const std::string& value) const {
    const auto readers = index_.consumers(value);
    const auto is_layer = [&](int reader) {
      const auto& node = node_at(reader);
      if (!is_product(node) || node.inputs().front() != value) return false;
      const auto* weight = floats(node, kWeightInput);
      return weight != nullptr && only_reader(weight->name) != kNone;
    };
    if (index_.is_output(value) || index_.is_captured(value) || !std::all_of(readers.begin(), readers.end(), is_layer))
      return {};
    return {readers.begin(), readers.end()};
  }

  // A sum with a constant is a part of the bias where every output element sums over the whole weight. The mean that a
  // model takes from its input stays: without it, what is rounded of the weights would be multiplied by more.
  bool takes_sum(int product, const std::string& value) const {
    const auto& node = node_at(product);
    if (index_.is_input(value)) return false;
    const bool is_gemm = node.is("Gemm") && node.int_or("transA", 0) == 0 && node.float_or("alpha", 1) == 1 &&
                         node.float_or("beta", 1) == 1;
    if (!is_gemm && !(node.is("Conv") && is_unpadded(node))) return false;
    if (node.inputs().size() < 3 || node.inputs()[2].empty()) return true;
    const auto* bias = floats(node, 2);
    return bias != nullptr && bias->dims == std::vector{channels_of(node)};
  }

  static bool is_unpadded(const onnx::Node& conv) {
    const auto* mode = conv.attribute("auto_pad");
    if (mode != nullptr && mode->as_string() != "NOTSET") return mode->as_string() == "VALID";
    const auto* pads = conv.attribute("pads");
    if (pads == nullptr) return true;
    const auto all = pads->as_ints();
    return std::all_of(all.begin(), all.end(), [](auto p) { return p == 0; });
  }

  std::int64_t channels_of(const onnx::Node& product) const {
    const auto& dims = floats(product, kWeightInput)->dims;
    return dims[channel_axis(product, dims.size()).value()];
  }

  bool all_take_sum(const std::vector<int>& products, const std::string& value) const {
    return !products.empty() &&
           std::all_of(products.begin(), products.end(), [&](int p) { return takes_sum(p, value); });
  }

  void fold_sum(std::size_t n, const ScalarStep& sum) {
    const auto products = products_of(model_.graph.nodes[n].outputs().front());
    if (!all_take_sum(products, sum.value)) return;
    for (const int product : products) fold_into(product, sum.value, 1, sum.number);
    removed_[n] = true;
  }

  void fold_factor(std::size_t n, const ScalarStep& factor) {
    const std::string& scaled = model_.graph.nodes[n].outputs().front();
    const std::string& value = factor.value;
    const auto direct = products_of(scaled);
    for (const int product : direct) fold_into(product, value, factor.number, 0);
    removed_[n] = !direct.empty();
    if (!direct.empty()) return;

    const int next = only_reader(scaled);
    const auto sum = step_at(next);
    if (!sum || sum->multiplies) return;
    const auto products = products_of(node_at(next).outputs().front());
    if (products.empty()) return;
    removed_[n] = true;
    if (all_take_sum(products, value)) {
      removed_[static_cast<std::size_t>(next)] = true;
      for (const int product : products) fold_into(product, value, factor.number, sum->number);
    } else {
      const auto name = unscaled_sum(next, value, sum->number / factor.number);
      for (const int product : products) fold_into(product, name, factor.number, 0);
    }
  }

  // value * factor + sum is (value + sum / factor) * factor.
  std::string unscaled_sum(int node, const std::string& value, double number) {
    auto& sum = node_at(node);
    const std::string before = sum.outputs().front();
    const auto summand = add(before + "_summand", {}, {static_cast<float>(number)});
    const std::string after = fresh(before + "_unscaled");
    made_types_[after] = ValueType(types_.at(before));
    sum = onnx::Node("Add", sum.name(), {value, summand}, {after});
    return after;
  }

  // The product reads `value` instead of value * factor + sum.
  void fold_into(int product, const std::string& value, double factor, double sum) {
    auto& node = node_at(product);
    const auto& weight = *floats(node, kWeightInput);
    auto inputs = node.inputs();
    inputs[0] = value;
    if (sum != 0) {
      inputs.resize(2);
      inputs.push_back(shifted_bias(node, weight, sum));
    }
    if (factor != 1)
      inputs[kWeightInput] =
          add(weight.name + "_scaled", weight.dims, scaled_along(weight, 0, {static_cast<float>(factor)}));
    node.set_inputs(std::move(inputs));
  }

  std::string shifted_bias(const onnx::Node& node, const onnx::Tensor& weight, double sum) {
    const auto axis = channel_axis(node, weight.dims.size()).value();
    const auto channels = static_cast<std::size_t>(weight.dims[axis]);
    const auto inner =
        static_cast<std::size_t>(std::accumulate(weight.dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                                                 weight.dims.end(), std::int64_t{1}, std::multiplies<>()));
    std::vector<double> sums(channels);
    const auto values = floats_of(weight);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i / inner % channels] += static_cast<double>(values[i]);
    const auto* bias = floats(node, 2);
    std::vector<float> result = bias != nullptr ? floats_of(*bias) : std::vector<float>(channels);
    for (std::size_t c = 0; c < channels; ++c)
      result[c] = static_cast<float>(static_cast<double>(result[c]) + sum * sums[c]);
    return add((bias != nullptr ? bias : &weight)->name + "_bias", {static_cast<std::int64_t>(channels)}, result);
  }

  ValueTypes& made_types_;
};

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

class FoldingAfter : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    std::size_t folded = 0;
    for (std::size_t n = 0; n < removed_.size(); ++n) {
      const auto layer = layer_of(model_.graph.nodes[n]);
      if (layer) folded += fold(model_.graph.nodes[n], *layer);
    }
    return finish(folded, "folded into the layers before them: " + count_with_noun(folded, "node") +
                              " (multiplications and additions of constants)");
  }

 private:
  std::optional<Layer> layer_of(const onnx::Node& node) const {
    if (!is_product(node)) return std::nullopt;
    const auto* weight = floats(node, kWeightInput);
    if (weight == nullptr || only_reader(weight->name) == kNone || weight->count() == 0) return std::nullopt;
    const auto axis = channel_axis(node, weight->dims.size());
    if (!axis || (node.is("ConvTranspose") && node.int_or("group", 1) != 1)) return std::nullopt;
    const bool is_convolution = has_trait(node, Trait::convolution);
    const auto rank = is_convolution ? weight->dims.size() : rank_of(types_, node.outputs().front());
    if (!rank || *rank < 2) return std::nullopt;
    const auto channels = weight->dims[*axis];
    const bool has_bias = node.inputs().size() > 2 && !node.inputs()[2].empty();
    const auto* bias = has_bias ? floats(node, 2) : nullptr;
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
    for (int next = only_reader(value); next != kNone; next = only_reader(value)) {
      const auto& reader = node_at(next);
      const auto step = float32_constant_step(model_, index_, reader);
      if (!step || (!step->multiplies && !layer.takes_bias)) break;
      const auto values = by_channel(*step, layer);
      if (values.empty()) break;
      Affine longer = all;
      extend(longer, values, step->multiplies);
      if (!longer.is_finite()) break;
      all = std::move(longer);
      remove(next);
      value = reader.outputs().front();
      ++folded;
    }
    if (folded == 0) return 0;
    rewrite(node, layer, all);
    node.set_output(0, value);
    return folded;
  }

  static void extend(Affine& affine, const std::vector<double>& values, bool multiplies) {
    (multiplies ? affine.scales : affine.shifts) = true;
    for (std::size_t c = 0; c < values.size(); ++c) {
      if (multiplies) affine.scale[c] *= values[c];
      affine.shift[c] = multiplies ? affine.shift[c] * values[c] : affine.shift[c] + values[c];
    }
  }

  void rewrite(onnx::Node& node, const Layer& layer, const Affine& affine) {
    auto inputs = node.inputs();
    if (affine.scales) {
      const std::vector<float> factors(affine.scale.begin(), affine.scale.end());
      inputs[kWeightInput] =
          add(layer.weight->name + "_scaled", layer.weight->dims, scaled_along(*layer.weight, layer.axis, factors));
    }
    if (affine.shifts || layer.bias != nullptr) {
      std::vector<float> bias = layer.bias != nullptr ? floats_of(*layer.bias) : std::vector<float>(layer.channels);
      for (std::size_t c = 0; c < bias.size(); ++c)
        bias[c] = static_cast<float>(affine.scale[c] * static_cast<double>(bias[c]) + affine.shift[c]);
      inputs.resize(2);
      inputs.push_back(add((layer.bias != nullptr ? layer.bias : layer.weight)->name + "_bias",
                           {static_cast<std::int64_t>(layer.channels)}, bias));
      if (node.is("MatMul")) node.set_op_type("Gemm");
    }
    node.set_inputs(std::move(inputs));
  }
};

void give(onnx::Node& node, std::string_view name, const std::vector<std::int64_t>& values) {
  if (node.attribute(name) == nullptr) node.set_attribute(onnx::Attribute::of_ints(name, values));
}

std::vector<float> inverses(const std::vector<float>& factors) {
  std::vector<float> result(factors.size());
  std::transform(factors.begin(), factors.end(), result.begin(), [](float f) { return 1.0F / f; });
  return result;
}

// What a normalization multiplies its result by, and adds to it.
std::vector<std::string> gains_of(const Index& index, const onnx::Node& node, const std::string& value) {
  const auto& inputs = node.inputs();
  if (node.outputs()[0] != value || inputs.size() < 2) return {};
  if (node.is("Mul")) return {inputs[index.initializer(inputs[0]) == kNone ? 1 : 0]};
  const auto& norm = operator_of(node).norm;
  const bool joins_with_beta = norm.bias != 0 && norm.beta != 0;
  if (norm.gain == 0 || norm.gain >= inputs.size() || joins_with_beta) return {};
  const bool has_beta = norm.beta != 0 && norm.beta < inputs.size() && !inputs[norm.beta].empty();
  return has_beta ? std::vector{inputs[norm.gain], inputs[norm.beta]} : std::vector{inputs[norm.gain]};
}

class Scaler : Rewriter {
 public:
  Scaler(onnx::Model& model, ValueTypes& types, const Store& store)
      : Rewriter(model, types, store), made_types_(types) {}

  // The name of the scaled value.
  std::string scale(const ChannelScaling& scaling) {
    for (const auto& reader : scaling.readers) multiply(reader.weight, reader.axis, scaling.factors);
    const std::string name = fresh(scaling.value + "_equalized");
    if (const auto found = types_.find(scaling.value); found != types_.end())
      made_types_[name] = ValueType(found->second);
    if (scaling.maker) {
      divide_by_maker(scaling, name);
    } else if (const auto gains = absorbing(scaling); !gains.empty()) {
      for (const auto& gain : gains) multiply(gain, 0, inverses(scaling.factors));
      rename(scaling.value, name);
      made_types_.erase(scaling.value);
    } else {
      int first = scaling.readers.front().node;
      for (const auto& reader : scaling.readers) first = std::min(first, reader.node);
      insert_mul(first, scaling, scaling.value, inverses(scaling.factors), name);
    }
    for (const auto& reader : scaling.readers) node_at(reader.node).set_input(0, name);
    return name;
  }

  void finish() {
    std::vector<onnx::Node> nodes;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      for (auto& node : before_[static_cast<int>(n)]) nodes.push_back(std::move(node));
      nodes.push_back(std::move(model_.graph.nodes[n]));
    }
    for (auto& node : before_[static_cast<int>(model_.graph.nodes.size())]) nodes.push_back(std::move(node));
    model_.graph.nodes = std::move(nodes);
  }

 private:
  // The constants that can take the factors in: of a normalization whose result and whose constants nobody else reads.
  std::vector<std::string> absorbing(const ChannelScaling& scaling) const {
    const int producer = index_.producer(scaling.value);
    if (producer == kNone || !scaling.last_axis || index_.consumers(scaling.value).size() != scaling.readers.size() ||
        index_.is_output(scaling.value) || index_.is_captured(scaling.value))
      return {};
    const auto is_free = [&](const std::string& name) {
      const auto* tensor = float32_constant(model_, index_, name);
      return tensor != nullptr && index_.consumers(name).size() == 1 && tensor->dims.size() == 1 &&
             tensor->count() == static_cast<std::int64_t>(scaling.factors.size());
    };
    auto gains = gains_of(index_, node_at(producer), scaling.value);
    return std::ranges::all_of(gains, is_free) ? gains : std::vector<std::string>();
  }

  // [channels], or [channels, 1, …] behind the batch of a convolution's input.
  std::vector<std::int64_t> shape_for(const ChannelScaling& scaling) const {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(scaling.factors.size())};
    const auto* weight = constant(scaling.maker ? scaling.maker->weight : scaling.readers.front().weight);
    if (!scaling.last_axis) shape.insert(shape.end(), weight->dims.size() - 2, 1);
    return shape;
  }

  void multiply(const std::string& name, std::size_t axis, const std::vector<float>& factors) {
    auto& tensor = model_.graph.initializers.at(static_cast<std::size_t>(index_.initializer(name)));
    tensor = stored_floats(tensor.name, tensor.dims, scaled_along(tensor, axis, factors), store_);
  }

  void rename(const std::string& value, const std::string& name) {
    auto& node = node_at(index_.producer(value));
    for (std::size_t i = 0; i < node.outputs().size(); ++i) {
      if (node.outputs()[i] == value) node.set_output(i, name);
    }
  }

  void divide_by_maker(const ChannelScaling& scaling, const std::string& name) {
    const auto divisors = inverses(scaling.factors);
    multiply(scaling.maker->weight, 0, divisors);
    if (!scaling.maker->bias.empty()) multiply(scaling.maker->bias, 0, divisors);
    const int producer = index_.producer(scaling.value);
    rename(scaling.value, name);
    const bool has_others = index_.consumers(scaling.value).size() > scaling.readers.size();
    if (has_others || index_.is_output(scaling.value) || index_.is_captured(scaling.value)) {
      insert_mul(producer + 1, scaling, name, scaling.factors, scaling.value);
    } else {
      made_types_.erase(scaling.value);
    }
  }

  void insert_mul(int position, const ChannelScaling& scaling, const std::string& from,
                  const std::vector<float>& factors, const std::string& to) {
    const auto constant = fresh(scaling.value + "_equalize_factor");
    model_.graph.initializers.push_back(
        onnx::make_tensor<float>(constant, onnx::DataType::float32, shape_for(scaling), std::span(factors)));
    before_[position].emplace_back("Mul", fresh(scaling.value + "_Equalize"), std::vector{from, constant},
                                   std::vector{to});
  }

  ValueTypes& made_types_;
  std::map<int, std::vector<onnx::Node>> before_;  // by the node that they come before
};

}  // namespace

Notes fold_batch_norm(onnx::Model& model, const Store& store) { return BatchNormFolder(model, {}, store).fold_all(); }

Notes batch_norms_as_convolutions(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return BatchNormFolder(model, types, store).as_convolutions();
}

Notes fold_before_products(onnx::Model& model, ValueTypes& types, const Store& store) {
  std::size_t folded = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::size_t more = FoldingBefore(model, types, store).run();
    folded += more;
    if (more == 0) break;
  }
  if (folded == 0) return {};
  return {"folded into the layers after them: " + count_with_noun(folded, "node") +
          " (multiplications and additions of constants)"};
}

Notes fold_after_products(onnx::Model& model, const ValueTypes& types, const Store& store) {
  return FoldingAfter(model, types, store).run();
}

void complete_convolutions(onnx::Model& model) {
  const Index index(model);
  for (auto& node : model.graph.nodes) {
    const bool pools = node.is("MaxPool") || node.is("AveragePool");
    if (!pools && !has_trait(node, Trait::convolution)) continue;
    if (!pools && node.attribute("kernel_shape") == nullptr) {
      const int weight = node.inputs().size() > kWeightInput ? index.initializer(node.inputs()[kWeightInput]) : kNone;
      if (weight == kNone) continue;
      const auto& dims = model.graph.initializers[static_cast<std::size_t>(weight)].dims;
      if (dims.size() < 3) continue;
      give(node, "kernel_shape", {dims.begin() + 2, dims.end()});
    }
    const auto* kernel = node.attribute("kernel_shape");
    if (kernel == nullptr) continue;
    const std::size_t rank = kernel->as_ints().size();
    give(node, "strides", std::vector<std::int64_t>(rank, 1));
    const auto* automatic = node.attribute("auto_pad");
    if (automatic == nullptr || automatic->as_string() == "NOTSET")
      give(node, "pads", std::vector<std::int64_t>(2 * rank, 0));
    if (!node.is("AveragePool")) give(node, "dilations", std::vector<std::int64_t>(rank, 1));
    if (!pools && node.attribute("group") == nullptr) node.set_attribute(onnx::Attribute::of_int("group", 1));
  }
}

std::vector<float> scaled_along(const onnx::Tensor& weight, std::size_t axis, const std::vector<float>& factors) {
  std::vector<float> values(static_cast<std::size_t>(weight.count()));
  std::size_t inner = 1;
  for (std::size_t d = axis + 1; d < weight.dims.size(); ++d) inner *= static_cast<std::size_t>(weight.dims[d]);
  onnx::for_each_float(weight.data, [&](std::span<const float> piece, std::int64_t first) {
    const auto at = static_cast<std::size_t>(first);
    for (std::size_t i = 0; i < piece.size(); ++i)
      values[at + i] = piece[i] * factors[(at + i) / inner % factors.size()];
  });
  return values;
}

std::vector<std::string> scale_channels(onnx::Model& model, ValueTypes& types,
                                        const std::vector<ChannelScaling>& scalings, const Store& store) {
  Scaler scaler(model, types, store);
  std::vector<std::string> scaled;
  for (const auto& scaling : scalings) scaled.push_back(scaler.scale(scaling));
  scaler.finish();
  return scaled;
}

}  // namespace detent::graph
