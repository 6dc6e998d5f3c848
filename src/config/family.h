// Several results of one model: what each of them is.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option.h"
#include "detent/error.h"
#include "detent/quantize.h"

namespace detent::config {

struct FamilyRow {
  std::string_view name;                            // as transformers.js calls the type
  std::string_view suffix;                          // that it looks for at the end of a file's name
  std::string_view means;                           // the options of a single run, in words
  void (*set)(QuantizeOptions& options) = nullptr;  // null: the float model as it is
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
