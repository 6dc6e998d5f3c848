#include "solve/sweep/tuned_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "quantization/placement/selection.h"

namespace detent::solve {
namespace {

template <class T>
std::vector<T> values_of(const onnx::Tensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::size_t at = 0;
  tensor.data.write_to([&](std::span<const std::byte> piece) {
    std::memcpy(reinterpret_cast<std::byte*>(values.data()) + at, piece.data(), piece.size());
    at += piece.size();
  });
  return values;
}

std::optional<std::size_t> initializer(const graph::Index& index, const std::string& name) {
  const int found = index.initializer(name);
  return found == graph::kNone ? std::nullopt : std::make_optional(static_cast<std::size_t>(found));
}

WeightLayout layout_of(const onnx::Node& node) {
  return graph::channel_axis(node, 2) == 0U ? WeightLayout::outputs_first : WeightLayout::inputs_first;
}

std::size_t position_of(const graph::Index& index, const std::string& name) {
  return static_cast<std::size_t>(index.initializer(name));
}

bool is_padded_automatically(const onnx::Node& node) {
  const auto* attribute = node.attribute("auto_pad");
  return attribute != nullptr && attribute->as_string() != "NOTSET";
}

// Why a product in this form is not tuned; empty: it is.
std::string reason_against_form(const onnx::Node& node) {
  if (node.is("Gemm") && (node.int_or("transA", 0) != 0 || node.float_or("alpha", 1) != 1))
    return "transA or alpha is set";
  if (node.is("ConvTranspose") && (node.attribute("output_shape") != nullptr || is_padded_automatically(node)))
    return "its padding is given by output_shape or auto_pad";
  return {};
}

void check_names(const onnx::Model& float_model, const FinetuneConfig& config) {
  for (const auto& type : config.op_types) {
    if (!graph::is_product(onnx::Node(type, "", {}, {})))
      throw usage_error(fmt::format("--set finetune-op-types: '{}' cannot be tuned", type),
                        "choose from: Conv, ConvTranspose, Gemm, MatMul");
  }
  for (const auto& text : config.nodes) {
    const quantization::NamePattern pattern(text);
    const auto& nodes = float_model.graph.nodes;
    if (std::none_of(nodes.begin(), nodes.end(), [&](const auto& node) { return pattern.matches(node.id()); }))
      throw usage_error(fmt::format("--set finetune-nodes: no node matches '{}'", text),
                        "names are listed by: detent inspect MODEL");
  }
}

class Finder {
 public:
  Finder(const onnx::Model& float_model, const quantization::Emitted& quantized, const FinetuneConfig& config)
      : float_(float_model),
        quantized_(quantized.model),
        provenance_(quantized.provenance),
        config_(config),
        float_index_(float_model),
        quantized_index_(quantized.model),
        inside_float_(graph::cuts_inside_bodies(float_model)),
        inside_quantized_(graph::cuts_inside_bodies(quantized.model)) {}

  FoundLayers run() {
    check_names(float_, config_);
    for (std::size_t n = 0; n < float_.graph.nodes.size(); ++n) {
      const auto& node = float_.graph.nodes[n];
      if (!graph::is_product(node) || !provenance_.nodes[n]) continue;
      if (auto layer = find(n, node)) found_.layers.push_back(std::move(*layer));
    }
    return std::move(found_);
  }

 private:
  std::optional<TunedLayer> find(std::size_t position, const onnx::Node& float_node) {
    const auto stored = provenance_.values.find(float_node.inputs()[1]);
    if (stored == provenance_.values.end() || !is_selected(float_node, config_)) return std::nullopt;
    const auto weight = initializer(float_index_, float_node.inputs()[1]);
    if (!weight) return std::nullopt;  // a product of two activations
    const auto& node = quantized_.graph.nodes[*provenance_.nodes[position]];
    TunedLayer layer;
    layer.name = float_node.id();
    layer.op_type = node.op_type();
    layer.float_node = static_cast<int>(position);
    layer.quantized_node = static_cast<int>(*provenance_.nodes[position]);
    layer.input = node.inputs()[0];
    layer.float_input = float_node.inputs()[0];
    layer.target = float_node.outputs()[0];
    layer.float_weight = *weight;
    layer.stored_weight = position_of(quantized_index_, stored->second.stored);
    layer.stored_scale = position_of(quantized_index_, stored->second.scale);
    layer.stored_zero = position_of(quantized_index_, stored->second.zero_point);
    layer.layout = layout_of(node);
    layer.paired = stored->second.paired;
    layer.in_body =
        float_node.body() != 0 || inside_float_[position + 1] || inside_quantized_[*provenance_.nodes[position]];
    std::string why = why_not(float_node, layer);
    if (why.empty() && !find_bias(position, float_node, layer))
      why = "its bias is computed, or not one value for each output";
    if (!why.empty()) {
      found_.notes.push_back(fmt::format("{}: not fine-tuned: {}", float_node.label(), why));
      return std::nullopt;
    }
    return layer;
  }

  std::string why_not(const onnx::Node& node, const TunedLayer& layer) const {
    const auto& weight = float_.graph.initializers[layer.float_weight];
    if (float_index_.consumers(weight.name).size() > 1) return "its weight has several consumers";
    if (has_shared_scale(weight.name)) return "its weight is stored once for several nodes";
    if (weight.type != onnx::DataType::float32) return "its weight is not float32";
    if (node.is("MatMul") && weight.dims.size() != 2) return "its weight is not a matrix";
    return reason_against_form(node);
  }

  bool has_shared_scale(const std::string& weight) const {
    const auto& values = provenance_.values;
    return std::count_if(values.begin(), values.end(),
                         [&](const auto& value) { return value.second.scale == values.at(weight).scale; }) > 1;
  }

  bool find_bias(std::size_t position, const onnx::Node& float_node, TunedLayer& layer) const {
    if (float_node.is("MatMul") || float_node.inputs().size() < 3 || float_node.inputs()[2].empty()) return true;
    layer.float_bias = initializer(float_index_, float_node.inputs()[2]);
    if (!layer.float_bias) return false;
    if (float_node.is("Gemm")) {
      layer.bias_factor = float_node.float_or("beta", 1);
      const auto outputs = layer.layout == WeightLayout::outputs_first ? 0U : 1U;
      const auto& dims = float_.graph.initializers[layer.float_weight].dims;
      if (float_.graph.initializers[*layer.float_bias].count() != dims[outputs]) return false;
    }
    const auto& read = quantized_.graph.nodes[static_cast<std::size_t>(layer.quantized_node)].inputs()[2];
    if (quantized_index_.consumers(read).size() > 1) return true;  // shared: it stays as it is
    if (const auto stored = provenance_.biases.find(position); stored != provenance_.biases.end()) {
      layer.stored_bias = position_of(quantized_index_, stored->second.stored);
      layer.bias_scale = position_of(quantized_index_, stored->second.scale);
    } else if (layer.bias_factor == 0) {
      layer.float_bias.reset();  // a beta of 0 leaves the bias out, whatever it is
    } else {
      layer.stored_bias = initializer(quantized_index_, read);
    }
    return true;
  }

  const onnx::Model& float_;
  const onnx::Model& quantized_;
  const quantization::Provenance& provenance_;
  const FinetuneConfig& config_;
  graph::Index float_index_;
  graph::Index quantized_index_;
  std::vector<bool> inside_float_, inside_quantized_;  // cuts that part a body
  FoundLayers found_;
};

// Pads that keep the output at ceil(input / stride), as ONNX's SAME_UPPER and SAME_LOWER do.
void pad_same(LayerGeometry& geometry, const std::vector<std::int64_t>& input_shape, bool upper) {
  for (std::size_t a = 0; a < geometry.kernel.size(); ++a) {
    const std::int64_t in = input_shape.at(a + 2);
    const std::int64_t out = (in + geometry.strides[a] - 1) / geometry.strides[a];
    const std::int64_t reach = (geometry.kernel[a] - 1) * geometry.dilations[a] + 1;
    const std::int64_t all = std::max<std::int64_t>((out - 1) * geometry.strides[a] + reach - in, 0);
    geometry.pads_begin[a] = upper ? all / 2 : all - all / 2;
    geometry.pads_end[a] = all - geometry.pads_begin[a];
  }
}

std::vector<std::int64_t> ints_or(const onnx::Node& node, const char* name, std::vector<std::int64_t> fallback) {
  const auto* attribute = node.attribute(name);
  return attribute == nullptr ? std::move(fallback) : attribute->as_ints();
}

template <class Int>
std::vector<std::byte> narrowed(const std::vector<std::int32_t>& integers) {
  std::vector<std::byte> bytes(integers.size() * sizeof(Int));
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const auto value = static_cast<Int>(integers[i]);
    std::memcpy(bytes.data() + i * sizeof(Int), &value, sizeof(Int));
  }
  return bytes;
}

}  // namespace

FoundLayers find_layers(const onnx::Model& float_model, const quantization::Emitted& quantized,
                        const FinetuneConfig& config) {
  return Finder(float_model, quantized, config).run();
}

std::vector<TunedLayer> linear_layers(const onnx::Model& float_model) {
  const graph::Index index(float_model);
  std::vector<TunedLayer> layers;
  for (std::size_t n = 0; n < float_model.graph.nodes.size(); ++n) {
    const auto& node = float_model.graph.nodes[n];
    if (!graph::is_product(node) || node.inputs().size() < 2 || !reason_against_form(node).empty()) continue;
    const auto weight = initializer(index, node.inputs()[1]);
    if (!weight) continue;
    const auto& tensor = float_model.graph.initializers[*weight];
    const std::size_t rank = tensor.dims.size();
    if (tensor.type != onnx::DataType::float32 || (graph::is_matrix_product(node) ? rank != 2 : rank < 3)) continue;
    TunedLayer layer;
    layer.name = node.id();
    layer.op_type = node.op_type();
    layer.float_node = static_cast<int>(n);
    layer.float_input = node.inputs()[0];
    layer.target = node.outputs()[0];
    layer.float_weight = *weight;
    layer.layout = layout_of(node);
    layers.push_back(std::move(layer));
  }
  return layers;
}

bool is_selected(const onnx::Node& node, const FinetuneConfig& config) {
  const auto& types = config.op_types;
  if (!types.empty() && std::find(types.begin(), types.end(), node.op_type()) == types.end()) return false;
  return config.nodes.empty() || std::any_of(config.nodes.begin(), config.nodes.end(), [&](const auto& text) {
           return quantization::NamePattern(text).matches(node.id());
         });
}

LayerGeometry geometry_of(const onnx::Model& float_model, const TunedLayer& layer,
                          const std::vector<std::int64_t>& input_shape) {
  const auto& node = float_model.graph.nodes[static_cast<std::size_t>(layer.float_node)];
  const auto& dims = float_model.graph.initializers[layer.float_weight].dims;
  LayerGeometry geometry;
  if (graph::is_matrix_product(node)) {
    const bool outputs_first = layer.layout == WeightLayout::outputs_first;
    geometry.outputs = dims[outputs_first ? 0 : 1];
    geometry.inputs = dims[outputs_first ? 1 : 0];
    return geometry;
  }
  const bool transposed = node.is("ConvTranspose");
  geometry.kind = transposed ? LayerKind::transposed : LayerKind::convolution;
  geometry.groups = node.int_or("group", 1);
  geometry.inputs = transposed ? dims[0] : dims[1] * geometry.groups;
  geometry.outputs = transposed ? dims[1] * geometry.groups : dims[0];
  geometry.kernel.assign(dims.begin() + 2, dims.end());
  const std::size_t axes = geometry.kernel.size();
  geometry.strides = ints_or(node, "strides", std::vector<std::int64_t>(axes, 1));
  geometry.dilations = ints_or(node, "dilations", std::vector<std::int64_t>(axes, 1));
  const auto pads = ints_or(node, "pads", std::vector<std::int64_t>(2 * axes, 0));
  if (geometry.strides.size() != axes || geometry.dilations.size() != axes || pads.size() != 2 * axes ||
      input_shape.size() != axes + 2) {
    throw bad_input(fmt::format("{}: attributes and shapes do not agree", node.label()));
  }
  geometry.pads_begin.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(axes));
  geometry.pads_end.assign(pads.begin() + static_cast<std::ptrdiff_t>(axes), pads.end());
  if (transposed) geometry.output_padding = ints_or(node, "output_padding", std::vector<std::int64_t>(axes, 0));
  const auto* automatic = node.attribute("auto_pad");
  const std::string mode = automatic == nullptr ? "NOTSET" : automatic->as_string();
  if (mode == "SAME_UPPER" || mode == "SAME_LOWER") pad_same(geometry, input_shape, mode == "SAME_UPPER");
  return geometry;
}

std::vector<std::byte> stored_integers(const onnx::Model& quantized, const TunedLayer& layer) {
  return values_of<std::byte>(quantized.graph.initializers[layer.stored_weight]);
}

QuantizedWeights weights_of(const onnx::Model& float_model, const onnx::Model& quantized, const TunedLayer& layer,
                            const LayerGeometry& geometry) {
  const auto& stored = quantized.graph.initializers[layer.stored_weight];
  QuantizedWeights weights;
  weights.rows = static_cast<std::size_t>(geometry.outputs);
  weights.fan_in = static_cast<std::size_t>(geometry.fan_in());
  weights.values =
      to_matrix(geometry, layer.layout, values_of<float>(float_model.graph.initializers[layer.float_weight]));
  const auto scales = values_of<float>(quantized.graph.initializers[layer.stored_scale]);
  const auto zeros = onnx::to_int64s(quantized.graph.initializers[layer.stored_zero]);
  // One for each output channel, of a group where a transposed convolution has several; or one for all.
  const std::size_t repeats = std::max<std::size_t>(scales.size(), 1);
  weights.scale_rows = repeats;
  if (repeats == 1) weights.granularity = quantization::Granularity::tensor();
  for (std::size_t row = 0; row < weights.rows; ++row) {
    weights.scale.push_back(scales[row % repeats]);
    weights.zero.push_back(static_cast<std::int32_t>(zeros[row % repeats]));
  }
  const bool is_signed = stored.type == onnx::DataType::int8 || stored.type == onnx::DataType::int16 ||
                         stored.type == onnx::DataType::int4;
  if (layer.paired) weights.pairs = layer.paired->pairs();
  const int bits = onnx::bits_of(stored.type);
  weights.lowest = is_signed ? -(1 << (bits - 1)) : 0;
  weights.highest = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  return weights;
}

std::vector<float> bias_of(const onnx::Model& float_model, const TunedLayer& layer) {
  if (!layer.float_bias) return {};
  auto bias = values_of<float>(float_model.graph.initializers[*layer.float_bias]);
  for (float& b : bias) b *= layer.bias_factor;
  return bias;
}

std::vector<std::byte> stored_integers(const onnx::Model& quantized, const TunedLayer& layer,
                                       const LayerGeometry& geometry, const std::vector<std::int32_t>& integers) {
  const auto ordered = from_matrix(geometry, layer.layout, integers);
  const int bits = onnx::bits_of(quantized.graph.initializers[layer.stored_weight].type);
  if (bits == 4) return onnx::packed_nibbles<std::int32_t>(ordered);
  return bits == 16 ? narrowed<std::int16_t>(ordered) : narrowed<std::int8_t>(ordered);
}

std::vector<std::byte> stored_bias(const onnx::Model& quantized, const TunedLayer& layer,
                                   const std::vector<float>& bias) {
  if (!layer.bias_scale) {
    std::vector<float> values = bias;
    for (float& b : values) b /= layer.bias_factor;
    const auto bytes = std::as_bytes(std::span<const float>(values));
    return {bytes.begin(), bytes.end()};
  }
  const auto scales = values_of<float>(quantized.graph.initializers[*layer.bias_scale]);
  std::vector<std::int32_t> integers;
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const double q = std::nearbyint(static_cast<double>(bias[i]) / static_cast<double>(scales[i % scales.size()]));
    integers.push_back(static_cast<std::int32_t>(
        std::clamp<double>(q, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max())));
  }
  return narrowed<std::int32_t>(integers);
}

void replace_bias(onnx::Model& quantized, const TunedLayer& layer, onnx::TensorData data) {
  auto& bias = quantized.graph.initializers[*layer.stored_bias];
  // Without the message that a float bias was read from: it would be written as it was.
  bias = {bias.name, bias.type, bias.dims, std::move(data), {}, false};
}

std::uint64_t gram_bytes(const onnx::Model& float_model, const TunedLayer& layer) {
  const auto& node = float_model.graph.nodes[static_cast<std::size_t>(layer.float_node)];
  const auto& weight = float_model.graph.initializers[layer.float_weight];
  const auto groups = static_cast<std::uint64_t>(std::max<std::int64_t>(node.int_or("group", 1), 1));
  const bool outputs_first = layer.layout == WeightLayout::outputs_first;
  const auto outputs = static_cast<std::uint64_t>(weight.dims[outputs_first ? 0 : 1]) * (outputs_first ? 1 : groups);
  const std::uint64_t fan_in = static_cast<std::uint64_t>(weight.count()) / std::max<std::uint64_t>(outputs, 1);
  return groups * fan_in * fan_in * sizeof(float);
}

std::vector<Stage> stages_of(const std::vector<TunedLayer>& layers, const onnx::Model& float_model,
                             const onnx::Model& quantized, std::uint64_t together) {
  const graph::Index index(quantized);
  std::vector<Stage> stages;
  int first = 0;  // quantized node of the stage's first layer
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::uint64_t more = gram_bytes(float_model, layers[i]);
    const bool joins = !stages.empty() && stages.back().in_body == layers[i].in_body &&
                       index.producer(layers[i].input) < first &&
                       layers[i].quantized_node > layers[i - 1].quantized_node && bytes + more <= together;
    if (!joins) {
      const std::size_t segment = stages.empty() ? 0 : stages.back().segment + (stages.back().in_body ? 0 : 1);
      stages.push_back({{}, layers[i].in_body, segment});
      first = layers[i].quantized_node;
      bytes = 0;
    }
    bytes += more;
    stages.back().layers.push_back(i);
  }
  return stages;
}

std::vector<int> float_ends(const std::vector<TunedLayer>& layers, const std::vector<Stage>& stages) {
  std::vector<int> ends;
  for (const auto& stage : stages) {
    if (!stage.in_body) ends.push_back(layers[stage.layers.back()].float_node + 1);
  }
  return ends;
}

std::vector<int> quantized_ends(const std::vector<TunedLayer>& layers, const std::vector<Stage>& stages) {
  std::vector<int> ends;
  for (const auto& stage : stages) {
    if (!stage.in_body) ends.push_back(layers[stage.layers.front()].quantized_node);
  }
  return ends;
}

}  // namespace detent::solve
