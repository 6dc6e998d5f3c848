#include "base/nearest_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace detent {
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

}  // namespace detent
