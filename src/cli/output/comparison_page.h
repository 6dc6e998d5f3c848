// Results of quantize side by side, as a page with a picture of size, latency and accuracy.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace detent::cli {

/// An HTML page of its own. `results` are as for markdown_table(); what lacks a latency or an accuracy stands below the
/// picture alone.
std::string comparison_page(std::span<const nlohmann::json> results);

}  // namespace detent::cli
