#include "base/text.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace detent {
namespace {

// Also what turns the direction of text: it makes a name read as another.
bool is_control(char32_t c) {
  const bool is_direction = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || is_direction || c == 0x2028 || c == 0x2029;
}

std::string escape_controls(std::string_view text, std::size_t limit, bool lines) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = first_code_point(text.substr(at));
    if (at + point.length > limit) return out + "...";
    const auto bytes = text.substr(at, point.length);
    at += point.length;
    if (point.valid && (!is_control(point.value) || (lines && point.value == '\n'))) {
      out += bytes;
    } else {
      for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text, std::size_t limit) { return escape_controls(text, limit, false); }
std::string printable_lines(std::string_view text) { return escape_controls(text, std::string_view::npos, true); }

std::uint64_t parse_size(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits{{{"", 1.0},
                                                                               {"b", 1.0},
                                                                               {"k", 1024.0},
                                                                               {"kib", 1024.0},
                                                                               {"kb", 1e3},
                                                                               {"m", 1048576.0},
                                                                               {"mib", 1048576.0},
                                                                               {"mb", 1e6},
                                                                               {"g", 1073741824.0},
                                                                               {"gib", 1073741824.0},
                                                                               {"gb", 1e9}}};
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  for (const auto& [name, factor] : kUnits) {
    const double bytes = value * factor;
    if (status == std::errc() && unit == name && value >= 0 && bytes < 9.2e18) {
      return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  throw usage_error(fmt::format("'{}' is not a size", text), "write it like 512MiB, 1.5GiB or 2000000");
}

namespace {

template <std::size_t N>
std::string scaled(std::uint64_t amount, double step, const std::array<const char*, N>& names) {
  auto value = static_cast<double>(amount);
  std::size_t unit = 0;
  while (value >= step && unit + 1 < N) {
    value /= step;
    ++unit;
  }
  const bool whole = unit == 0 || value >= 100;
  std::string text = whole ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
  if (*names[unit] != 0) text += fmt::format(" {}", names[unit]);
  return text;
}

}  // namespace

std::string format_size(std::uint64_t bytes) { return scaled<5>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"}); }

std::pair<std::string, std::string> format_sizes(std::uint64_t a, std::uint64_t b) {
  std::pair<std::string, std::string> texts{format_size(a), format_size(b)};
  if (a == b || texts.first != texts.second) return texts;
  return {fmt::format("{} B", a), fmt::format("{} B", b)};
}

std::string format_count(std::uint64_t count) { return scaled<5>(count, 1000, {"", "k", "M", "G", "T"}); }

std::string count_with_noun(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

namespace {

constexpr std::size_t kLongest = 100;  // characters that anybody mistypes
constexpr std::size_t kPrefix = 3;     // that tell something

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool has_part(std::string_view word, std::string_view part) {
  for (std::size_t from = 0; from <= word.size();) {
    const std::size_t dash = std::min(word.find('-', from), word.size());
    if (word.substr(from, dash - from) == part) return true;
    from = dash + 1;
  }
  return false;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);  // of the last three rows
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::optional<std::string_view> nearest_word(std::string_view typed, std::span<const std::string_view> words) {
  if (typed.empty() || typed.size() > kLongest) return std::nullopt;
  const std::string wanted = lower(typed);
  std::optional<std::string_view> nearest;
  std::size_t fewest = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  for (const auto word : words) {
    const std::size_t distance = edit_distance(wanted, lower(word));
    if (distance >= fewest || distance >= word.size()) continue;
    fewest = distance;
    nearest = word;
  }
  if (nearest) return nearest;
  const auto found = std::find_if(words.begin(), words.end(), [&](auto word) {
    return has_part(word, wanted) || (wanted.size() >= kPrefix && lower(word).starts_with(wanted));
  });
  return found == words.end() ? std::nullopt : std::optional(*found);
}

std::string did_you_mean(std::string_view typed, std::span<const std::string_view> words, std::string_view prefix) {
  const auto word = nearest_word(typed, words);
  return word ? fmt::format("did you mean {}{}?", prefix, *word) : std::string();
}

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
