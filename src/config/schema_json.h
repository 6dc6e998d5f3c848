// The schema for what is not C++: the Python package, and the script that writes documentation and completions.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace detent::config {

/// {"options": [{"name": "per-channel", "path": "config.per_channel", …}, …], "presets": [{"name": …, "help": …}, …],
/// "conflicts": [{"why": …, "hint": …}, …]}
nlohmann::json schema_json();

}  // namespace detent::config
