#include "quantization/emit/stored_weights.h"

#include <algorithm>
#include <iterator>

#include "config/derived.h"
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

class Storing {
 public:
  explicit Storing(onnx::Model& model) : model_(model), index_(model) {}

  void store(const std::string& name) {
    if (!stored_.insert(name).second) return;
    const auto* tensor = weight(model_, index_, name);
    const WeightFormat format{{QuantType::int8, true}, Granularity::blocks(kRank - 1, tensor->dims.back())};
    const auto params = weight_params(weight_extremes(*tensor, format.granularity), format);
    const auto integers = index_.fresh_name(name + "_quantized"), scale = index_.fresh_name(name + "_scale"),
               floats = index_.fresh_name(name + "_floats");
    std::vector<float> scales;
    for (const auto& row : params) scales.push_back(row.scale);
    auto dims = tensor->dims;
    dims.back() = 1;
    tensors_.push_back(quantized_weight(*tensor, integers, format, params));
    tensors_.push_back(onnx::make_tensor<float>(scale, DataType::float32, dims, scales));
    nodes_.emplace_back("Cast", index_.fresh_name(name + "_Cast"), std::vector{integers}, std::vector{floats},
                        std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    nodes_.emplace_back("Mul", index_.fresh_name(name + "_Mul"), std::vector{floats, scale}, std::vector{name});
  }

  void finish() {
    std::erase_if(model_.graph.initializers, [&](const auto& tensor) { return stored_.contains(tensor.name); });
    std::move(tensors_.begin(), tensors_.end(), std::back_inserter(model_.graph.initializers));
    std::move(model_.graph.nodes.begin(), model_.graph.nodes.end(), std::back_inserter(nodes_));
    model_.graph.nodes = std::move(nodes_);
  }

 private:
  onnx::Model& model_;
  graph::Index index_;
  std::set<std::string> stored_;
  std::vector<onnx::Tensor> tensors_;
  std::vector<onnx::Node> nodes_;
};

}  // namespace

std::vector<std::size_t> layers_to_store(const onnx::Model& model, const QuantConfig& config) {
  const auto& nodes = model.graph.nodes;
  if (!config::tries_recurrent(config) || std::none_of(nodes.begin(), nodes.end(), graph::is_recurrent)) return {};
  const auto selected = select_of_all_types(model, config);
  const graph::Index index(model);
  std::vector<std::size_t> layers;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (selected[n] && can_be_stored(model, index, nodes[n])) layers.push_back(n);
  }
  return layers;
}

void store_weights(onnx::Model& model, const std::set<std::string>& layers) {
  if (layers.empty()) return;
  Storing storing(model);
  for (const auto& node : model.graph.nodes) {
    if (!layers.contains(node.id())) continue;
    for (std::size_t i = kFirstWeight; i < kFirstWeight + kWeights; ++i) storing.store(node.inputs()[i]);
  }
  storing.finish();
}

}  // namespace detent::quantization
