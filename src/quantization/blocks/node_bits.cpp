#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/placement/name_pattern.h"

namespace detent::quantization {

NodeBits parse_node_bits(const std::string& text) {
  const auto equals = text.rfind('=');
  const auto bits = equals == std::string::npos ? std::string() : text.substr(equals + 1);
  if (equals == 0 || (bits != "2" && bits != "4" && bits != "8" && bits != "float"))
    throw usage_error(fmt::format("--set node-bits: '{}' is not a node with its bits", text),
                      "give NODE=2, =4, =8 or =float");
  return {text.substr(0, equals), bits == "float" ? 0 : bits.front() - '0'};
}

std::vector<std::optional<int>> named_bits(const onnx::Model& model, const WeightsOnlyConfig& blocks) {
  std::vector<std::optional<int>> bits(model.graph.nodes.size());
  for (const auto& entry : blocks.node_bits) {
    const auto parsed = parse_node_bits(entry);
    const NamePattern pattern(parsed.pattern);
    bool any = false;
    for (std::size_t n = 0; n < bits.size(); ++n) {
      if (!pattern.matches(model.graph.nodes[n].id())) continue;
      bits[n] = parsed.bits;
      any = true;
    }
    if (!any)
      throw usage_error(
          fmt::format("--set node-bits: no node of '{}' matches '{}'", model.path.string(), parsed.pattern),
          "names are listed by: detent inspect MODEL; a regular expression starts with '^'");
  }
  return bits;
}

}  // namespace detent::quantization
