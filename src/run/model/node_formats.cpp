#include "run/model/node_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/dynamic.h"
#include "quantization/emit/stored_weights.h"
#include "quantization/placement/integer_chains.h"
#include "quantization/placement/left_in_float.h"
#include "quantization/placement/selection.h"

namespace detent::run {
namespace {

using config::NodeFormat;

void add_static(const Prepared& prepared, QuantConfig config, PossibleFormats& possible) {
  config.formats_given = true;
  const auto placement = place_qdq_pairs(prepared, config);
  const auto& nodes = prepared.model.graph.nodes;
  const graph::Index index(prepared.model);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const bool starts = graph::is_product(nodes[n]) || quantization::is_table(nodes[n], index);
    if (!starts || !placement.selected[n]) continue;
    const auto read = static_cast<std::size_t>(graph::is_product(nodes[n]) ? 2 : 1);
    const auto& inputs = nodes[n].inputs();
    const bool marked =
        inputs.size() >= read && std::all_of(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(read),
                                             [&](const auto& value) { return placement.find(value) != nullptr; });
    if (!marked) continue;
    possible[n].insert(NodeFormat::int8);
    if (graph::is_product(nodes[n])) possible[n].insert(NodeFormat::a16w8);
  }
}

void add_dynamic(const Prepared& prepared, QuantConfig config, PossibleFormats& possible) {
  config.activations = Activations::dynamic;
  for (const auto n : quantization::dynamic_nodes(prepared.model, config)) possible[n].insert(NodeFormat::dynamic);
}

void add_blocks(const Prepared& prepared, const QuantConfig& config, PossibleFormats& possible) {
  for (const auto format : {NodeFormat::q8, NodeFormat::q4, NodeFormat::q2}) {
    WeightsOnlyConfig blocks;
    blocks.enabled = true;
    blocks.bits = static_cast<WeightBits>(config::block_bits(format));
    for (const auto& tensor : quantization::place_blocks(prepared.model, config, blocks).tensors) {
      for (const auto n : tensor.products) possible[n].insert(format);
      for (const auto n : tensor.tables) possible[n].insert(format);
    }
  }
}

void add_stored(const Prepared& prepared, const QuantConfig& config, PossibleFormats& possible) {
  const auto& nodes = prepared.model.graph.nodes;
  const auto products = quantization::products_to_store(prepared.model, config);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (products.contains(nodes[n].id())) possible[n].insert(NodeFormat::w8);
  }
  for (const auto n : quantization::layers_to_store(prepared.model, config)) possible[n].insert(NodeFormat::w8);
}

// What an entry matches: at least one node that can have its format.
std::vector<std::size_t> nodes_for(const Prepared& prepared, const PossibleFormats& possible,
                                   const config::NodeFormatEntry& entry) {
  auto nodes = quantization::match_nodes(prepared.model, entry.pattern, "--node-formats");
  const auto first = nodes.front();
  const bool alone = !entry.pattern.starts_with('^');
  std::erase_if(nodes, [&](std::size_t n) { return !possible[n].contains(entry.format); });
  if (!nodes.empty()) return nodes;
  const auto& node = prepared.model.graph.nodes[first];
  std::vector<std::string_view> can;
  for (const auto format : possible[first]) can.push_back(config::name_of(format));
  throw usage_error(
      alone ? fmt::format("--node-formats: {} cannot be {}", node.label(), config::name_of(entry.format))
            : fmt::format("--node-formats: no node that '{}' matches can be {}; the first is {}", entry.pattern,
                          config::name_of(entry.format), node.label()),
      can.empty() ? "it has no format of its own: name products, tables and recurrent layers with constant weights"
                  : fmt::format("it can be {}", fmt::join(can, ", ")));
}

}  // namespace

PossibleFormats possible_formats(const Prepared& prepared, const QuantConfig& config) {
  PossibleFormats possible(prepared.model.graph.nodes.size());
  add_static(prepared, config, possible);
  add_dynamic(prepared, config, possible);
  add_blocks(prepared, config, possible);
  add_stored(prepared, config, possible);
  const graph::Index index(prepared.model);
  for (std::size_t n = 0; n < possible.size(); ++n) {
    const auto& node = prepared.model.graph.nodes[n];
    const bool has_weights =
        (graph::is_product(node) && !quantization::reads_empty_weight(prepared.model, index, node)) ||
        graph::is_recurrent(node);
    if (has_weights || !possible[n].empty()) possible[n].insert(NodeFormat::fp32);
  }
  return possible;
}

std::vector<NodeFormat> given_formats(const Prepared& prepared, const PossibleFormats& possible,
                                      const std::vector<std::string>& entries) {
  std::vector<NodeFormat> formats(prepared.model.graph.nodes.size(), NodeFormat::fp32);
  for (const auto& text : entries) {
    const auto entry = config::parse_node_format(text);
    for (const auto n : nodes_for(prepared, possible, entry)) formats[n] = entry.format;
  }
  return formats;
}

std::string entry_of(const std::string& node) {
  if (!node.starts_with('^')) return node;
  std::string pattern = "^";
  for (const char c : node) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0 && c != '_') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

NodesByFormat nodes_by_format(const Prepared& prepared, const PossibleFormats& possible,
                              const std::vector<NodeFormat>& formats) {
  NodesByFormat steps;
  for (std::size_t n = 0; n < formats.size(); ++n) {
    if (possible[n].empty()) continue;
    const auto name = entry_of(prepared.model.graph.nodes[n].id());
    if (const int bits = config::block_bits(formats[n]); bits != 0) {
      steps.blocks.push_back(name);
      steps.block_bits.push_back(fmt::format("{}={}", name, bits));
    } else if (formats[n] == NodeFormat::dynamic) {
      steps.dynamic.push_back(name);
    } else if (config::is_static(formats[n])) {
      steps.fixed.push_back(name);
      if (formats[n] == NodeFormat::a16w8) steps.wide.push_back(name);
    } else {
      if (possible[n].contains(NodeFormat::int8)) steps.in_float.push_back(name);
      if (formats[n] == NodeFormat::w8) steps.stored.insert(prepared.model.graph.nodes[n].id());
    }
  }
  return steps;
}

}  // namespace detent::run
