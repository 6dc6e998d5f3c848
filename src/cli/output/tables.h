// Results of quantize side by side: as text that reads well on a terminal and in a pull request, and as a page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace detent::cli {

// What a result of `detent quantize --json` says, in words; what it does not have is "".

/// The options that it was made with, less model, data and output: "format q4, samples 8".
std::string options_of(const nlohmann::json& result);

/// The members of families in the place of these, each with what was said for all.
std::vector<nlohmann::json> single_results(std::vector<nlohmann::json> results);

/// A Markdown table with a column for each result, and below it what speaks for and against each. `results` are as
/// `detent quantize --json` prints them; what one does not have is left empty.
std::string markdown_table(std::span<const nlohmann::json> results);

/// An HTML page of its own. `results` are as for markdown_table(); what lacks a latency or an accuracy stands below the
/// picture alone.
std::string comparison_page(std::span<const nlohmann::json> results);

}  // namespace detent::cli
