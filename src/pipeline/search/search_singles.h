// Models of one format, whose figures a search shows beside those of its mixtures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/node_formats.h"
#include "pipeline/run.h"
#include "pipeline/search/search_candidates.h"

namespace detent::pipeline {

/// What `--format int8 --optimize-for size` makes; "int8" is without that option.
inline constexpr const char* kInt8ForSize = "int8-for-size";

struct SingleFormat {
  std::string name;
  config::NodeFormat format;
  /// For models that run alone an estimate: what their remedies leave in float is not known before.
  searching::Choice choice;
  bool runs_alone = false;  // its ranges and weights suit no mixture: it is made by a run of its own
};

/// Each of these formats but fp32. Of int8 there are two: one with those layers in float that this machine runs faster
/// so, and one for size. `run` as for find_candidates().
std::vector<SingleFormat> single_formats(Run& run, const Candidates& candidates,
                                         std::span<const config::NodeFormat> formats);

}  // namespace detent::pipeline
