#include "quantization/emit/stored_weights.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "quantization/placement/infinite_values.h"
#include "quantization/placement/selection.h"
#include "quantization/weights.h"

namespace detent::quantization {
namespace {

using onnx::DataType;

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

std::set<std::string> products_to_store(const onnx::Model& model, const QuantConfig& config) {
  const auto selected = select_nodes(model, config);
  const graph::Index index(model);
  std::set<std::string> products;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    const auto* tensor = selected[n] ? weight_to_store(model, index, node) : nullptr;
    if (tensor != nullptr && all_finite(*tensor)) products.insert(node.id());
  }
  return products;
}

std::set<std::string> products_in_float(const onnx::Model& model, const std::set<std::string>& products) {
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
