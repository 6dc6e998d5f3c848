#include "quantization/blocks/input_folds.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/index.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

using onnx::Node;

// Which input of a normalization is its gain and which its bias; kNone: there is none.
struct NormInputs {
  int gain = graph::kNone, bias = graph::kNone;
};

std::optional<NormInputs> norm_inputs(const Node& node) {
  const auto& type = node.op_type();
  if (node.domain().empty()) {
    if (type == "LayerNormalization") return NormInputs{1, 2};
    if (type == "SimplifiedLayerNormalization" || type == "RMSNormalization") return NormInputs{1, graph::kNone};
  } else if (node.domain() == "com.microsoft") {
    if (type == "SkipLayerNormalization") return NormInputs{2, 3};
    if (type == "SkipSimplifiedLayerNormalization") return NormInputs{2, graph::kNone};
    if (type == "SimplifiedLayerNormalization") return NormInputs{1, graph::kNone};
  }
  return std::nullopt;
}

class Folds {
 public:
  Folds(const onnx::Model& model, const BlockPlacement& placement)
      : model_(model), placement_(placement), index_(model) {
    for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
      for (const auto n : placement.tensors[t].products) tensor_of_[n] = t;
    }
  }

  std::vector<InputFold> find() {
    std::vector<InputFold> folds;
    std::set<std::string> seen;
    for (const auto& tensor : placement_.tensors) {
      if (tensor.products.empty()) continue;
      const auto& value = model_.graph.nodes[tensor.products.front()].inputs()[0];
      if (!seen.insert(value).second) continue;
      if (auto fold = fold_of(value, tensor.rows)) folds.push_back(std::move(*fold));
    }
    return folds;
  }

 private:
  std::optional<InputFold> fold_of(const std::string& value, std::int64_t width) const {
    if (index_.is_output(value) || index_.is_captured(value)) return std::nullopt;
    InputFold fold{value, {}, {}, {}};
    std::set<std::size_t> tensors;
    for (const int reader : index_.consumers(value)) {
      const auto n = static_cast<std::size_t>(reader);
      const auto found = tensor_of_.find(n);
      const auto& inputs = model_.graph.nodes[n].inputs();
      if (found == tensor_of_.end() || std::count(inputs.begin(), inputs.end(), value) != 1) return std::nullopt;
      tensors.insert(found->second);
    }
    for (const auto t : tensors) {
      const auto& tensor = placement_.tensors[t];
      const bool ours = std::all_of(tensor.products.begin(), tensor.products.end(),
                                    [&](std::size_t n) { return model_.graph.nodes[n].inputs()[0] == value; });
      if (!ours || !belongs_to_products(tensor) || tensor.rows != width) return std::nullopt;
      fold.tensors.push_back(t);
    }
    if (!divide(value, width, fold)) return std::nullopt;
    return fold;
  }

  static bool belongs_to_products(const BlockTensor& tensor) {
    return tensor.tables.empty() && tensor.others.empty() && !tensor.stays && tensor.type == onnx::DataType::float32;
  }

  // Adds to the fold what has to be divided so that the value is.
  bool divide(const std::string& value, std::int64_t width, InputFold& fold) const {
    const int producer = index_.producer(value);
    if (producer == graph::kNone) return false;
    const auto n = static_cast<std::size_t>(producer);
    const auto& node = model_.graph.nodes[n];
    if (node.outputs()[0] != value) return false;
    if (const auto norm = norm_inputs(node)) return divide_norm(node, *norm, width, fold);
    if (node.is("Relu")) return divide_alone(node.inputs()[0], width, fold);
    if (node.is("Add")) return divide_sum(node, width, fold);
    if (node.is("Mul")) return divide_product_of_values(node, width, fold);
    if (graph::is_matrix_product(node)) return divide_columns(n, width, fold);
    return false;
  }

  // The same for a value that nothing else may read.
  bool divide_alone(const std::string& value, std::int64_t width, InputFold& fold) const {
    if (index_.is_output(value) || index_.is_captured(value) || index_.consumers(value).size() != 1) return false;
    const auto& inputs = model_.graph.nodes[static_cast<std::size_t>(index_.consumers(value).front())].inputs();
    return std::count(inputs.begin(), inputs.end(), value) == 1 && divide(value, width, fold);
  }

  bool divide_norm(const Node& node, const NormInputs& norm, std::int64_t width, InputFold& fold) const {
    const auto axis = node.int_or("axis", -1);
    if (axis != -1) return false;
    const auto has = [&](int input) {
      return input != graph::kNone && static_cast<std::size_t>(input) < node.inputs().size() &&
             !node.inputs()[static_cast<std::size_t>(input)].empty();
    };
    if (!has(norm.gain) || !divide_constant(node.inputs()[static_cast<std::size_t>(norm.gain)], width, fold))
      return false;
    return !has(norm.bias) || divide_constant(node.inputs()[static_cast<std::size_t>(norm.bias)], width, fold);
  }

  bool divide_sum(const Node& node, std::int64_t width, InputFold& fold) const {
    for (const std::size_t constant : {1, 0}) {
      const auto trial = fold;
      if (divide_constant(node.inputs()[constant], width, fold) &&
          divide_alone(node.inputs()[1 - constant], width, fold))
        return true;
      fold = trial;
    }
    return false;
  }

  // One of the two is divided.
  bool divide_product_of_values(const Node& node, std::int64_t width, InputFold& fold) const {
    for (const std::size_t input : {1, 0}) {
      const auto trial = fold;
      if (divide_constant(node.inputs()[input], width, fold) || divide_alone(node.inputs()[input], width, fold))
        return true;
      fold = trial;
    }
    return false;
  }

  bool divide_columns(std::size_t n, std::int64_t width, InputFold& fold) const {
    const auto found = tensor_of_.find(n);
    if (found == tensor_of_.end() || fold.product) return false;
    const auto& tensor = placement_.tensors[found->second];
    if (!belongs_to_products(tensor) || tensor.products.size() != 1 || tensor.columns != width) return false;
    if (std::count(fold.tensors.begin(), fold.tensors.end(), found->second) > 0) return false;
    const auto& inputs = model_.graph.nodes[n].inputs();
    if (inputs.size() > 2 && !inputs[2].empty() && !divide_constant(inputs[2], width, fold)) return false;
    fold.product = found->second;
    return true;
  }

  // A vector along the last axis.
  bool divide_constant(const std::string& name, std::int64_t width, InputFold& fold) const {
    const int at = index_.initializer(name);
    if (at == graph::kNone || index_.is_output(name) || index_.is_captured(name)) return false;
    if (index_.consumers(name).size() != 1 || width < 2) return false;
    const auto& inputs = model_.graph.nodes[static_cast<std::size_t>(index_.consumers(name).front())].inputs();
    if (std::count(inputs.begin(), inputs.end(), name) != 1) return false;
    const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(at)];
    if (tensor.type != onnx::DataType::float32 || tensor.count() != width || tensor.dims.back() != width) return false;
    fold.constants.push_back(static_cast<std::size_t>(at));
    return true;
  }

  const onnx::Model& model_;
  const BlockPlacement& placement_;
  graph::Index index_;
  std::map<std::size_t, std::size_t> tensor_of_;  // by product
};

void multiply(std::vector<float>& all, std::span<const float> factors, bool inverse) {
  if (all.empty()) all.assign(factors.size(), 1.0F);
  for (std::size_t i = 0; i < factors.size(); ++i) all[i] = inverse ? all[i] / factors[i] : all[i] * factors[i];
}

}  // namespace

std::vector<InputFold> input_folds(const onnx::Model& model, const BlockPlacement& placement) {
  return Folds(model, placement).find();
}

void apply_fold(const InputFold& fold, std::span<const float> factors, onnx::Model& model, BlockPlacement& placement) {
  for (const auto t : fold.tensors) multiply(placement.tensors[t].row_factors, factors, false);
  if (fold.product) multiply(placement.tensors[*fold.product].column_factors, factors, true);
  for (const auto constant : fold.constants) {
    auto& tensor = model.graph.initializers[constant];
    std::vector<float> values;
    onnx::for_each_float(tensor.data, [&](std::span<const float> some, std::int64_t) {
      values.insert(values.end(), some.begin(), some.end());
    });
    for (std::size_t i = 0; i < values.size(); ++i) values[i] /= factors[i];
    tensor = onnx::make_tensor(tensor.name, tensor.type, tensor.dims, std::span<const float>(values));
  }
}

}  // namespace detent::quantization
