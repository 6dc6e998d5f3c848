// The report of a run as one page of HTML that needs neither a network nor any other file. docs/report.md tells what it
// shows and how to read it; the page itself lies in src/profile/report/.
#pragma once

#include <string>
#include <string_view>

namespace detent::profile {

/// The page for the figures in `report_json`, an object whose keys docs/report.md lists. Names may hold anything:
/// markup stays text, and bytes that are not UTF-8 become U+FFFD. Empty text counts as an empty object.
std::string html_report(std::string_view report_json);

/// JSON for the inside of a script element.
std::string script_safe(std::string_view json);

}  // namespace detent::profile
