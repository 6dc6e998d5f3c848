#include "base/pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include "base/error.h"

namespace detent {
namespace {

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Pattern::Pattern(const std::string& expression) {
  RE2::Options options;
  options.set_log_errors(false);
  options.set_encoding(RE2::Options::EncodingLatin1);  // names need not be UTF-8
  auto compiled = std::make_shared<RE2>(expression, options);
  if (!compiled->ok()) {
    throw usage_error(fmt::format("'{}' is not a valid regular expression ({})", expression, compiled->error()),
                      "the syntax is RE2's: no look-ahead, no back-references");
  }
  compiled_ = std::move(compiled);
}

bool Pattern::matches_whole(std::string_view text) const { return RE2::FullMatch(piece(text), *compiled_); }

std::string Pattern::replace_all(std::string text, std::string_view replacement) const {
  RE2::GlobalReplace(&text, *compiled_, piece(replacement));
  return text;
}

}  // namespace detent
