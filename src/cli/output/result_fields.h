// What a result of `detent quantize --json` says, in words; what it does not have is "".
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace detent::cli {

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

}  // namespace detent::cli
