#include "checking/qparam_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/traits.h"
#include "quantization/formats.h"

namespace detent::checking {
namespace {

bool wants(const config::Target& target, std::string_view option, std::string_view value) {
  return std::any_of(target.settings.begin(), target.settings.end(),
                     [&](const auto& s) { return s.option == option && s.value == value; });
}

bool is_power_of_two(double scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5;
}

bool all_powers_of_two(const Form& form) {
  return std::all_of(form.scales.begin(), form.scales.end(), is_power_of_two);
}

bool has_quantized_output(const Signature& forms) { return !forms.output.scales.empty(); }

Violation fixed_range(const onnx::Node& node, const Signature& forms, const config::Target& target) {
  // The HTP runs other grids on integers too; these are what ONNX Runtime's configuration for it asks for.
  if (target.htp_rewrites) return {};
  for (const auto& fixed : target.fixed_ranges) {
    const auto type = fixed.type == QuantType::int8 ? "s8" : "u16";
    if (!node.is(fixed.op_type) || !has_quantized_output(forms) || !forms.output.text.starts_with(type)) continue;
    const auto expected = quantization::compute_params(fixed.low, fixed.high, {fixed.type});
    const bool fits = forms.output.scales.front() == static_cast<double>(expected.scale) &&
                      forms.output.zero_point == expected.zero_point;
    if (!fits)
      return {fmt::format("results of {} have scale {} and zero point {}", fixed.op_type, expected.scale,
                          expected.zero_point),
              "quantize with this target"};
  }
  return {};
}

Violation alignment(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, const Signature& forms,
                    const config::Target& target) {
  if (!target.aligns(node.op_type()) || !has_quantized_output(forms)) return {};
  for (std::size_t i = 0; i < node.inputs().size(); ++i) {
    const auto form = form_of_input(model, index, node, i);
    if (form.is_constant || form.scales.empty()) continue;
    // What comes from outside has the scale that its own values ask for.
    const auto& pair = model.graph.nodes[static_cast<std::size_t>(index.producer(node.inputs()[i]))];
    const int maker = index.producer(pair.inputs().front());
    if (maker != graph::kNone) {
      const auto& read = model.graph.nodes[static_cast<std::size_t>(maker)].inputs();
      if (!read.empty() && index.is_input(read.front())) continue;
    }
    if (form.scales == forms.output.scales && form.zero_point == forms.output.zero_point) continue;
    return {fmt::format("inputs and output of {} have one scale", node.op_type()), "quantize with this target"};
  }
  return {};
}

}  // namespace

Violation violation(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, const Signature& forms,
                    const config::Target& target) {
  if (wants(target, "power-of-two-scale", "true") &&
      !(all_powers_of_two(forms.first) && all_powers_of_two(forms.second) && all_powers_of_two(forms.output)))
    return {"scales are powers of two", "quantize with --set power-of-two-scale"};
  if (target.explicit_convolutions && graph::has_trait(node, graph::Trait::convolution) &&
      (node.attribute("kernel_shape") == nullptr || node.attribute("strides") == nullptr ||
       node.attribute("dilations") == nullptr || node.attribute("group") == nullptr))
    return {"convolutions have all their attributes", "quantize with this target"};
  if (auto broken = fixed_range(node, forms, target); !broken.rule.empty()) return broken;
  return alignment(model, index, node, forms, target);
}

}  // namespace detent::checking
