// Results of quantize side by side, as text that reads well on a terminal and in a pull request.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace detent::cli {

/// A Markdown table with a column for each result, and below it what speaks for and against each. `results` are as
/// `detent quantize --json` prints them; what one does not have is left empty.
std::string markdown_table(std::span<const nlohmann::json> results);

}  // namespace detent::cli
