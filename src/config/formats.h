// Formats: what comes out, by one word, as data. A new one is one more row in formats.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"
#include "config/targets.h"
#include "detent/error.h"
#include "detent/quantize.h"

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

/// A kind of result, which has stages and an emitter of its own.
struct ResultKind {
  Result result;
  bool (*is_asked_for)(const QuantizeOptions&);  // where no kind before it in the table is
  /// The error for an option that means nothing to it, after the option's name, and its hint.
  std::string_view without_meaning, hint;
  std::string_view reason_against_running = {};  // by ONNX Runtime's CPU, whatever else the options say
};

/// What a run makes of these options, which name one result (no family).
const ResultKind& kind_of(const QuantizeOptions& options);
inline Result result_of(const QuantizeOptions& options) { return kind_of(options).result; }

/// Several results of one model: what each of them is.
struct FamilyRow {
  std::string_view name;    // as transformers.js calls the type
  std::string_view suffix;  // that it looks for at the end of a file's name
  std::string_view format;  // that it has; empty: the float model as it is
};

/// What QuantizeOptions::family names, in its order. Throws usage for names that are none, or given twice.
std::vector<const FamilyRow*> family_of(const QuantizeOptions& options);

/// The members with what they mean.
std::vector<std::pair<std::string, std::string>> family_names();

/// The options of a single run that makes the member.
QuantizeOptions options_of(const FamilyRow& member, QuantizeOptions options);

/// Paths of options that each member has a value of its own for, or of which there is one for each result.
std::span<const std::string_view> options_set_by_member();

/// What is said of such an option.
Error refused_beside_family(const Option& option);

}  // namespace detent::config
