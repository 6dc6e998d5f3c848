// Formats that single nodes can have: what --node-formats says.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace detent::config {

/// From what is written as it is to the fewest bits. `a16w8`: int8 weights, activations of 16 bits; `dynamic`: int8
/// with scales of activations found while the model runs; `w8`: int8 weights alone, which become floats when the model
/// is loaded; `q8`, `q4`, `q2`: weights alone, in blocks.
enum class NodeFormat { fp32, int8, a16w8, dynamic, w8, q8, q4, q2 };
inline constexpr NodeFormat kNodeFormats[] = {NodeFormat::fp32,    NodeFormat::int8, NodeFormat::a16w8,
                                              NodeFormat::dynamic, NodeFormat::w8,   NodeFormat::q8,
                                              NodeFormat::q4,      NodeFormat::q2};

/// As users write it: "int8-dynamic".
std::string_view name_of(NodeFormat format) noexcept;
/// Throws usage, naming the option, where no format has the name.
NodeFormat node_format(std::string_view name, std::string_view option);

/// Whether scales of activations come from samples.
constexpr bool is_static(NodeFormat format) noexcept {
  return format == NodeFormat::int8 || format == NodeFormat::a16w8;
}
/// Bits of weights in blocks; 0: they are in none.
constexpr int block_bits(NodeFormat format) noexcept {
  return format == NodeFormat::q8 ? 8 : format == NodeFormat::q4 ? 4 : format == NodeFormat::q2 ? 2 : 0;
}

/// An entry of QuantizeOptions::node_formats.
struct NodeFormatEntry {
  std::string pattern;
  NodeFormat format = NodeFormat::fp32;
};
/// Throws usage for a text that is no NODE=FORMAT.
NodeFormatEntry parse_node_format(const std::string& text);

}  // namespace detent::config
