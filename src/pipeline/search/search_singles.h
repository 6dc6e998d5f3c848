// Models of one format, whose figures a search shows beside those of its mixtures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/node_formats.h"
#include "pipeline/run.h"
#include "pipeline/search/search_candidates.h"

namespace detent::pipeline {

struct SingleFormat {
  std::string name;
  config::NodeFormat format;
  searching::Choice choice;
  bool runs_alone = false;  // its remedies suit no mixture: it is made by a run of its own
};

/// Those that a run of int8 would leave in float by what is measured on samples, which ranks share; none where int8 is
/// not among the formats.
std::vector<std::string> nodes_that_would_fall_back(Run& run, std::span<const config::NodeFormat> formats);

/// Each of these formats but fp32, with the layers in float that a run of it would leave there: of int8 those that this
/// machine runs faster in float and those that would fall back, of "int8-for-size" the latter alone. Runs of
/// a16w8 choose ranges and tune weights for 16 bits. `run` as for find_candidates().
std::vector<SingleFormat> single_formats(Run& run, const Candidates& candidates,
                                         std::span<const config::NodeFormat> formats,
                                         const std::vector<std::string>& would_fall_back);

}  // namespace detent::pipeline
