// Text from files and users made fit for messages and terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace detent {

/// The text on one line, as UTF-8: control characters, and bytes that are no UTF-8, as "\x1b". Text longer than `limit`
/// bytes is cut between two characters, with "..." at the end.
std::string printable(std::string_view text, std::size_t limit = std::string_view::npos);

/// The same of several lines: '\n' stays.
std::string printable_lines(std::string_view text);

}  // namespace detent
