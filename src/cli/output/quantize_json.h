// What `detent quantize --json` prints.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "detent/quantize.h"

namespace detent::cli {

nlohmann::json quantize_json(const QuantizeOptions& options, const QuantizeResult& result);

/// Whether roundings were measured and acted on; without, there is only what came of them.
bool has_remedies(const QuantizeOptions& options, const QuantizeResult& result);

}  // namespace detent::cli
