#include <algorithm>
#include <map>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

onnx::Tensor& initializer(onnx::Model& model, const Index& index, const std::string& name) {
  return model.graph.initializers.at(static_cast<std::size_t>(index.initializer(name)));
}

void replace(onnx::Tensor& tensor, const std::vector<float>& values, const Store& store) {
  const auto bytes = std::as_bytes(std::span(values));
  tensor = {tensor.name, tensor.type, tensor.dims, store({bytes.begin(), bytes.end()}), {}, false};
}

std::vector<float> inverses(const std::vector<float>& factors) {
  std::vector<float> result(factors.size());
  std::transform(factors.begin(), factors.end(), result.begin(), [](float f) { return 1.0F / f; });
  return result;
}

// The node whose constants can take the factors in: a LayerNormalization whose result and whose constants nobody else
// reads.
const onnx::Node* absorbing(const onnx::Model& model, const Index& index, const ChannelScaling& scaling) {
  const int producer = index.producer(scaling.value);
  if (producer == kNone || !scaling.last_axis) return nullptr;
  const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
  const auto& inputs = node.inputs();
  if (!node.is("LayerNormalization") || index.consumers(scaling.value).size() != scaling.readers.size() ||
      index.is_output(scaling.value) || index.is_captured(scaling.value)) {
    return nullptr;
  }
  const auto is_free = [&](const std::string& name) {
    const int i = index.initializer(name);
    if (i == kNone || index.consumers(name).size() != 1) return false;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(i)];
    return tensor.type == onnx::DataType::float32 && tensor.dims.size() == 1 &&
           tensor.count() == static_cast<std::int64_t>(scaling.factors.size());
  };
  const bool has_bias = inputs.size() > 2 && !inputs[2].empty();
  return is_free(inputs[1]) && (!has_bias || is_free(inputs[2])) ? &node : nullptr;
}

// [channels], or [channels, 1, …] behind the batch of a convolution's input.
std::vector<std::int64_t> shape_for(const onnx::Model& model, const Index& index, const ChannelScaling& scaling) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(scaling.factors.size())};
  if (scaling.last_axis) return shape;
  const auto& name = scaling.maker ? scaling.maker->weight : scaling.readers.front().weight;
  const int weight = index.initializer(name);
  const std::size_t axes = model.graph.initializers[static_cast<std::size_t>(weight)].dims.size() - 2;
  shape.insert(shape.end(), axes, 1);
  return shape;
}

class Scaler {
 public:
  Scaler(onnx::Model& model, ValueTypes& types, const Store& store)
      : model_(model), types_(types), store_(store), index_(model) {}

  // The name of the scaled value.
  std::string scale(const ChannelScaling& scaling) {
    for (const auto& reader : scaling.readers) multiply(reader.weight, reader.axis, scaling.factors);
    const std::string name = index_.fresh_name(scaling.value + "_equalized");
    if (const auto found = types_.find(scaling.value); found != types_.end()) types_[name] = ValueType(found->second);
    if (scaling.maker) {
      divide_by_maker(scaling, name);
    } else if (const auto* node = absorbing(model_, index_, scaling)) {
      for (std::size_t i = 1; i < node->inputs().size(); ++i) {
        if (!node->inputs()[i].empty()) multiply(node->inputs()[i], 0, inverses(scaling.factors));
      }
      rename(scaling.value, name);
      types_.erase(scaling.value);
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
  onnx::Node& node_at(int position) { return model_.graph.nodes[static_cast<std::size_t>(position)]; }

  void multiply(const std::string& constant, std::size_t axis, const std::vector<float>& factors) {
    auto& tensor = initializer(model_, index_, constant);
    replace(tensor, scaled_along(tensor, axis, factors), store_);
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
      types_.erase(scaling.value);
    }
  }

  void insert_mul(int position, const ChannelScaling& scaling, const std::string& from,
                  const std::vector<float>& factors, const std::string& to) {
    const std::string constant = index_.fresh_name(scaling.value + "_equalize_factor");
    model_.graph.initializers.push_back(onnx::make_tensor<float>(
        constant, onnx::DataType::float32, shape_for(model_, index_, scaling), std::span(factors)));
    before_[position].emplace_back("Mul", index_.fresh_name(scaling.value + "_Equalize"), std::vector{from, constant},
                                   std::vector{to});
  }

  onnx::Model& model_;
  ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::map<int, std::vector<onnx::Node>> before_;  // by the node that they come before
};

}  // namespace

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
