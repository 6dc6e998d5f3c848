// All JSON that is read and written: files of users, of other programs and of earlier runs, and what detent prints.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace detent {

/// More than any file has that detent is given: work on JSON recurses, indentation grows with the depth, and each value
/// takes far more memory than text.
inline constexpr std::size_t kMostJsonLevels = 64;
inline constexpr std::size_t kMostJsonValues = 1'000'000;

/// The value that a text is, in linear time; nothing where it is no JSON (which is UTF-8), nests deeper than
/// kMostJsonLevels or has more values than kMostJsonValues. Of members with the same name the last one counts.
/// Json is nlohmann::json, or nlohmann::ordered_json for members in the order of the file.
template <class Json>
std::optional<Json> parse_json(std::string_view text);
std::optional<nlohmann::json> parse_json(std::string_view text);

/// On one line, or with so many spaces for each level. What is not UTF-8 becomes U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// An object on one line for the next run of detent, with a checksum as a member "sum", and the object without it
/// again; nothing where it is not as it was written.
std::string sealed_json_text(nlohmann::json object);
std::optional<nlohmann::json> parse_sealed_json(std::string_view text);

/// A name that has to come back as it was, whatever bytes it has: a string, or {"hex": "…"} where it is not UTF-8.
nlohmann::json json_of_name(std::string_view name);
/// The name; nothing for what json_of_name() does not make.
std::optional<std::string> name_of_json(const nlohmann::json& value);

}  // namespace detent
