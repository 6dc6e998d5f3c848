// Values of options as texts and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/option.h"

namespace detent::config {

/// Sets a member. `texts` are the value, or the entries of a list; `name` is the option as the user wrote it, for
/// errors: "--set percentile". Throws usage for a text that is no value of the member.
void assign(const Option& option, const Member& member, const std::vector<std::string>& texts, std::string_view name);

/// Whether a text is a list of values with commas between them.
bool is_list(const Member& member);
/// Whether an option without a value means `true`.
bool is_flag(const Member& member);
std::vector<std::string> split_list(const std::string& text);

std::string text_of(const Member& member, Form form = Form::by_type);
nlohmann::json json_of(const Member& member);

/// Gives a member the value of another of the same type.
void copy(const Member& from, const Member& to);

/// The kind of value in one word, for the schema's readers: "flag", "integer", "number", "text", "path", "choice", …
std::string_view type_of(const Member& member, Form form);

}  // namespace detent::config
