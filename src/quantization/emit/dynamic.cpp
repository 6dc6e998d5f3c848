#include "quantization/emit/dynamic.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "quantization/placement/selection.h"
#include "quantization/weights.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;
using onnx::Tensor;
using onnx::TensorData;

constexpr const char* kMicrosoftDomain = "com.microsoft";

// Each of the matrices [rows, columns] that follow one another in the data, transposed when it is written.
TensorData transposed(const TensorData& bytes, std::size_t rows, std::size_t columns) {
  return TensorData::produced(bytes.size(), [bytes, rows, columns](const onnx::Sink& sink) {
    std::vector<std::byte> in, out(rows * columns);
    bytes.write_to([&](std::span<const std::byte> piece) {
      in.insert(in.end(), piece.begin(), piece.end());
      std::size_t at = 0;
      for (; in.size() - at >= out.size(); at += out.size()) {
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t c = 0; c < columns; ++c) out[c * rows + r] = in[at + r * columns + c];
        }
        sink(out);
      }
      in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at));
    });
  });
}

class Emitter {
 public:
  Emitter(onnx::Model model, const DynamicPlacement& placement, const AssignedValues& weights)
      : model_(std::move(model)), placement_(placement), weights_(weights), index_(model_) {}

  onnx::Model run() {
    std::vector<Node> nodes;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      auto& node = model_.graph.nodes[n];
      if (!std::binary_search(placement_.nodes.begin(), placement_.nodes.end(), n) || !has_weights(node)) {
        nodes.push_back(std::move(node));
      } else {
        emit(node, nodes);
      }
    }
    model_.graph.nodes = std::move(nodes);
    for (auto& tensor : new_tensors_) model_.graph.initializers.push_back(std::move(tensor));
    graph::drop_unused_initializers(model_);
    return std::move(model_);
  }

 private:
  // In the body that the node is in; integers of an activation are where it is made, for all that read them.
  void emit(const Node& node, std::vector<Node>& nodes) {
    const auto first = nodes.size();
    if (node.is("Gather")) {
      look_up(node, nodes);
    } else if (node.is("LSTM")) {
      recurrent(node, nodes);
    } else {
      product(node, nodes);
    }
    for (auto n = first; n < nodes.size(); ++n) {
      if (!nodes[n].is("DynamicQuantizeLinear")) nodes[n].set_body(node.body());
    }
  }

  struct Stored {
    std::string integers, scale, zero_point;
  };

  bool has_weights(const Node& node) const {
    const auto inputs = weight_inputs(node);
    return std::all_of(inputs.begin(), inputs.end(), [&](auto i) { return weights_.contains(node.inputs()[i]); });
  }

  const Tensor& weight(const std::string& name) const {
    return model_.graph.initializers[static_cast<std::size_t>(index_.initializer(name))];
  }

  // With scales of these dimensions, and zero points as many, or one where all are equal. The last two dimensions of
  // the integers change places where asked for.
  Stored store(const std::string& name, const std::vector<std::int64_t>& scale_dims, bool transpose,
               bool one_zero_point = false) {
    const auto [found, is_new] = stored_.try_emplace({name, scale_dims, transpose});
    if (!is_new) return found->second;
    const auto& values = weights_.at(name);
    Stored names{index_.fresh_name(name + "_quantized"), index_.fresh_name(name + "_scale"),
                 index_.fresh_name(name + "_zero_point")};
    auto tensor = quantized_weight(weight(name), names.integers, {{values.type}, values.granularity}, values.slices);
    if (transpose) {
      const auto rank = tensor.dims.size();
      tensor.data = transposed(tensor.data, static_cast<std::size_t>(tensor.dims[rank - 2]),
                               static_cast<std::size_t>(tensor.dims[rank - 1]));
      std::swap(tensor.dims[rank - 2], tensor.dims[rank - 1]);
    }
    new_tensors_.push_back(std::move(tensor));
    std::vector<float> scales;
    std::vector<std::int8_t> zeros;
    for (const auto& slice : values.slices) {
      scales.push_back(slice.scale);
      zeros.push_back(static_cast<std::int8_t>(slice.zero_point));
    }
    new_tensors_.push_back(onnx::make_tensor<float>(names.scale, DataType::float32, scale_dims, scales));
    if (one_zero_point) zeros.resize(1);
    new_tensors_.push_back({names.zero_point,
                            data_type(values.type),
                            one_zero_point ? std::vector<std::int64_t>{} : scale_dims,
                            TensorData::of<std::int8_t>(zeros),
                            {},
                            false});
    return found->second = std::move(names);
  }

  // Integers, scale and zero point of an activation.
  const Stored& quantize(const std::string& value, std::vector<Node>& nodes) {
    const auto [found, is_new] = activations_.try_emplace(value);
    if (is_new) {
      found->second = {index_.fresh_name(value + "_quantized"), index_.fresh_name(value + "_scale"),
                       index_.fresh_name(value + "_zero_point")};
      const auto& [integers, scale, zero_point] = found->second;
      nodes.emplace_back("DynamicQuantizeLinear", index_.fresh_name(value + "_QuantizeLinear"), std::vector{value},
                         std::vector{integers, scale, zero_point});
    }
    return found->second;
  }

  void product(const Node& node, std::vector<Node>& nodes) {
    const auto& name = node.inputs()[1];
    const bool filter = node.is("Conv");
    const auto slices = static_cast<std::int64_t>(weights_.at(name).slices.size());
    std::vector<std::int64_t> scale_dims;
    if (!weights_.at(name).granularity.is_tensor()) scale_dims = {slices};
    // A filter's outputs are its result's second axis.
    if (filter && !scale_dims.empty()) scale_dims.insert(scale_dims.end(), weight(name).dims.size() - 2, 1);
    const auto stored = store(name, scale_dims, node.int_or("transB", 0) != 0, filter);  // ConvInteger has one
    const auto read = quantize(node.inputs()[0], nodes);
    const auto& output = node.outputs()[0];
    const auto sums = index_.fresh_name(output + "_sums"), floats = index_.fresh_name(output + "_sums_cast");
    const auto scale = index_.fresh_name(output + "_scales");
    nodes.emplace_back(filter ? "ConvInteger" : "MatMulInteger", node.name(),
                       std::vector{read.integers, stored.integers, read.zero_point, stored.zero_point},
                       std::vector{sums}, filter ? node.attributes() : std::vector<Attribute>{});
    nodes.emplace_back("Cast", index_.fresh_name(node.id() + "_Cast"), std::vector{sums}, std::vector{floats},
                       std::vector{Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    nodes.emplace_back("Mul", index_.fresh_name(node.id() + "_Scales"), std::vector{read.scale, stored.scale},
                       std::vector{scale});
    const bool has_bias = node.inputs().size() > 2 && !node.inputs()[2].empty();
    const auto value = has_bias ? index_.fresh_name(output + "_without_bias") : output;
    nodes.emplace_back("Mul", index_.fresh_name(node.id() + "_Mul"), std::vector{floats, scale}, std::vector{value});
    if (!has_bias) return;
    const auto bias = filter ? spread_bias(node.inputs()[2], weight(name).dims.size(), nodes) : node.inputs()[2];
    nodes.emplace_back("Add", index_.fresh_name(node.id() + "_Add"), std::vector{value, bias}, std::vector{output});
  }

  // The bias of a convolution with the axes of its result: [1, outputs, 1, 1].
  std::string spread_bias(const std::string& bias, std::size_t rank, std::vector<Node>& nodes) {
    std::vector<std::int64_t> dims(rank, 1);
    dims[1] = -1;
    const auto shape = index_.fresh_name(bias + "_shape"), spread = index_.fresh_name(bias + "_spread");
    new_tensors_.push_back(onnx::make_tensor<std::int64_t>(shape, DataType::int64, {std::ssize(dims)}, dims));
    nodes.emplace_back("Reshape", index_.fresh_name(bias + "_Reshape"), std::vector{bias, shape}, std::vector{spread});
    return spread;
  }

  // DynamicQuantizeLSTM has its weights as [directions, inputs, 4 * hidden], LSTM as [directions, 4 * hidden, inputs].
  void recurrent(const Node& node, std::vector<Node>& nodes) {
    auto inputs = node.inputs();
    inputs.resize(8);
    std::vector<std::string> parameters;
    for (const auto input : weight_inputs(node)) {
      const auto& name = node.inputs()[input];
      const auto directions = weight(name).dims.front();
      const auto slices = static_cast<std::int64_t>(weights_.at(name).slices.size());
      std::vector<std::int64_t> scale_dims{directions};
      if (slices > directions) scale_dims.push_back(slices / directions);
      const auto stored = store(name, scale_dims, true);
      inputs[input] = stored.integers;
      parameters.insert(parameters.end(), {stored.scale, stored.zero_point});
    }
    inputs.insert(inputs.end(), parameters.begin(), parameters.end());
    auto attributes = node.attributes();
    std::erase_if(attributes, [](const Attribute& a) { return a.name() == "layout"; });
    nodes.emplace_back("DynamicQuantizeLSTM", node.name(), std::move(inputs), node.outputs(), std::move(attributes),
                       kMicrosoftDomain);
    if (model_.opset(kMicrosoftDomain) == 0) model_.set_opset(kMicrosoftDomain, 1);
  }

  void look_up(const Node& node, std::vector<Node>& nodes) {
    const auto& name = node.inputs()[0];
    const bool by_row = !weights_.at(name).granularity.is_tensor();
    const auto stored = store(
        name, by_row ? std::vector<std::int64_t>{weight(name).dims.front(), 1} : std::vector<std::int64_t>(), false);
    const auto& output = node.outputs()[0];
    const auto row = index_.fresh_name(output + "_quantized"), floats = index_.fresh_name(output + "_cast");
    const auto scale = by_row ? index_.fresh_name(output + "_scale") : stored.scale;
    nodes.emplace_back("Gather", node.name(), std::vector{stored.integers, node.inputs()[1]}, std::vector{row});
    nodes.emplace_back("Cast", index_.fresh_name(node.id() + "_Cast"), std::vector{row}, std::vector{floats},
                       std::vector{Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    if (by_row)
      nodes.emplace_back("Gather", index_.fresh_name(node.id() + "_Scales"),
                         std::vector{stored.scale, node.inputs()[1]}, std::vector{scale});
    // All rows have one zero point: those that have scales of their own are symmetric.
    auto centred = floats;
    if (const int middle = weights_.at(name).slices.front().zero_point; middle != 0) {
      const auto zero = index_.fresh_name(output + "_zero_point");
      const std::vector value{static_cast<float>(middle)};
      new_tensors_.push_back(onnx::make_tensor<float>(zero, DataType::float32, {}, value));
      centred = index_.fresh_name(output + "_centred");
      nodes.emplace_back("Sub", index_.fresh_name(node.id() + "_Sub"), std::vector{floats, zero}, std::vector{centred});
    }
    nodes.emplace_back("Mul", index_.fresh_name(node.id() + "_Mul"), std::vector{centred, scale}, std::vector{output});
  }

  onnx::Model model_;
  const DynamicPlacement& placement_;
  const AssignedValues& weights_;
  graph::Index index_;
  std::map<std::tuple<std::string, std::vector<std::int64_t>, bool>, Stored> stored_;
  std::map<std::string, Stored> activations_;
  std::vector<Tensor> new_tensors_;
};

}  // namespace

onnx::Model emit_dynamic(onnx::Model model, const DynamicPlacement& placement, const AssignedValues& weights) {
  return Emitter(std::move(model), placement, weights).run();
}

DynamicModel make_dynamic(onnx::Model model, const QuantConfig& config, bool allow_nonfinite) {
  auto placement = place_dynamic(model, config);
  Proposals proposals;
  proposals.constants = scan_weights(model, placement.weights, allow_nonfinite);
  auto assignment = assign(model, placement.weights, proposals, config);
  auto made = emit_dynamic(std::move(model), placement, assignment.values);
  return {std::move(made), placement.nodes.size(), std::move(assignment.notes)};
}

namespace {

constexpr std::size_t kFirstWeight = 1, kWeights = 2;  // of the input, and of the state
constexpr std::size_t kRank = 3;                       // directions, rows of all gates, what they sum over
constexpr std::uint64_t kLeastBytes = 16 << 10;        // below, nodes and scales are not worth it

const onnx::Tensor* weight(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const int at = index.initializer(name);
  return at == graph::kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(at)];
}

bool can_be_stored(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (!graph::is_recurrent(node) || node.body() != 0 || node.inputs().size() < kFirstWeight + kWeights) return false;
  std::uint64_t bytes = 0;
  for (std::size_t i = kFirstWeight; i < kFirstWeight + kWeights; ++i) {
    const auto* tensor = weight(model, index, node.inputs()[i]);
    if (tensor == nullptr || tensor->type != DataType::float32 || tensor->dims.size() != kRank) return false;
    if (tensor->count() == 0 || index.is_output(tensor->name) || !all_finite(*tensor)) return false;
    bytes += tensor->data.size();
  }
  return bytes >= kLeastBytes;
}

// Of a product's weight; null where it cannot be stored, or takes no less so.
const onnx::Tensor* weight_to_store(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  constexpr std::uint64_t kNodes = 512;        // what a Cast, a Mul and names take
  constexpr std::uint64_t kWorthIt = 1 << 10;  // bytes
  if (!graph::is_product(node) || node.body() != 0 || node.inputs().size() <= graph::kWeightInput) return nullptr;
  const auto* tensor = weight(model, index, node.inputs()[graph::kWeightInput]);
  if (tensor == nullptr || tensor->type != DataType::float32 || tensor->count() == 0) return nullptr;
  const auto axis = graph::channel_axis(node, tensor->dims.size());
  if (!axis || index.is_output(tensor->name)) return nullptr;
  const auto scales = static_cast<std::uint64_t>(tensor->dims[*axis]) * sizeof(float);
  return tensor->data.size() / 4 * 3 < scales + kNodes + kWorthIt ? nullptr : tensor;
}

class Storing {
 public:
  explicit Storing(onnx::Model& model) : model_(model), index_(model) {}

  void store_layer(onnx::Node& node) {
    for (std::size_t i = kFirstWeight; i < kFirstWeight + kWeights; ++i) {
      const auto* tensor = weight(model_, index_, node.inputs()[i]);
      auto dims = tensor->dims;
      dims.back() = 1;
      node.set_input(i, store(*tensor, Granularity::blocks(kRank - 1, tensor->dims.back()), std::move(dims)));
    }
  }

  bool store_product(onnx::Node& node) {
    const auto* tensor = weight_to_store(model_, index_, node);
    if (tensor == nullptr) return false;
    const auto axis = *graph::channel_axis(node, tensor->dims.size());
    std::vector<std::int64_t> dims(tensor->dims.size(), 1);
    dims[axis] = tensor->dims[axis];
    node.set_input(graph::kWeightInput, store(*tensor, Granularity::along(axis), std::move(dims)));
    return true;
  }

  void finish() {
    std::move(tensors_.begin(), tensors_.end(), std::back_inserter(model_.graph.initializers));
    std::move(model_.graph.nodes.begin(), model_.graph.nodes.end(), std::back_inserter(nodes_));
    model_.graph.nodes = std::move(nodes_);
    const graph::Index now(model_);
    const auto is_read = [&](const std::string& name) {
      return !now.consumers(name).empty() || now.is_captured(name) || now.is_output(name);
    };
    std::erase_if(stored_, is_read);
    std::erase_if(model_.graph.initializers, [&](const auto& tensor) { return stored_.contains(tensor.name); });
    keep_names();
  }

 private:
  // Gives back the value to read.
  std::string store(const onnx::Tensor& tensor, const Granularity& granularity, std::vector<std::int64_t> scale_dims) {
    const auto& name = tensor.name;
    stored_.insert(name);
    auto& floats = made_[{name, scale_dims}];
    if (!floats.empty()) return floats;
    const WeightFormat format{{QuantType::int8, true}, granularity};
    const auto params = weight_params(weight_extremes(tensor, granularity), format);
    const auto integers = index_.fresh_name(name + "_quantized"), scale = index_.fresh_name(name + "_scale"),
               unscaled = index_.fresh_name(name + "_unscaled");
    floats = index_.fresh_name(name + "_dequantized");
    std::vector<float> scales;
    for (const auto& slice : params) scales.push_back(slice.scale);
    tensors_.push_back(quantized_weight(tensor, integers, format, params));
    tensors_.push_back(onnx::make_tensor<float>(scale, DataType::float32, std::move(scale_dims), scales));
    nodes_.emplace_back("Cast", index_.fresh_name(name + "_Cast"), std::vector{integers}, std::vector{unscaled},
                        std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    nodes_.emplace_back("Mul", index_.fresh_name(name + "_Mul"), std::vector{unscaled, scale}, std::vector{floats});
    return floats;
  }

  // The floats get the name of the weight where that is gone.
  void keep_names() {
    std::map<std::string, std::string> names;
    for (const auto& [of, floats] : made_) {
      if (stored_.erase(of.first) > 0) names[floats] = of.first;
    }
    for (auto& node : model_.graph.nodes) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (const auto found = names.find(node.inputs()[i]); found != names.end()) node.set_input(i, found->second);
      }
      const auto found = node.outputs().empty() ? names.end() : names.find(node.outputs().front());
      if (found != names.end()) node.set_output(0, found->second);
    }
  }

  onnx::Model& model_;
  graph::Index index_;
  std::set<std::string> stored_;                                                   // weights
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::string> made_;  // by weight and form of its scales
  std::vector<onnx::Tensor> tensors_;
  std::vector<onnx::Node> nodes_;
};

}  // namespace

std::vector<std::size_t> layers_to_store(const onnx::Model& model, const QuantConfig& config) {
  const auto& nodes = model.graph.nodes;
  if (std::none_of(nodes.begin(), nodes.end(), graph::is_recurrent)) return {};
  const auto selected = select_of_all_types(model, config);
  const graph::Index index(model);
  std::vector<std::size_t> layers;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (selected[n] && can_be_stored(model, index, nodes[n])) layers.push_back(n);
  }
  return layers;
}

std::set<std::string> products_to_store(const onnx::Model& model, const QuantConfig& config,
                                        const TransposedConstants& transposed) {
  auto selected = select_nodes(model, config);
  const graph::Index index(model);
  for (const auto n : enlarging_nodes(model, index, QuantType::int8, transposed, selected)) selected[n] = false;
  std::set<std::string> products;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const auto* tensor = selected[n] ? weight_to_store(model, index, node) : nullptr;
    if (tensor != nullptr && all_finite(*tensor)) products.insert(node.id());
  }
  return products;
}

namespace {

// Products whose weight is the transpose of one that something reads in float: the file holds that one in any case.
void leave_out_read_in_float(const onnx::Model& model, const graph::Index& index, const TransposedConstants& transposed,
                             std::set<std::string>& products) {
  const auto kept_as = [&](const std::string& name) {
    const auto turned = transposed.find(name);
    return turned == transposed.end() ? name : turned->second;
  };
  std::set<std::string> in_float;
  for (const auto& tensor : model.graph.initializers) {
    const auto readers = index.consumers(tensor.name);
    const bool is_read = std::ranges::any_of(readers, [&](int reader) {
      return !products.contains(model.graph.nodes[static_cast<std::size_t>(reader)].id());
    });
    if (is_read && tensor.type == DataType::float32) in_float.insert(kept_as(tensor.name));
  }
  for (const auto& node : model.graph.nodes) {
    if (products.contains(node.id()) && in_float.contains(kept_as(node.inputs()[graph::kWeightInput])))
      products.erase(node.id());
  }
}

}  // namespace

std::set<std::string> products_in_float(const onnx::Model& model, const std::set<std::string>& products,
                                        const TransposedConstants& transposed) {
  const graph::Index index(model);
  std::set<std::string> found;
  for (const auto& node : model.graph.nodes) {
    const auto* tensor = products.contains(node.id()) ? weight_to_store(model, index, node) : nullptr;
    if (tensor == nullptr || index.is_captured(tensor->name)) continue;
    const auto axis = graph::channel_axis(node, tensor->dims.size());
    const auto readers = index.consumers(tensor->name);
    const bool is_shared_alike = std::all_of(readers.begin(), readers.end(), [&](int reader) {
      const auto& other = model.graph.nodes[static_cast<std::size_t>(reader)];
      return products.contains(other.id()) && weight_to_store(model, index, other) == tensor &&
             graph::channel_axis(other, tensor->dims.size()) == axis;
    });
    if (is_shared_alike) found.insert(node.id());
  }
  leave_out_read_in_float(model, index, transposed, found);
  return found;
}

std::size_t store_weights(onnx::Model& model, const std::set<std::string>& nodes) {
  if (nodes.empty()) return 0;
  Storing storing(model);
  std::size_t count = 0;
  for (auto& node : model.graph.nodes) {
    if (!nodes.contains(node.id())) continue;
    if (graph::is_recurrent(node)) {
      storing.store_layer(node);
      ++count;
    } else if (storing.store_product(node)) {
      ++count;
    }
  }
  storing.finish();
  return count;
}

}  // namespace detent::quantization
