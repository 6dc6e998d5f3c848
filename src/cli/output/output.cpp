#include "cli/output/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "config/results.h"

namespace detent::cli {
namespace {

constexpr const char* kRed = "\x1b[1;31m";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kPlain = "\x1b[0m";

// After a call that has set errno, if it failed.
void require(bool written) {
  if (written) return;
  if (errno == EPIPE) throw StdoutClosed();
  throw resource_error(fmt::format("cannot write to standard output: {}", errno_text(errno)));
}

// Where standard error takes nothing (a file on a full disk, or under ulimit -f), standard output is told.
void tell(const char* line) noexcept {
  if (std::fputs(line, stderr) >= 0) return;
  std::fputs(line, stdout);
  std::fflush(stdout);
}

void write_raw(std::string_view text) { require(std::fwrite(text.data(), 1, text.size(), stdout) == text.size()); }

// Without what stands in single quotes; apostrophes stay.
std::string without_names(std::string_view note) {
  std::string text;
  for (std::size_t at = 0; at < note.size();) {
    const bool opens = note[at] == '\'' && (at == 0 || note[at - 1] == ' ');
    const auto end = opens ? note.find('\'', at + 1) : std::string_view::npos;
    if (end == std::string_view::npos) {
      text += note[at++];
    } else {
      at = end + 1;
    }
  }
  return text;
}

// NO_COLOR: https://no-color.org
bool takes_colours(int descriptor) noexcept {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return ::isatty(descriptor) == 1 && !is_dumb && (no_color == nullptr || *no_color == '\0');
}

}  // namespace

void write_out(std::string_view text) { write_raw(printable_lines(text)); }

void print_json(const nlohmann::json& value, int indent) { write_raw(json_text(value, indent) + "\n"); }

void print_help(const std::string& text) {
  if (!takes_colours(STDOUT_FILENO)) return write_raw(text);
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = std::string_view(text).substr(begin, end - begin);
    const bool is_heading = line.ends_with(':') && !line.starts_with(' ');
    write_raw(is_heading ? fmt::format("{}{}{}\n", kBold, line, kPlain) : fmt::format("{}\n", line));
    begin = end + 1;
  }
}

void print_note(std::string_view text) {
  flush_out();
  const auto line = fmt::format("detent: note: {}\n", printable(text));
  std::fputs(line.c_str(), stderr);
}

void print_notes(const std::vector<std::string>& notes, bool verbose, std::string_view model) {
  std::vector<std::pair<std::string, std::vector<std::string_view>>> groups;
  for (const std::string_view note : notes) {
    if (!verbose && note.starts_with(config::kGraphNote)) continue;
    const auto key = verbose ? std::string(note) : without_names(note);
    auto at = std::ranges::find(groups, key, [](const auto& group) { return group.first; });
    if (at == groups.end()) at = groups.insert(at, {key, {}});
    if (std::ranges::find(at->second, note) == at->second.end()) at->second.push_back(note);
  }
  for (const auto& [key, alike] : groups) {
    const auto more = alike.size() > 1 ? fmt::format(" (and {} more like this)", alike.size() - 1) : "";
    print_note(fmt::format("{}{}{}{}", model, model.empty() ? "" : ": ", alike.front(), more));
  }
}

void flush_out() { require(std::fflush(stdout) == 0); }

int fail(const Error& error) noexcept {
  try {
    const char* clear = ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "";  // of a line of progress
    constexpr std::size_t kLongest = 4096;                               // of what may repeat words of a file
    const std::string hint = error.hint().empty() ? "" : "; " + printable(error.hint());
    const bool colours = takes_colours(STDERR_FILENO);
    const auto line = fmt::format("{}detent: {}error:{} {}\n", clear, colours ? kRed : "", colours ? kPlain : "",
                                  printable(error.what(), kLongest) + hint);
    tell(line.c_str());
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    return fail_without_memory();
  }
}

int fail_without_memory() noexcept {
  tell("detent: error: out of memory; give smaller samples, or --batch-size\n");
  return exit_code(ErrorKind::resource);
}

}  // namespace detent::cli
