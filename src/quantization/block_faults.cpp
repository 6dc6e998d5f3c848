#include "quantization/block_faults.h"

#include "graph/traits.h"

namespace detent::quantization {

// Four integers of 2 bits fill a byte: the runtime packs a product's weight as if each row of it began with one. Of
// bodies it folds no constants of 2 bits, which a product takes from its own graph alone.
std::string reason_of_runtime(const onnx::Node& node, WeightForm form, int bits, std::int64_t columns) {
  constexpr std::int64_t kInByte = 4;
  if (bits != 2) return {};
  if (node.is("Gather")) return "most versions of ONNX Runtime look up no 2 bits";
  if (form != WeightForm::qdq || !graph::is_product(node)) return {};
  if (columns % kInByte != 0)
    return "ONNX Runtime computes a DequantizeLinear of 2 bits wrongly where the outputs of its product are no "
           "multiple "
           "of 4; --set weights-form=matmul-nbits stores it";
  if (node.body() != 0)
    return "ONNX Runtime loads no DequantizeLinear of 2 bits in a body; --set weights-form=matmul-nbits stores it";
  return {};
}

}  // namespace detent::quantization
