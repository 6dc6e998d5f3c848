// What the command line says: results on standard output; notes, and one line for a failure, on standard error.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "detent/error.h"

namespace detent::cli {

/// Nobody reads standard output any more, as with `detent inspect MODEL | head`.
struct StdoutClosed : std::exception {};

/// Writes text to standard output. Names in it come from models: control characters other than line breaks are escaped,
/// so that none reaches a terminal. Throws resource when it cannot be written, or StdoutClosed.
void write_out(std::string_view text);

template <class T>
inline constexpr bool kIsJoined = false;
template <class... T>
inline constexpr bool kIsJoined<fmt::join_view<T...>> = true;

/// Text as it is printed in a line. Names in it come from models: what stands behind a line break of theirs would be a
/// line of its own to a terminal, to GitHub and to what reads the output.
template <class T>
decltype(auto) on_its_line(T&& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return printable(std::string_view(value));
  } else if constexpr (kIsJoined<std::remove_cvref_t<T>>) {
    return printable(fmt::format("{}", std::forward<T>(value)));
  } else {
    return std::forward<T>(value);
  }
}
template <class... T>
std::string format_values(fmt::string_view format, const T&... values) {
  return fmt::vformat(format, fmt::make_format_args(values...));
}

/// Only the format has line breaks; text of several lines goes to write_out().
template <class... T>
void print_text(fmt::format_string<T...> format, T&&... values) {
  write_out(format_values(format, on_its_line(std::forward<T>(values))...));
}

/// Writes a JSON value; what is not UTF-8 in it is replaced.
void print_json(const nlohmann::json& value, int indent = 2);

/// Times are printed in milliseconds.
inline constexpr double kMilli = 1e3;

/// Has everything written. Throws as write_out() does.
void flush_out();

/// Prints help: headings stand out where colours may be used.
void print_help(const std::string& text);

/// Prints a line on standard error that is no failure, after what was printed on standard output so far.
void print_note(std::string_view text);

/// Prints notes of a run, or of one of its models. Unless `verbose`, those on how the graph was rewritten are left out,
/// and the first of those that differ in names alone stands for all.
void print_notes(const std::vector<std::string>& notes, bool verbose = false, std::string_view model = {});

/// Prints the one line of a failure, on standard output where standard error takes nothing; its exit code.
int fail(const Error& error) noexcept;

/// The same where not even a message can be made.
int fail_without_memory() noexcept;

}  // namespace detent::cli
