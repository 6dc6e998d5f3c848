// Texts for people: printable names, sizes in bytes, counts, the nearest word, patterns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace re2 {
class RE2;
}  // namespace re2

namespace detent {

// Reading text that may or may not be UTF-8: names in models and on the command line.

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value = 0xFFFD;
  std::size_t length = 1;  // bytes
  bool valid = false;      // false: not UTF-8, to be replaced by U+FFFD
};

/// The code point at the front of `text`, which must not be empty; anything malformed counts as one byte of U+FFFD.
inline CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  char32_t value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    value = (value << 6) | (byte(i) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kSmallest[length] || surrogate || value > 0x10FFFF) return {};
  return {value, length, true};
}

// Text from files and users made fit for messages and terminals.

/// The text on one line, as UTF-8: control characters, and bytes that are no UTF-8, as "\x1b". Text longer than `limit`
/// bytes is cut between two characters, with "..." at the end.
std::string printable(std::string_view text, std::size_t limit = std::string_view::npos);

/// The same of several lines: '\n' stays.
std::string printable_lines(std::string_view text);

// Sizes and counts as users write and read them ("512MiB", "1.5 GiB", "2 nodes"), and views of typed data as bytes.

/// Parses "123", "64KiB", "1.5GiB", "2GB" (GB = 10^9, GiB = 2^30; case is ignored). Throws usage on anything else.
std::uint64_t parse_size(std::string_view text);

/// Formats with binary units and at most one decimal: "1.5 GiB", "640 KiB", "12 B".
std::string format_size(std::uint64_t bytes);

/// Two different sizes so that they read as different, in bytes where format_size() would round them to the same text.
std::pair<std::string, std::string> format_sizes(std::uint64_t a, std::uint64_t b);

/// A count with a decimal prefix: "812", "4.1 M", "118 G".
std::string format_count(std::uint64_t count);

/// "1 node", "2 nodes".
std::string count_with_noun(std::uint64_t count, std::string_view noun);

inline std::span<const std::byte> as_byte_span(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The fewest insertions, deletions and replacements of a character, and exchanges of two neighbours, that make one
/// word of the other; an exchanged pair is not changed again (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The word nearest to `typed`, the first of several, case aside: by edit distance, at most one for each three
/// characters typed (and one); else a word that begins with `typed`, or has it for one of the parts between its
/// dashes ("data": "calibration-data"). nullopt: none is near.
std::optional<std::string_view> nearest_word(std::string_view typed, std::span<const std::string_view> words);

/// "did you mean WORD?" with `prefix` in front of the word; empty: none is near.
std::string did_you_mean(std::string_view typed, std::span<const std::string_view> words, std::string_view prefix = {});

// Regular expressions in time linear in the text, whatever the expression: names come from models, and may be long.

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
