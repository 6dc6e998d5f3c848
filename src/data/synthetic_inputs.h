// Inputs for a model of which there are no samples.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"

namespace detent::data {

/// One array for each input, the same at every call: floats in [0, 1), bytes as of a picture, all other integers 1.
/// `shapes` says what is not declared, or differs. Other free dimensions become 1 (the first axis), 3 (the channels of
/// a picture, if they are free as well), 224 (its height and width) or 128. Throws bad_input where a shape given does
/// not fit the input, or the rank is unknown.
/// `values` are those of --input.
std::vector<Array> synthetic_inputs(std::span<const InputSpec> inputs,
                                    const std::map<std::string, std::vector<std::int64_t>>& shapes,
                                    std::span<const std::string> values = {});

}  // namespace detent::data
