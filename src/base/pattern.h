// Regular expressions in time linear in the text, whatever the expression: names come from models, and may be long.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace re2 {
class RE2;
}

namespace detent {

/// An expression in RE2's syntax: that of ECMAScript without look-ahead and back-references. Text is taken byte by
/// byte. Cheap to copy.
class Pattern {
 public:
  /// Throws usage for a bad expression, or one that grows too large.
  explicit Pattern(const std::string& expression);
  bool matches_whole(std::string_view text) const;
  /// `text` with `replacement` in place of every match.
  std::string replace_all(std::string text, std::string_view replacement) const;

 private:
  std::shared_ptr<const re2::RE2> compiled_;
};

}  // namespace detent
