// Names of nodes or tensors as users give them.
#pragma once

#include <optional>
#include <string>

#include "base/pattern.h"

namespace detent::quantization {

/// An exact name, or a regular expression (RE2's syntax, over the whole name) when it starts with '^'.
class NamePattern {
 public:
  /// Throws usage for a bad expression.
  explicit NamePattern(const std::string& text);
  bool matches(const std::string& name) const { return pattern_ ? pattern_->matches_whole(name) : name == text_; }

 private:
  std::string text_;
  std::optional<Pattern> pattern_;
};

}  // namespace detent::quantization
