#include "checking/openvino_rules.h"

#include <algorithm>
#include <vector>

#include "graph/constants.h"
#include "graph/operators.h"
#include "graph/traits.h"

namespace detent::checking {
namespace {

using graph::kNone;

constexpr int kMostAlong = 8;  // that a search for a product goes back

const onnx::Node& at(const onnx::Model& model, int n) { return model.graph.nodes[static_cast<std::size_t>(n)]; }

bool has_8_bits(const Form& form) { return form.text.starts_with("u8") || form.text.starts_with("s8"); }

// ConvTranspose takes nothing along.
bool takes_others(const onnx::Node& node) { return node.is("Conv") || graph::is_matrix_product(node); }

// A pool that takes every n-th value is put in front of it, between the integers and their scale.
bool is_strided_point(const onnx::Node& node, const onnx::Model& model, const graph::Index& index) {
  const auto* strides = node.attribute("strides");
  if (!node.is("Conv") || strides == nullptr || node.inputs().size() < 2) return false;
  const auto steps = strides->as_ints();
  if (std::none_of(steps.begin(), steps.end(), [](auto s) { return s > 1; })) return false;
  std::string weight = node.inputs()[1];
  if (const int maker = index.producer(weight); maker != kNone) {
    if (at(model, maker).inputs().empty()) return false;
    weight = at(model, maker).inputs().front();
  }
  const int stored = index.initializer(weight);
  if (stored == kNone) return false;
  const auto& dims = model.graph.initializers[static_cast<std::size_t>(stored)].dims;
  return dims.size() > 2 && std::all_of(dims.begin() + 2, dims.end(), [](auto d) { return d == 1; });
}

// The node that makes a value, if nothing else reads that, also behind a pair.
int only_read_maker(const onnx::Model& model, const graph::Index& index, std::string value, bool behind_pair) {
  while (!value.empty() && index.consumers(value).size() == 1 && !index.is_output(value)) {
    const int maker = index.producer(value);
    if (maker == kNone) return kNone;
    const auto& node = at(model, maker);
    if (!graph::is_q_or_dq(node)) return maker;
    if (!behind_pair || node.inputs().empty()) return kNone;
    value = node.inputs().front();
  }
  return kNone;
}

// A matrix product takes a bias along, a convolution any sum.
bool takes_along(const onnx::Node& product, const onnx::Node& node, const graph::Index& index) {
  if (!node.is("Add") || product.is("Conv")) return true;
  return std::any_of(node.inputs().begin(), node.inputs().end(),
                     [&](const auto& value) { return index.initializer(value) != kNone; });
}

// The scale moves behind all that only move values, and behind what picks them.
bool moves_values(const onnx::Node& node) { return graph::is_on(node, graph::List::openvino_moves); }

// QuantizeLinear moves in front of a Transpose, and then of all that move values before that.
bool moves_integers(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const auto* last = &node;
  while (moves_values(*last) && !last->is("Slice") && !last->outputs().empty()) {
    const auto readers = index.consumers(last->outputs().front());
    if (readers.size() != 1 || index.is_output(last->outputs().front())) return false;
    const auto& reader = at(model, readers.front());
    if (graph::is_quantize_linear(reader)) return last->is("Transpose");
    last = &reader;
  }
  return false;
}

// What one kernel computes in a row.
bool is_element_wise(const onnx::Node& node) {
  return graph::has_trait(node, graph::Trait::element_wise) && !graph::is_on(node, graph::List::openvino_own);
}

bool interpolates(const onnx::Node& node) {
  const auto* mode = node.attribute("mode");
  return node.is("Resize") && mode != nullptr && mode->as_string() != "nearest";
}

bool is_activation(const Form& form) { return has_8_bits(form) && !form.is_constant; }

std::size_t activations_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < node.inputs().size(); ++i)
    count += node.inputs()[i].empty() || form_of_input(model, index, node, i).is_constant ? 0U : 1U;
  return count;
}

// Whether a matrix product with constant weights runs an element-wise operator along; it takes no sums.
bool is_behind_matrix_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const auto* before = &node;
  for (int taken = 0; taken < kMostAlong; ++taken) {
    const int maker = only_read_maker(model, index, before->inputs().empty() ? "" : before->inputs().front(), false);
    if (maker == kNone) return false;
    before = &at(model, maker);
    if (takes_others(*before)) return !before->is("Conv") && form_of_input(model, index, *before, 1).is_constant;
    if (!is_element_wise(*before)) return false;
  }
  return false;
}

// The product that runs a node along: of two, the one on integers.
int product_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  int found = kNone;
  for (const auto& value : node.inputs()) {
    const int maker = only_read_maker(model, index, value, node.is("Add"));
    if (maker == kNone || !takes_others(at(model, maker)) || !takes_along(at(model, maker), node, index)) continue;
    if (has_8_bits(form_of_input(model, index, at(model, maker), 0))) return maker;
    if (found == kNone) found = maker;
  }
  return found;
}

// Its kernel takes along what follows, unless that begins with a zero point.
bool reduces_floats(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  return node.op_type().starts_with("Reduce") && !has_8_bits(form_of_input(model, index, node, 0));
}

// The node that makes a value, also behind a pair.
int maker_behind_pair(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  int maker = index.producer(value);
  while (maker != kNone && graph::is_q_or_dq(at(model, maker)))
    maker = index.producer(at(model, maker).inputs().front());
  return maker;
}

// Whether a norm's Mul reads the integers that a product makes, and with them its kernel begins.
bool scales_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  return node.is("Mul") && std::any_of(node.inputs().begin(), node.inputs().end(), [&](const auto& value) {
           const int maker = maker_behind_pair(model, index, value);
           return maker != kNone && graph::is_product(at(model, maker));
         });
}

// The node whose kernel begins with floats of its own, unless what reads it begins with a product's integers.
bool begins_with_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (!node.is("Reciprocal")) return false;
  int reader = graph::only_reader(index, node.outputs().front());
  while (reader != kNone && graph::is_q_or_dq(at(model, reader)))
    reader = graph::only_reader(index, at(model, reader).outputs().front());
  return reader != kNone && scales_product(model, index, at(model, reader));
}

// The element-wise operator whose kernel runs another one along.
int element_wise_before(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                        bool static_shapes) {
  const bool two = activations_of(model, index, node) == 2;
  const bool sums = node.is("Add") && two && has_8_bits(form_of_input(model, index, node, 0)) &&
                    has_8_bits(form_of_input(model, index, node, 1));
  for (const auto& value : node.inputs()) {
    int maker = only_read_maker(model, index, value, static_shapes || sums);
    // A compiled kernel may have several results.
    if (maker == kNone && static_shapes && !two) maker = index.producer(value);
    if (maker == kNone) continue;
    if (static_shapes && !two && reduces_floats(model, index, at(model, maker)) &&
        form_of_input(model, index, node, 0).zero_point == 0)
      return maker;
    if (!is_element_wise(at(model, maker))) continue;
    if (static_shapes && two && at(model, maker).is("Reciprocal") && scales_product(model, index, node)) continue;
    if (!two || !is_behind_matrix_product(model, index, at(model, maker))) return maker;
  }
  return kNone;
}

// x less the mean of x, as LayerNormalization does it.
bool is_less_its_mean(const onnx::Node& node, const onnx::Model& model, const graph::Index& index) {
  if (!node.is("Sub") || node.inputs().size() < 2) return false;
  const int maker = index.producer(node.inputs()[1]);
  return maker != kNone && at(model, maker).op_type().starts_with("Reduce") &&
         has_8_bits(form_of_input(model, index, at(model, maker), 0));
}

// torch's guard of a Softmax against NaN: compiled with the QuantizeLinear behind it.
bool guards_softmax(const onnx::Node& node, const onnx::Model& model, const graph::Index& index) {
  const int maker = node.is("Where") ? maker_behind_pair(model, index, node.inputs()[2]) : kNone;
  return maker != kNone && at(model, maker).is("Softmax");
}

// Rows of a table of floats, such as embeddings.
bool adds_gathered_rows(const onnx::Node& node, const onnx::Model& model, const graph::Index& index) {
  const int maker = node.is("Add") && node.inputs().size() > 1 ? index.producer(node.inputs()[1]) : kNone;
  return maker != kNone && at(model, maker).is("Gather");
}

std::optional<KernelOverride> product_kernel_override(const onnx::Node& node, const onnx::Model& model,
                                                      const graph::Index& index, const Signature& forms) {
  if (is_strided_point(node, model, index))
    return KernelOverride{"float32",
                          "OpenVINO puts a pool before 1x1 convolutions with strides, and then computes in float",
                          "strides of 1, behind a MaxPool of one value with these strides"};
  if (node.is("ConvTranspose") && forms.first.zero_point == 0 && forms.second.text.starts_with("s8=/"))
    return KernelOverride{"int8", "ConvTranspose of integers with zero point 0", ""};
  const bool symmetric = forms.second.text == "s8=" || forms.second.text == "u8=";  // either can become int8
  if (node.is("MatMul") && forms.first.zero_point == 0 && symmetric && !forms.second.is_constant)
    return KernelOverride{"int8", "MatMul of integers, the first with zero point 0, the second symmetric", ""};
  return std::nullopt;
}

}  // namespace

std::optional<KernelOverride> kernel_override(const onnx::Node& node, const onnx::Model& model,
                                              const graph::Index& index, const Signature& forms, bool static_shapes) {
  const bool output = has_8_bits(forms.output);
  if (node.is("Concat") && output) return KernelOverride{"int8", "Concat of what becomes integers of 8 bits", ""};
  if (moves_integers(model, index, node)) return KernelOverride{"int8", "QuantizeLinear moves in front of it", ""};
  const bool compiled = static_shapes && is_element_wise(node);
  if (compiled && is_activation(forms.first.is_constant ? forms.second : forms.first))
    return KernelOverride{"int8", "an element-wise operator that reads integers, compiled for its shape", ""};
  if (static_shapes && begins_with_product(model, index, node))
    return KernelOverride{"int8", "its kernel begins with the integers of a product", ""};
  if (static_shapes && output && guards_softmax(node, model, index))
    return KernelOverride{"int8", "a choice that is compiled with the QuantizeLinear behind it", ""};
  if (!is_activation(forms.first)) return std::nullopt;
  if (static_shapes && node.is("Neg")) return KernelOverride{"int8", "it reads integers, compiled for its shape", ""};
  if (graph::is_product(node)) return product_kernel_override(node, model, index, forms);
  const bool both = is_activation(forms.second);
  if (node.is("Add") && both) return KernelOverride{"int8", "Add of integers of 8 bits", ""};
  if (node.is("Mul") && both && output) return KernelOverride{"int8", "Mul of integers of 8 bits", ""};
  if (adds_gathered_rows(node, model, index))
    return KernelOverride{"int8", "Add of integers of 8 bits and rows of floats", ""};
  if (is_less_its_mean(node, model, index)) return KernelOverride{"int8", "integers of 8 bits less their mean", ""};
  if (interpolates(node)) return KernelOverride{"float32", "OpenVINO interpolates in float", "mode nearest"};
  return std::nullopt;
}

int node_fused_into(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, bool static_shapes) {
  if (moves_values(node) && !node.inputs().empty()) {
    if (moves_integers(model, index, node)) return kNone;
    const int maker = only_read_maker(model, index, node.inputs().front(), false);
    return maker != kNone &&
                   (moves_values(at(model, maker)) || graph::is_on(at(model, maker), graph::List::openvino_picks))
               ? maker
               : kNone;
  }
  if (!is_element_wise(node) || (static_shapes && begins_with_product(model, index, node))) return kNone;
  const int product = graph::is_on(node, graph::List::openvino_along) ? product_of(model, index, node) : kNone;
  return product != kNone ? product : element_wise_before(model, index, node, static_shapes);
}

namespace {

constexpr std::int64_t kFewRows = 8, kLongestSide = 256;  // of a weight

class Rows {
 public:
  Rows(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types)
      : model_(model), index_(index), types_(types) {}

  std::unordered_map<int, ChainOutcome> run() {
    for (int n = 0; n < static_cast<int>(model_.graph.nodes.size()); ++n) {
      if (!joined_.contains(n) && is_of_few_rows(at(n))) follow(n);
    }
    return std::move(joined_);
  }

 private:
  const onnx::Node& at(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }

  const onnx::Tensor* constant(std::string value) const {
    if (const int maker = index_.producer(value); maker != kNone) {
      if (!graph::is_dequantize_linear(at(maker))) return nullptr;
      value = at(maker).inputs().front();
    }
    const int stored = index_.initializer(value);
    return stored == kNone ? nullptr : &model_.graph.initializers[static_cast<std::size_t>(stored)];
  }

  bool is_of_few_rows(const onnx::Node& node) const {
    if (!graph::is_matrix_product(node) || node.int_or("transA", 0) != 0) return false;
    const auto* weight = constant(node.inputs()[1]);
    if (weight == nullptr || weight->dims.size() != 2) return false;
    if (*std::max_element(weight->dims.begin(), weight->dims.end()) > kLongestSide) return false;
    const auto found = types_.find(node.outputs().front());
    if (found == types_.end() || !found->second.shape || found->second.shape->size() != 2) return false;
    return found->second.shape->front().value <= kFewRows;  // less than 0: as many as one likes
  }

  // The only reader of what a node makes.
  int reader_of(int n) const {
    const auto& value = at(n).outputs().front();
    const auto readers = index_.consumers(value);
    return readers.size() == 1 && !index_.is_output(value) ? readers.front() : kNone;
  }

  static bool vanishes(const onnx::Node& node) {
    return graph::has_trait(node, graph::Trait::clips) || node.is("Identity");
  }

  static bool stands_between(const onnx::Node& node) {
    if (graph::is_q_or_dq(node) || node.is("Identity")) return true;
    return graph::has_trait(node, graph::Trait::element_wise) && !graph::is_on(node, graph::List::openvino_alone);
  }

  bool adds_a_bias(const onnx::Node& product) const {
    if (product.inputs().size() < 3 || product.inputs()[2].empty()) return false;
    const auto* bias = constant(product.inputs()[2]);
    if (bias == nullptr) return true;
    const auto is_set = [](auto v) { return v != 0; };
    if (bias->type == onnx::DataType::int32) {
      const auto values = onnx::to_int64s(*bias);
      return std::any_of(values.begin(), values.end(), is_set);
    }
    const auto values = onnx::to_doubles(*bias);
    return std::any_of(values.begin(), values.end(), is_set);
  }

  // Whether what follows takes the zero point of a product's input along.
  bool loses_zero_point(int product) const {
    if (form_of_input(model_, index_, at(product), 0).zero_point == 0 || adds_a_bias(at(product))) return false;
    int next = reader_of(product);
    while (next != kNone && vanishes(at(next))) next = reader_of(next);
    return next != kNone && graph::is_quantize_linear(at(next));
  }

  // Whether the kernel quantizes what its first product reads.
  bool quantizes(int product) const {
    const int pair = index_.producer(at(product).inputs().front());
    if (pair == kNone || !graph::is_dequantize_linear(at(pair)) || reader_of(pair) == kNone) return false;
    const int maker = index_.producer(at(pair).inputs().front());
    return maker != kNone && graph::is_quantize_linear(at(maker)) && reader_of(maker) != kNone;
  }

  void follow(int first) {
    std::vector<int> products{first};
    for (int next = reader_of(first); next != kNone; next = reader_of(next)) {
      if (is_of_few_rows(at(next))) {
        products.push_back(next);
      } else if (!stands_between(at(next))) {
        break;
      }
    }
    if (products.size() < 2) return;
    const bool wrong = std::any_of(products.begin(), products.end(), [&](int p) { return loses_zero_point(p); });
    const auto kind = wrong ? ChainOutcome::wrong : quantizes(first) ? ChainOutcome::floats : ChainOutcome::integers;
    for (const int product : products) joined_.emplace(product, kind);
  }

  const onnx::Model& model_;
  const graph::Index& index_;
  const graph::ValueTypes& types_;
  std::unordered_map<int, ChainOutcome> joined_;
};

}  // namespace

std::unordered_map<int, ChainOutcome> outcome_of_chained_products(const onnx::Model& model, const graph::Index& index,
                                                                  const graph::ValueTypes& types) {
  return Rows(model, index, types).run();
}

}  // namespace detent::checking
