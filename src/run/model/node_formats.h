// Which formats each node of a model can have, and which the user gave it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "config/node_formats.h"
#include "detent/config.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Of each node; fp32 is among them for products, tables and recurrent layers, and others have none. Convolutions have
/// no blocks: a runtime would make floats of them at each run.
using PossibleFormats = std::vector<std::set<config::NodeFormat>>;
PossibleFormats possible_formats(const Prepared& prepared, const QuantConfig& config);

/// Of each node, by entries as in QuantizeOptions::node_formats; fp32 where none is given. Throws usage for entries
/// that match nothing, and for a format that none of the nodes of an entry, or the named node, can have.
std::vector<config::NodeFormat> given_formats(const Prepared& prepared, const PossibleFormats& possible,
                                              const std::vector<std::string>& entries);

/// The node's name as an entry of a list of names: one that looks like a pattern becomes one that matches it alone.
std::string entry_of(const std::string& node);

/// The options of the runs that make formats, for nodes by their names: `dynamic`, then static ones. Weights in blocks
/// have their bits as WeightsOnlyConfig::node_bits.
struct NodesByFormat {
  std::vector<std::string> blocks, block_bits;
  std::vector<std::string> dynamic;
  std::set<std::string> stored;  // by Node::id(), for quantization::store_weights()
  std::vector<std::string> fixed, wide, in_float;
};
NodesByFormat nodes_by_format(const Prepared& prepared, const PossibleFormats& possible,
                              const std::vector<config::NodeFormat>& formats);

}  // namespace detent::run
