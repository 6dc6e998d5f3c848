#include "quantization/name_pattern.h"

#include <fmt/format.h>

#include "base/error.h"

namespace detent::quantization {

NamePattern::NamePattern(const std::string& text) : text_(text) {
  if (!text.starts_with('^')) return;
  try {
    regex_.emplace(text);
  } catch (const std::regex_error& e) {
    throw usage_error(fmt::format("'{}' is not a valid regular expression ({})", text, e.what()));
  }
}

}  // namespace detent::quantization
