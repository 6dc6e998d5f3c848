// Results of quantize side by side: as text that reads well on a terminal and in a pull request, and as a page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace detent::cli {

// What a result of `detent quantize --json` says, in words; what it does not have is "".

/// The value at a JSON pointer, or null.
const nlohmann::json& value_at(const nlohmann::json& result, const char* pointer);
/// A text, or the texts of a list with spaces between them.
std::string text_of(const nlohmann::json& value);
/// The numbers there; the default where it is none.
double number_at(const nlohmann::json& result, const char* pointer, double otherwise);

/// The output's file name.
std::string name_of(const nlohmann::json& result);
/// "ready to use", "look first" or "not close enough".
std::string answer_of(const nlohmann::json& result);
/// Whether its latency was measured on a machine that was not busy.
bool has_latency(const nlohmann::json& result);
/// The options that it was made with, less model, data and output: "format q4, samples 8".
std::string options_of(const nlohmann::json& result);
/// Where the float model and the samples are.
std::string sources_of(const nlohmann::json& result);

/// The members of families in the place of these, each with what was said for all.
std::vector<nlohmann::json> single_results(std::vector<nlohmann::json> results);

// Results of quantize side by side, as text that reads well on a terminal and in a pull request.

/// A Markdown table with a column for each result, and below it what speaks for and against each. `results` are as
/// `detent quantize --json` prints them; what one does not have is left empty.
std::string markdown_table(std::span<const nlohmann::json> results);

// Results of quantize side by side, as a page with a picture of size, latency and accuracy.

/// An HTML page of its own. `results` are as for markdown_table(); what lacks a latency or an accuracy stands below the
/// picture alone.
std::string comparison_page(std::span<const nlohmann::json> results);

}  // namespace detent::cli
