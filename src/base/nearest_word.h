// What somebody who mistyped a word may have meant.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace detent {

/// The fewest insertions, deletions and replacements of a character, and exchanges of two neighbours, that make one
/// word of the other; an exchanged pair is not changed again (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The word nearest to `typed`, the first of several, case aside: by edit distance, at most one for each three
/// characters typed (and one); else a word that begins with `typed`, or has it for one of the parts between its
/// dashes ("data": "calibration-data"). nullopt: none is near.
std::optional<std::string_view> nearest_word(std::string_view typed, std::span<const std::string_view> words);

/// "did you mean WORD?" with `prefix` in front of the word; empty: none is near.
std::string did_you_mean(std::string_view typed, std::span<const std::string_view> words, std::string_view prefix = {});

}  // namespace detent
