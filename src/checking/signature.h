// In what form a node of a quantized model reads and makes its values: what a runtime chooses the kernel by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/targets.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::checking {

/// Type, zero point and scales of a quantized value. Text forms, as in the tables: "u8", "s8", …, "=" after it where
/// the zero point is in the middle of the type; of constants "/c" for a scale for each channel, "/t" for one, "/b" for
/// blocks. "f32": not quantized; "-": there is no such value.
struct Form {
  std::string text = "f32";
  bool is_constant = false;
  std::vector<double> scales = {};  // empty: not quantized, or not constant
  std::int64_t zero_point = 0;      // of the first slice
};

struct Signature {
  Form first, second, output;
};

/// The forms of a node that is no Q/DQ itself. An output that only a Relu or Clip reads has the form of that one's
/// output, where it has none of its own and the target fuses the two.
Signature signature_of(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                       const config::Target& target);

/// Whether it is a Relu or Clip that alone reads what a product makes in float, and fuses with it.
bool fuses_with_product(const onnx::Model& model, const graph::Index& index, const onnx::Node& node);

/// Likewise, of all activations and makers that the target fuses.
bool fuses_with_maker(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                      const config::Target& target);

/// The form of the value that a node reads as its input `i`.
Form form_of_input(const onnx::Model& model, const graph::Index& index, const onnx::Node& node, std::size_t i);

}  // namespace detent::checking
