#include "profile/html_report.h"

#include "base/utf8.h"

namespace detent::profile {

// The page before and after its data; report/embed.cmake writes both at build time.
extern const std::string_view report_page_head;
extern const std::string_view report_page_tail;

// In JSON these characters stand in strings only, where an escape means the same; without `<` there is neither an end
// tag nor a comment.
std::string script_safe(std::string_view json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 16);
  while (!json.empty()) {
    const CodePoint first = first_code_point(json);
    const std::string_view character = json.substr(0, first.length);
    if (!first.valid) {
      safe += kReplacementCharacter;
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

std::string html_report(std::string_view report_json) {
  const bool empty = report_json.find_first_not_of(" \t\r\n") == std::string_view::npos;
  std::string page(report_page_head);
  page += script_safe(empty ? "{}" : report_json);
  page += report_page_tail;
  return page;
}

}  // namespace detent::profile
