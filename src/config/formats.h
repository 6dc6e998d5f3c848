// Formats: what comes out, by one word, as data. A new one is one more row in formats.cpp.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"
#include "config/targets.h"

namespace detent::config {

struct Format {
  std::string_view name;
  std::string_view help;
  /// The options that make it. A setting without a value leaves the option as it is, and names the values that may be
  /// given beside the format.
  std::vector<Setting> settings;
};

const std::vector<Format>& formats();
/// The names, each with what it means.
std::vector<std::pair<std::string, std::string>> format_names();

/// Throws usage when there is none of this name.
const Format& format(std::string_view name);

/// Gives options the values that make the format.
void apply(const Format& format, QuantizeOptions& options);

/// The same for options that a user gave, by their paths, to which those that the format sets are added. Throws usage
/// for one that says what comes out as well, and something else.
void apply(const Format& format, QuantizeOptions& options, std::vector<std::string_view>& given);

/// Throws usage unless options have the values that make the format which they name (QuantizeOptions::format).
void check_format(const QuantizeOptions& options);

}  // namespace detent::config
