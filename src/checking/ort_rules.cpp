#include "checking/ort_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "graph/traits.h"

namespace detent::checking {
namespace {

using graph::kNone;

const onnx::Node& at(const onnx::Model& model, int n) { return model.graph.nodes[static_cast<std::size_t>(n)]; }

// Who reads a value but for its shape, which is known before the model runs.
std::size_t readers(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto all = index.consumers(value);
  const auto reads = [&](int n) { return !at(model, n).is("Shape"); };
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), reads)) + (index.is_output(value) ? 1 : 0);
}

// Who reads what a QuantizeLinear made, behind the DequantizeLinears.
std::size_t times_dequantized(const onnx::Model& model, const graph::Index& index, const std::string& integers) {
  std::size_t times = index.is_output(integers) ? 1 : 0;
  for (const int reader : index.consumers(integers)) {
    const auto& node = at(model, reader);
    if (!graph::is_dequantize_linear(node) || node.outputs().empty()) return 2;  // on integers
    times += readers(model, index, node.outputs().front());
  }
  return times;
}

// Whether int8 values of a QuantizeLinear stay so.
bool stays_int8(const onnx::Model& model, const graph::Index& index, const std::string& integers) {
  return times_dequantized(model, index, integers) > 1;
}

// Of an input in 8 bits with a sign: whether it stays so; nothing: it is another, or a constant.
std::optional<bool> input_stays_int8(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                                     std::size_t i) {
  const auto form = form_of_input(model, index, node, i);
  if (form.is_constant || !form.text.starts_with("s8")) return std::nullopt;
  return stays_int8(model, index, at(model, index.producer(node.inputs()[i])).inputs().front());
}

std::optional<bool> output_stays_int8(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (node.outputs().empty()) return std::nullopt;
  for (const int reader : index.consumers(node.outputs().front())) {
    const auto& quantizer = at(model, reader);
    if (graph::is_quantize_linear(quantizer)) return stays_int8(model, index, quantizer.outputs().front());
    const auto behind =
        fuses_with_product(model, index, quantizer) ? output_stays_int8(model, index, quantizer) : std::nullopt;
    if (behind) return behind;
  }
  return std::nullopt;
}

const onnx::Tensor* constant(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                             std::size_t i) {
  const int tensor = i < node.inputs().size() ? index.initializer(node.inputs()[i]) : kNone;
  return tensor == kNone ? nullptr : &model.graph.initializers[static_cast<std::size_t>(tensor)];
}

bool has_float16_scale(const onnx::Model& model, const graph::Index& index, const onnx::Node& pair) {
  const auto* scale = constant(model, index, pair, 1);
  return scale != nullptr && scale->type == onnx::DataType::float16;
}

struct Bounds {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};

std::optional<Bounds> bounds_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  Bounds bounds;
  if (node.is("Relu")) {
    bounds.low = 0;
    return bounds;
  }
  const auto set = [&](std::size_t i, const char* name, double& bound) {
    if (i < node.inputs().size() && !node.inputs()[i].empty()) {
      const auto* tensor = constant(model, index, node, i);
      if (tensor == nullptr || tensor->count() != 1) return false;
      bound = onnx::to_doubles(*tensor).front();
    } else {
      bound = node.float_or(name, static_cast<float>(bound));
    }
    return true;
  };
  if (!set(1, "min", bounds.low) || !set(2, "max", bounds.high)) return std::nullopt;
  return bounds;
}

std::optional<std::pair<double, double>> limits_of(std::string_view form) {
  if (form.starts_with("u8")) return std::pair{0.0, 255.0};
  if (form.starts_with("s8")) return std::pair{-128.0, 127.0};
  return std::nullopt;
}

// Whether integers hold nothing that the Relu or Clip before them would cut off, so that the runtime drops it.
bool is_done_by(const Form& integers, const Bounds& bounds) {
  const auto limits = limits_of(integers.text);
  if (!limits || integers.scales.size() != 1) return false;
  const double scale = integers.scales.front(), epsilon = std::numeric_limits<float>::epsilon();
  const auto value = [&](double q) {
    return static_cast<float>(scale) * (static_cast<float>(q) - static_cast<float>(integers.zero_point));
  };
  return bounds.low - value(limits->first) <= epsilon && value(limits->second) - bounds.high <= epsilon;
}

bool reads_float16_scales(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const auto& value) {
    const int maker = index.producer(value);
    return maker != kNone && graph::is_dequantize_linear(at(model, maker)) &&
           has_float16_scale(model, index, at(model, maker));
  });
}

// Rows of a table are integers as they are stored.
bool comes_from_quantizer(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int pair = index.producer(value);
  if (pair == kNone || !graph::is_dequantize_linear(at(model, pair))) return false;
  const int maker = index.producer(at(model, pair).inputs().front());
  return maker != kNone && graph::is_quantize_linear(at(model, maker));
}

// Also behind what moves values, as the runtime puts pairs before it, and what cuts them off, if the Gemm has no
// Reshape behind it, as where its result is no matrix.
bool reaches_8_bits(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, bool is_matrix) {
  const auto& value = node.outputs().front();
  const auto readers = index.consumers(value);
  if (readers.empty() || index.is_output(value)) return false;
  const auto& reader = at(model, readers.front());
  if (graph::is_quantize_linear(reader)) {
    const auto* zero_point = constant(model, index, reader, 2);
    return zero_point == nullptr || onnx::bits_of(zero_point->type) == 8;
  }
  using graph::Trait;
  const bool moves = graph::has_trait(reader, Trait::renames) || graph::has_trait(reader, Trait::rearranges) ||
                     (is_matrix && graph::has_trait(reader, Trait::clips));
  return moves && readers.size() == 1 && reaches_8_bits(model, index, reader, is_matrix);
}

// The stored weight of a product, behind its pair.
const onnx::Tensor* weight_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const int pair = index.producer(node.inputs()[1]);
  return pair == kNone ? nullptr : constant(model, index, at(model, pair), 0);
}

bool has_one_for_each_output(const onnx::Node& node, const onnx::Tensor* weight, const onnx::Tensor& bias) {
  if (weight == nullptr || bias.dims.size() != 1) return false;
  const auto axis = graph::channel_axis(node, weight->dims.size());
  return axis && *axis < weight->dims.size() && weight->dims[*axis] == bias.dims[0];
}

// Whether a MatMul and the sum behind it become a Gemm: with a vector, or both being matrices.
bool merges_with_sum(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                     const onnx::Tensor& bias, bool is_matrix) {
  if (bias.dims.size() == 2) return is_matrix;
  const auto* weight = weight_of(model, index, node);
  return weight != nullptr && weight->dims.size() == 2 && has_one_for_each_output(node, weight, bias);
}

// Whether a MatMul becomes a Gemm with a constant that the runtime cannot round to int32: it does so of vectors where
// a QuantizeLinear follows, at the product of the scales.
bool keeps_float_bias(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                      const Signature& forms, bool is_matrix) {
  const auto& product = node.outputs().front();
  const auto readers = index.consumers(product);
  if (!node.is("MatMul") || readers.size() != 1 || index.is_output(product) || !forms.second.is_constant) return false;
  const auto& sum = at(model, readers.front());
  if (!sum.is("Add")) return false;
  const auto* bias = constant(model, index, sum, sum.inputs().front() == product ? 1 : 0);
  if (bias == nullptr || forms.first.scales.empty() || forms.second.scales.empty()) return false;
  if (!merges_with_sum(model, index, node, *bias, is_matrix)) return false;
  if (bias->dims.size() == 2 || !reaches_8_bits(model, index, sum, is_matrix)) return true;
  double largest = 0;
  for (const double number : onnx::to_doubles(*bias)) largest = std::max(largest, std::abs(number));
  const auto& steps = forms.second.scales;
  return largest / (forms.first.scales.front() * *std::min_element(steps.begin(), steps.end())) >
         std::numeric_limits<std::int32_t>::max();
}

// The runtime's kernels on integers add a bias in int32 as it is. It rounds a vector so itself where 8 bits follow.
std::string_view bias_in_float(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (!(node.is("Gemm") || node.is("Conv")) || node.inputs().size() < 3 || node.inputs()[2].empty()) return {};
  if (node.is("Gemm") && (node.float_or("alpha", 1) != 1 || node.float_or("beta", 1) != 1))
    return "ONNX Runtime's CPU has no kernel on integers that multiplies by an alpha or beta and adds a bias";
  const int maker = index.producer(node.inputs()[2]);
  if (maker != kNone && graph::is_dequantize_linear(at(model, maker))) return {};
  const auto* bias = constant(model, index, node, 2);
  if (bias != nullptr && has_one_for_each_output(node, weight_of(model, index, node), *bias) &&
      reaches_8_bits(model, index, node, true))
    return {};
  return "its bias is in float";
}

}  // namespace

bool mixes_signs(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  const auto made = output_stays_int8(model, index, node);
  if (!made) {
    // What makes floats of int8 is a Gemm of int8 alone.
    if (!graph::is_matrix_product(node) || input_stays_int8(model, index, node, 0) != true) return false;
    return node.is("MatMul") || input_stays_int8(model, index, node, 1) == false ||
           form_of_input(model, index, node, 1).text.starts_with("u8");
  }
  const bool wants_uint8 = node.is("Conv") || node.is("MatMul");
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    const auto read = input_stays_int8(model, index, node, i);
    if (read && (*read != *made || (*read && wants_uint8))) return true;
  }
  return false;
}

InFloat product_in_float(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                         const Signature& forms, std::optional<std::size_t> merged_rank) {
  if (!graph::is_product(node)) return {};
  const bool reads_uint8 = forms.first.text.starts_with("u8") || input_stays_int8(model, index, node, 0) == false;
  const bool of_activations = node.is("MatMul") && reads_uint8 &&
                              comes_from_quantizer(model, index, node.inputs()[0]) &&
                              comes_from_quantizer(model, index, node.inputs()[1]);
  if (reads_float16_scales(model, index, node) && !of_activations)
    return {"with scales of float16, ONNX Runtime's CPU makes floats of the integers first", "scales of float32"};
  if (forms.second.text.starts_with("s4") || forms.second.text.starts_with("u4"))
    return {"ONNX Runtime's CPU has no kernel of 4-bit weights and integers", "weights of 8 bits"};
  if (node.is("MatMul") && forms.first.is_constant && !forms.first.text.starts_with("u8"))
    return {"its first input is constant, and not of uint8", {}};
  // Weights in float that are constant are rounded by the runtime.
  if (forms.second.text == "f32" && !forms.second.is_constant) return {"its second input is in float", {}};
  if (const auto why = bias_in_float(model, index, node); !why.empty())
    return {why, "a bias in int32, alpha and beta of 1"};
  if (merged_rank && keeps_float_bias(model, index, node, forms, *merged_rank == 2))
    return {"ONNX Runtime's CPU merges it with the sum behind it, whose constant stays in float", {}};
  const auto readers = index.consumers(node.outputs().front());
  const auto* clip = readers.size() == 1 ? &at(model, readers.front()) : nullptr;
  const bool is_clipped = clip != nullptr && fuses_with_product(model, index, *clip);
  if (forms.output.scales.empty()) {
    if (!is_clipped || node.is("Conv") || forms.first.text == "f32") return {};
    return {"ONNX Runtime's CPU has no kernel on integers that makes floats and has the Relu or Clip behind it in it",
            {}};
  }
  const auto kind = [](const Form& form) { return form.text.substr(0, form.text.find('=')); };
  const auto made = kind(forms.output);
  // Pairs of int8 become uint8.
  const bool has_8_bits = made.ends_with("8") && kind(forms.first).ends_with("8");
  const bool is_turned = has_8_bits && comes_from_quantizer(model, index, node.inputs().front());
  if (kind(forms.first) != made && !is_turned)
    return {"ONNX Runtime's CPU has no kernel that makes another type of integers than it reads",
            "one type of activations"};
  if (!is_clipped) return {};
  const auto bounds = bounds_of(model, index, *clip);
  if (bounds && is_done_by(forms.output, *bounds)) return {};
  return {"the Relu or Clip behind it cuts off what the integers hold, and so runs by itself",
          "ranges that end at the bounds"};
}

std::string_view left_to_cpu_despite_table(const onnx::Node& node, const onnx::Model& model, const graph::Index& index,
                                           const Signature& forms) {
  constexpr std::size_t kBias = 2;
  if (!node.is("LayerNormalization") || node.inputs().size() <= kBias) return {};
  const bool has_integers = form_of_input(model, index, node, kBias).text.starts_with("other");  // int32
  const auto& scale = forms.second.text;
  const bool takes_them = scale.starts_with("u8") || scale.starts_with("s16");
  return has_integers && !takes_them ? "a bias of int32 goes with scales of uint8 or int16 alone" : "";
}

}  // namespace detent::checking
