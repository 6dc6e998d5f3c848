#include "quantization/emit/dynamic.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "data/given_inputs.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "quantization/placement/selection.h"
#include "quantization/weight_operators.h"
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

class Emitter : graph::Rewriter {
 public:
  Emitter(onnx::Model& model, const Assignment& assignment)
      : Rewriter(model),
        selected_(assignment.placement.selected),
        weights_(assignment.values),
        scales_rows_(scales_rows(model)) {}

  void run() {
    std::size_t n = 0;
    rebuild([&](const Node& node) {
      const bool is_placed = selected_[n++] && has_weights(node);
      if (is_placed) emit(node);
      return is_placed;
    });
    move_constants_to_model();
    graph::drop_unused_initializers(model_);
  }

 private:
  // In the body that the node is in; integers of an activation are where it is made, for all that read them.
  void emit(const Node& node) {
    const auto first = nodes_.size();
    if (graph::has_trait(node, graph::Trait::looks_up)) {
      look_up(node);
    } else if (graph::is_recurrent(node)) {
      recurrent(node);
    } else {
      product(node);
    }
    for (auto n = first; n < nodes_.size(); ++n) {
      if (!nodes_[n].is("DynamicQuantizeLinear")) nodes_[n].set_body(node.body());
    }
  }

  void step(const char* type, std::string name, std::vector<std::string> inputs, std::vector<std::string> outputs,
            std::vector<Attribute> attributes = {}, std::string domain = {}) {
    nodes_.emplace_back(type, std::move(name), std::move(inputs), std::move(outputs), std::move(attributes),
                        std::move(domain));
  }

  struct Stored {
    std::string integers, scale, zero_point;
  };

  bool has_weights(const Node& node) const {
    const auto inputs = weight_inputs(node);
    return std::all_of(inputs.begin(), inputs.end(), [&](auto i) { return weights_.contains(node.inputs()[i]); });
  }

  const Tensor& weight(const std::string& name) const { return *constant(name); }

  // With scales of these dimensions, and zero points as many, or one where all are equal. The last two dimensions of
  // the integers change places where asked for.
  Stored store(const std::string& name, const std::vector<std::int64_t>& scale_dims, bool transpose,
               bool one_zero_point = false) {
    const auto [found, is_new] = stored_.try_emplace({name, scale_dims, transpose});
    if (!is_new) return found->second;
    const auto& values = weights_.at(name);
    Stored names{fresh(name + "_quantized"), fresh(name + "_scale"), fresh(name + "_zero_point")};
    auto tensor = quantized_weight(weight(name), names.integers, {{values.type}, values.granularity}, values.slices);
    if (transpose) {
      const auto rank = tensor.dims.size();
      tensor.data = transposed(tensor.data, static_cast<std::size_t>(tensor.dims[rank - 2]),
                               static_cast<std::size_t>(tensor.dims[rank - 1]));
      std::swap(tensor.dims[rank - 2], tensor.dims[rank - 1]);
    }
    added_.push_back(std::move(tensor));
    std::vector<float> scales;
    std::vector<std::int8_t> zeros;
    for (const auto& slice : values.slices) {
      scales.push_back(slice.scale);
      zeros.push_back(static_cast<std::int8_t>(slice.zero_point));
    }
    added_.push_back(onnx::make_tensor<float>(names.scale, DataType::float32, scale_dims, scales));
    if (one_zero_point) zeros.resize(1);
    added_.push_back({names.zero_point,
                      data_type(values.type),
                      one_zero_point ? std::vector<std::int64_t>{} : scale_dims,
                      TensorData::of<std::int8_t>(zeros),
                      {},
                      false});
    return found->second = std::move(names);
  }

  // Integers, scale and zero point of an activation.
  const Stored& quantize(const std::string& value) {
    const auto [found, is_new] = activations_.try_emplace(value);
    if (is_new) {
      found->second = {fresh(value + "_quantized"), fresh(value + "_scale"), fresh(value + "_zero_point")};
      const auto& [integers, scale, zero_point] = found->second;
      step("DynamicQuantizeLinear", fresh(value + "_QuantizeLinear"), {value}, {integers, scale, zero_point});
    }
    return found->second;
  }

  struct Rows {
    std::string scaled, largest;
  };

  // Each row of the value over its largest magnitude. What a decoder's first tokens have in some channels is thousands
  // of times as large as what others have, so that one scale for all of them left those nothing.
  const Rows& scale_rows(const std::string& value) {
    const auto [found, is_new] = rows_.try_emplace(value);
    if (!is_new) return found->second;
    auto& [scaled, largest] = found->second;
    const auto magnitudes = fresh(value + "_magnitudes"), most = fresh(value + "_most");
    scaled = fresh(value + "_of_rows");
    largest = fresh(value + "_rows");
    if (least_.empty()) least_ = add("least_of_rows", {}, {1e-30F});  // rows of zeros stay what they are
    step("Abs", fresh(value + "_Abs"), {value}, {magnitudes});
    Node reduce("ReduceMax", fresh(value + "_ReduceMax"), {magnitudes}, {most});
    if (constexpr std::int64_t kAxesAsInput = 18; model_.opset() >= kAxesAsInput) {
      if (last_axis_.empty()) last_axis_ = add_ints("axis_of_rows", {-1});
      reduce.set_inputs({magnitudes, last_axis_});
    } else {
      reduce.set_attribute(Attribute::of_ints("axes", {-1}));
    }
    nodes_.push_back(std::move(reduce));
    step("Max", fresh(value + "_Max"), {most, least_}, {largest});
    step("Div", fresh(value + "_Div"), {value, largest}, {scaled});
    return found->second;
  }

  void product(const Node& node) {
    const auto& name = node.inputs()[1];
    const bool filter = graph::is_convolution(node);
    const auto slices = static_cast<std::int64_t>(weights_.at(name).slices.size());
    std::vector<std::int64_t> scale_dims;
    if (!weights_.at(name).granularity.is_tensor()) scale_dims = {slices};
    // A filter's outputs are its result's second axis.
    if (filter && !scale_dims.empty()) scale_dims.insert(scale_dims.end(), weight(name).dims.size() - 2, 1);
    const auto stored = store(name, scale_dims, node.int_or("transB", 0) != 0, filter);  // ConvInteger has one
    const bool by_rows = scales_rows_ && !filter && node.body() == 0;
    const auto rows = by_rows ? scale_rows(node.inputs()[0]) : Rows{node.inputs()[0], {}};
    const auto read = quantize(rows.scaled);
    const auto& output = node.outputs()[0];
    const auto sums = fresh(output + "_sums"), floats = fresh(output + "_sums_cast");
    const auto scale = fresh(output + "_scales");
    step(filter ? "ConvInteger" : "MatMulInteger", node.name(),
         {read.integers, stored.integers, read.zero_point, stored.zero_point}, {sums},
         filter ? node.attributes() : std::vector<Attribute>{});
    step("Cast", fresh(node.id() + "_Cast"), {sums}, {floats},
         {Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    step("Mul", fresh(node.id() + "_Scales"), {read.scale, stored.scale}, {scale});
    const bool has_bias = node.inputs().size() > 2 && !node.inputs()[2].empty();
    const auto value = has_bias ? fresh(output + "_without_bias") : output;
    const auto made = by_rows ? fresh(output + "_by_rows") : value;
    step("Mul", fresh(node.id() + "_Mul"), {floats, scale}, {made});
    if (by_rows) step("Mul", fresh(node.id() + "_Rows"), {made, rows.largest}, {value});
    if (!has_bias) return;
    const auto bias = filter ? spread_bias(node.inputs()[2], weight(name).dims.size()) : node.inputs()[2];
    step("Add", fresh(node.id() + "_Add"), {value, bias}, {output});
  }

  // The bias of a convolution with the axes of its result: [1, outputs, 1, 1].
  std::string spread_bias(const std::string& bias, std::size_t rank) {
    std::vector<std::int64_t> dims(rank, 1);
    dims[1] = -1;
    const auto shape = add_ints(bias + "_shape", dims), spread = fresh(bias + "_spread");
    step("Reshape", fresh(bias + "_Reshape"), {bias, shape}, {spread});
    return spread;
  }

  // DynamicQuantizeLSTM has its weights as [directions, inputs, 4 * hidden], LSTM as [directions, 4 * hidden, inputs].
  void recurrent(const Node& node) {
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
    step("DynamicQuantizeLSTM", node.name(), std::move(inputs), node.outputs(), std::move(attributes),
         kMicrosoftDomain);
    if (model_.opset(kMicrosoftDomain) == 0) model_.set_opset(kMicrosoftDomain, 1);
  }

  void look_up(const Node& node) {
    const auto& name = node.inputs()[0];
    const bool by_row = !weights_.at(name).granularity.is_tensor();
    const auto stored = store(
        name, by_row ? std::vector<std::int64_t>{weight(name).dims.front(), 1} : std::vector<std::int64_t>(), false);
    const auto& output = node.outputs()[0];
    const auto row = fresh(output + "_quantized"), floats = fresh(output + "_cast");
    const auto scale = by_row ? fresh(output + "_scale") : stored.scale;
    step("Gather", node.name(), {stored.integers, node.inputs()[1]}, {row});
    step("Cast", fresh(node.id() + "_Cast"), {row}, {floats},
         {Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    if (by_row) step("Gather", fresh(node.id() + "_Scales"), {stored.scale, node.inputs()[1]}, {scale});
    // All rows have one zero point: those that have scales of their own are symmetric.
    auto centred = floats;
    if (const int middle = weights_.at(name).slices.front().zero_point; middle != 0) {
      const auto zero = add(output + "_zero_point", {}, {static_cast<float>(middle)});
      centred = fresh(output + "_centred");
      step("Sub", fresh(node.id() + "_Sub"), {floats, zero}, {centred});
    }
    step("Mul", fresh(node.id() + "_Mul"), {centred, scale}, {output});
  }

  const std::vector<bool>& selected_;
  const AssignedValues& weights_;
  bool scales_rows_;
  std::map<std::tuple<std::string, std::vector<std::int64_t>, bool>, Stored> stored_;
  std::map<std::string, Stored> activations_;
  std::map<std::string, Rows> rows_;
  std::string least_, last_axis_;
};

}  // namespace

bool scales_rows(const onnx::Model& model) {
  std::vector<data::InputSpec> inputs;
  for (const auto& input : model.graph.inputs) inputs.push_back({.name = input.name, .type = {}, .shape = {}});
  return data::is_decoder(inputs);
}

Emitted emit_dynamic(FloatModel model, const Assignment& assignment) {
  Emitter(model.model, assignment).run();
  return {std::move(model.model), {}, {}};
}

DynamicModel make_dynamic(onnx::Model model, const QuantConfig& config, bool allow_nonfinite,
                          const TransposedConstants& transposed) {
  auto placement = place_dynamic(model, config, transposed);
  Proposals proposals;
  proposals.constants = scan_weights(model, placement, allow_nonfinite);
  auto assignment = assign(model, placement, proposals, config);
  auto made = emit_dynamic({std::move(model)}, assignment);
  return {std::move(made.model), std::move(placement), std::move(assignment.notes)};
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

// Floats of integers, which the runtime computes when it loads the model. Gives back their name.
std::string cast_and_scale(graph::Index& index, const std::string& name, const std::string& integers,
                           const std::string& scale, std::vector<onnx::Node>& nodes) {
  const auto unscaled = index.fresh_name(name + "_unscaled"), floats = index.fresh_name(name + "_dequantized");
  nodes.emplace_back("Cast", index.fresh_name(name + "_Cast"), std::vector{integers}, std::vector{unscaled},
                     std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
  nodes.emplace_back("Mul", index.fresh_name(name + "_Mul"), std::vector{unscaled, scale}, std::vector{floats});
  return floats;
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
    const auto integers = index_.fresh_name(name + "_quantized"), scale = index_.fresh_name(name + "_scale");
    floats = cast_and_scale(index_, name, integers, scale, nodes_);
    std::vector<float> scales;
    for (const auto& slice : params) scales.push_back(slice.scale);
    tensors_.push_back(quantized_weight(tensor, integers, format, params));
    tensors_.push_back(onnx::make_tensor<float>(scale, DataType::float32, std::move(scale_dims), scales));
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

std::set<std::string> weights_of(const onnx::Model& model, const std::set<std::string>& products) {
  std::set<std::string> weights;
  for (const auto& node : model.graph.nodes) {
    if (products.contains(node.id())) weights.insert(node.inputs()[graph::kWeightInput]);
  }
  return weights;
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

namespace {

// Weights that products compute with in float, from the DequantizeLinear that makes floats of integers on every run.
class Loading {
 public:
  explicit Loading(onnx::Model& model) : model_(model), index_(model) {}

  void run() {
    auto& nodes = model_.graph.nodes;
    for (auto& node : nodes) {
      if (!graph::is_product(node) || node.body() != 0 || node.inputs().size() <= graph::kWeightInput) continue;
      const auto* input = maker(node.inputs()[0]);
      const auto* pair = maker(node.inputs()[graph::kWeightInput]);
      if (pair == nullptr || (input != nullptr && input->is("DequantizeLinear"))) continue;
      if (const auto floats = loaded(*pair); !floats.empty()) node.set_input(graph::kWeightInput, floats);
    }
    if (made_.empty()) return;
    std::move(nodes.begin(), nodes.end(), std::back_inserter(nodes_));
    nodes = std::move(nodes_);
    std::move(scales_.begin(), scales_.end(), std::back_inserter(model_.graph.initializers));
    const graph::Index now(model_);
    std::erase_if(nodes, [&](const onnx::Node& node) {
      if (node.outputs().empty() || !made_.contains(node.outputs().front())) return false;
      const auto& value = node.outputs().front();
      return now.consumers(value).empty() && !now.is_captured(value) && !now.is_output(value);
    });
    graph::drop_unused_initializers(model_);
  }

 private:
  const onnx::Node* maker(const std::string& value) const {
    const int n = index_.producer(value);
    return n == graph::kNone ? nullptr : &model_.graph.nodes[static_cast<std::size_t>(n)];
  }

  const onnx::Tensor* input(const onnx::Node& node, std::size_t i) const {
    return i < node.inputs().size() ? weight(model_, index_, node.inputs()[i]) : nullptr;
  }

  // The same floats, computed once; empty where the integers have zero points, blocks or no such form.
  std::string loaded(const onnx::Node& pair) {
    const auto *integers = input(pair, 0), *scale = input(pair, 1), *zeros = input(pair, 2);
    if (!pair.is("DequantizeLinear") || integers == nullptr || scale == nullptr || pair.int_or("block_size", 0) != 0)
      return {};
    if (integers->type != DataType::int8 || scale->type != DataType::float32) return {};
    if (pair.inputs().size() > 2 && !pair.inputs()[2].empty()) {
      if (zeros == nullptr || std::ranges::any_of(zeros->data.bytes(), [](auto b) { return b != std::byte{0}; }))
        return {};
    }
    auto& floats = made_[pair.outputs().front()];
    if (!floats.empty()) return floats;
    auto factor = scale->name;
    if (!scale->dims.empty()) {
      const auto rank = static_cast<std::int64_t>(integers->dims.size());
      const auto axis = pair.int_or("axis", 1);
      std::vector<std::int64_t> dims(integers->dims.size(), 1);
      dims[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)] = scale->dims.front();
      factor = index_.fresh_name(scale->name + "_along");
      scales_.push_back(onnx::make_tensor<float>(factor, DataType::float32, std::move(dims), graph::floats_of(*scale)));
    }
    return floats = cast_and_scale(index_, integers->name, integers->name, factor, nodes_);
  }

  onnx::Model& model_;
  graph::Index index_;
  std::map<std::string, std::string> made_;  // by what the DequantizeLinear gives
  std::vector<onnx::Tensor> scales_;
  std::vector<onnx::Node> nodes_;
};

}  // namespace

void load_weights_of_float_products(onnx::Model& model) { Loading(model).run(); }

}  // namespace detent::quantization
