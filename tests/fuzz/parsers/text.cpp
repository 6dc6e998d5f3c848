// Names from files on their way to terminals and reports, and patterns over them.
#include "base/text.h"
#include "data/sample.h"
#include "fuzz/fuzz.h"
#include "profile/report.h"

namespace detent::fuzz {
namespace {

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (!point.valid) return false;
    text.remove_prefix(point.length);
  }
  return true;
}

bool has_controls(std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    // C0, DEL and C1: what a terminal takes for more than text.
    if (point.value < 0x20 || (point.value >= 0x7F && point.value < 0xA0)) return true;
    text.remove_prefix(point.length);
  }
  return false;
}

void check(const std::string& text, bool one_line) {
  require(is_utf8(text), "printable text is UTF-8");
  std::string flat = text;
  if (!one_line) std::erase(flat, '\n');
  require(!has_controls(flat), "printable text has no control characters");
}

void run_text(Bytes input) {
  Parts parts(input);
  const std::size_t limit = parts.byte();
  const std::string text(as_text(parts.rest()));
  check(printable(text), true);
  const std::string cut = printable(text, limit);
  check(cut, true);
  require(cut.size() <= 4 * limit + 3 || cut == printable(text), "text is cut where it is too long");
  check(printable_lines(text), false);
  const std::string yaml = profile::yaml_quoted(text);
  require(is_utf8(yaml) && yaml.find('\n') == std::string::npos, "a quoted scalar is one line of UTF-8");
  const std::size_t half = text.size() / 2;
  const std::string_view a(text.data(), half), b(text.data() + half, text.size() - half);
  require(!(data::natural_less(a, b) && data::natural_less(b, a)), "the order of names is one");
  require(data::natural_less(a, b) || data::natural_less(b, a) || a == b, "the order of names is total");
  const std::string_view words[] = {"calibration-data", "method", a};
  if (text.size() < 64) nearest_word(b, words);
}

void run_pattern(Bytes input) {
  Parts parts(input);
  const std::string expression = parts.text();
  const std::string replacement = parts.text();
  const std::string text(as_text(parts.rest()));
  try_to([&] {
    const Pattern pattern(expression);
    pattern.matches_whole(text);
    pattern.replace_all(text, replacement);
  });
}

const Registered text{{"text", run_text}};
const Registered pattern{{"pattern", run_pattern}};

}  // namespace
}  // namespace detent::fuzz
