#include "profile/html_report.h"

#include <algorithm>
#include <cstddef>

namespace detent::profile {

// The page before and after its data; report/embed.cmake writes both at build time.
extern const std::string_view report_page_head;
extern const std::string_view report_page_tail;

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Bytes of the UTF-8 sequence at the front of `text`, 0 when it is malformed.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

/// `json` for the inside of a script element. In JSON these characters stand in strings only, where an escape means the
/// same; without `<` there is neither an end tag nor a comment.
std::string script_safe(std::string_view json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 16);
  while (!json.empty()) {
    const std::size_t length = sequence_length(json);
    const std::string_view character = json.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0) {
      safe += kReplacement;
    } else if (character == "<") {
      safe += "\\u003c";
    } else if (character == "\xE2\x80\xA8") {
      safe += "\\u2028";
    } else if (character == "\xE2\x80\xA9") {
      safe += "\\u2029";
    } else {
      safe += character;
    }
    json.remove_prefix(character.size());
  }
  return safe;
}

}  // namespace

std::string html_report(std::string_view report_json) {
  const bool empty = report_json.find_first_not_of(" \t\r\n") == std::string_view::npos;
  std::string page(report_page_head);
  page += script_safe(empty ? "{}" : report_json);
  page += report_page_tail;
  return page;
}

}  // namespace detent::profile
