#include "checking/qnn_rules.h"

namespace detent::checking {

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
