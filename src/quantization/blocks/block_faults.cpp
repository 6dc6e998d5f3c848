#include "quantization/blocks/block_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/printable.h"
#include "graph/traits.h"
#include "quantization/blocks/block_layout.h"

namespace detent::quantization {

// Four integers of 2 bits fill a byte: the runtime packs a product's weight as if each row of it began with one. Of
// bodies it folds no constants of 2 bits, which a product takes from its own graph alone.
std::string reason_against_blocks(const onnx::Node& node, WeightForm form, int bits, std::int64_t columns) {
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

std::uint64_t bytes_in_blocks(const onnx::Tensor& weight, std::int64_t rows, std::int64_t columns,
                              const BlockFormat& format) {
  const auto blocks = static_cast<std::size_t>(format.blocks_of(rows));
  const std::size_t integers = packed_bytes(blocks * static_cast<std::size_t>(format.block_of(rows)), format.bits);
  const std::size_t value = *onnx::byte_count(weight.type, 1);
  const std::size_t scale = format.scales == ScaleType::as_weight ? value : 1;
  return static_cast<std::uint64_t>(columns) * (integers + blocks * scale);
}

bool makes_much_smaller(const onnx::Tensor& weight, std::int64_t rows, std::int64_t columns,
                        const BlockFormat& format) {
  const std::size_t value = *onnx::byte_count(weight.type, 1);
  const auto stored = bytes_in_blocks(weight, rows, columns, format);
  const auto size = weight.data.size();
  return value == sizeof(float) ? stored * 2 <= size : stored * 4 <= size * 3;
}

std::vector<std::string> notes_of_copies(const onnx::Model& model, const BlockTensor& tensor, WeightForm form) {
  std::vector<std::string> notes;
  const auto name = printable(model.graph.initializers[tensor.initializer].name);
  if (!tensor.products.empty() && !tensor.tables.empty() && !tensor.shared)
    notes.push_back(fmt::format("weight '{}' is stored twice, for products and as a table, since {}", name,
                                !tensor.format.is_plain() ? "runtimes transpose no floats of 8 and 4 bits"
                                : form == WeightForm::qdq
                                    ? "ONNX Runtime fuses no product that shares scales of whole channels; blocks are "
                                      "stored once"
                                    : "ONNX Runtime 1.24 looks up wrong values where zero points do not fill bytes; "
                                      "--set weight-symmetric stores it once"));
  if (!tensor.products.empty() && tensor.stays)
    notes.push_back(fmt::format("weight '{}' stays in float as well, for other nodes that read it", name));
  std::map<int, std::size_t> in_body;
  for (const auto n : tensor.products) ++in_body[model.graph.nodes[n].body()];
  if (tensor.shared) --in_body[model.graph.nodes[tensor.products.front()].body()];
  std::size_t copies = 0;
  for (const auto& [body, count] : in_body) copies = std::max(copies, count);
  if (form == WeightForm::qdq && copies > 1)
    notes.push_back(fmt::format(
        "weight '{}' has a DequantizeLinear with tensors of its own for each of {} products, since ONNX "
        "Runtime fuses no other; in a file beside the model (--set external-data-threshold) they share their data",
        name, copies));
  return notes;
}

}  // namespace detent::quantization
