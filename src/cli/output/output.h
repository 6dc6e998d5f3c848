// What the command line says: results on standard output; notes, and one line for a failure, on standard error.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detent/error.h"

namespace detent::cli {

/// Nobody reads standard output any more, as with `detent inspect MODEL | head`.
struct StdoutClosed : std::exception {};

/// Writes text to standard output. Names in it come from models: control characters other than line breaks are escaped,
/// so that none reaches a terminal. Throws resource when it cannot be written, or StdoutClosed.
void write_out(std::string_view text);

template <class... T>
void print_text(fmt::format_string<T...> format, T&&... values) {
  write_out(fmt::format(format, std::forward<T>(values)...));
}

/// Writes a JSON value; what is not UTF-8 in it is replaced.
void print_json(const nlohmann::json& value, int indent = 2);
nlohmann::json or_null(const std::optional<std::uint64_t>& value);

/// Times are printed in milliseconds.
inline constexpr double kMilli = 1e3;

/// Has everything written. Throws as write_out() does.
void flush_out();

/// Prints help: headings stand out where colours may be used.
void print_help(const std::string& text);

/// Prints a line on standard error that is no failure, after what was printed on standard output so far.
void print_note(std::string_view text);
void print_notes(const std::vector<std::string>& notes);

/// Whether text may have colours there: a terminal that shows them, and NO_COLOR (https://no-color.org) is not set.
bool takes_colours(int descriptor) noexcept;

/// Prints the one line of a failure, on standard output where standard error takes nothing; its exit code.
int fail(const Error& error) noexcept;

/// The same where not even a message can be made.
int fail_without_memory() noexcept;

}  // namespace detent::cli
