// The words of each enumeration that an option can take, as spelled on the command line, in YAML and in Python.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <typeinfo>

#include "data/pictures.h"
#include "detent/check.h"
#include "detent/config.h"
#include "detent/device.h"
#include "detent/error.h"
#include "detent/quantize.h"
#include "detent/resources.h"

namespace detent::config {

struct EnumName {
  std::string_view text;
  int value = 0;
};

/// All words of an enumeration, in the order in which help lists them.
std::span<const EnumName> words_of(const std::type_info& enumeration);
template <class Enum>
std::span<const EnumName> enum_names() {
  return words_of(typeid(Enum));
}

/// The word of a value.
std::string_view word_of(std::span<const EnumName> words, int value);

/// The usage error for a text that is none of an option's words; its hint names the nearest, and all.
Error not_one_of(std::string_view option, std::string_view text, std::span<const std::string_view> all);

/// The value of a word. Throws usage with all words when there is none such.
int value_of(std::span<const EnumName> words, std::string_view text, std::string_view option);

/// How a result is printed.
enum class SummaryForm { text, md };

// Formats that single nodes can have: what --node-formats says.

/// From what is written as it is to the fewest bits. `a16w8`: int8 weights, activations of 16 bits; `dynamic`: int8
/// with scales of activations found while the model runs; `w8`: int8 weights alone, which become floats when the model
/// is loaded; `q8`, `q4`, `q2`: weights alone, in blocks.
enum class NodeFormat { fp32, int8, a16w8, dynamic, w8, q8, q4, q2 };
inline constexpr NodeFormat kNodeFormats[] = {NodeFormat::fp32,    NodeFormat::int8, NodeFormat::a16w8,
                                              NodeFormat::dynamic, NodeFormat::w8,   NodeFormat::q8,
                                              NodeFormat::q4,      NodeFormat::q2};

/// As users write it: "int8-dynamic".
std::string_view name_of(NodeFormat format);
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
