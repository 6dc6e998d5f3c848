// Holds one array's type and shape against what the model expects of the input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sample.h"

namespace detent::data {

enum class Fit {
  exact,
  rows_differ,  // only the length of axis 0 is not what the model fixes: splitting or joining can mend it
};

/// Throws bad_input on a mismatch. A single row that lacks the batch axis gets a leading 1 in `shape`.
Fit fit_to_input(const InputSpec& input, onnx::DataType type, std::vector<std::int64_t>& shape,
                 const std::string& where);

[[noreturn]] void throw_mismatch(const InputSpec& input, onnx::DataType type, const std::vector<std::int64_t>& shape,
                                 const std::string& where);

}  // namespace detent::data
