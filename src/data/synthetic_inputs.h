// Inputs for a model of which there are no samples.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"

namespace detent::data {

/// How inputs are made up.
struct MadeUp {
  double from = 0, to = 1;         // of floats
  bool begins_with_zeros = false;  // a quarter of each array of floats, as silence and black are
  std::int64_t pixels = 224;       // height and width of a picture that says neither
  std::int64_t steps = 128;        // any other free dimension
};

/// One array for each input, the same at every call: floats as `how` says, bytes as of a picture, all other integers 1.
/// `shapes` says what is not declared, or differs. Other free dimensions become 1 (the first axis), 3 (the channels of
/// a picture, if they are free as well), or what `how` says. Throws bad_input where a shape given does not fit the
/// input, or the rank is unknown.
/// `values` are those of --input.
std::vector<Array> synthetic_inputs(std::span<const InputSpec> inputs,
                                    const std::map<std::string, std::vector<std::int64_t>>& shapes,
                                    std::span<const std::string> values = {}, const MadeUp& how = {});

}  // namespace detent::data
