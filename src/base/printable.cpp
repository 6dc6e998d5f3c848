#include "base/printable.h"

#include <fmt/format.h>

#include "base/utf8.h"

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

}  // namespace detent
