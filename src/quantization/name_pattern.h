// Names of nodes or tensors as users give them.
#pragma once

#include <optional>
#include <regex>
#include <string>

namespace detent::quantization {

/// An exact name, or a regular expression (ECMAScript, over the whole name) when it starts with '^'.
class NamePattern {
 public:
  /// Throws usage for a bad expression.
  explicit NamePattern(const std::string& text);
  bool matches(const std::string& name) const { return regex_ ? std::regex_match(name, *regex_) : name == text_; }

 private:
  std::string text_;
  std::optional<std::regex> regex_;
};

}  // namespace detent::quantization
