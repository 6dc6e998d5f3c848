// The report's page and the trace: whatever names and figures hold, they stay data.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/output/tables.h"
#include "fuzz/fuzz.h"
#include "profile/report.h"
#include "profile/trace.h"

namespace detent::fuzz {
namespace {

using Json = nlohmann::json;

/// What stands in the page where the data go.
std::string data_of(const std::string& page) {
  static const std::string mark = "{\"mark\":\"0123456789\"}";
  static const std::string sample = profile::html_report(mark);
  static const std::size_t head = sample.find(mark);
  static const std::size_t tail = sample.size() - head - mark.size();
  require(head != std::string::npos && page.size() >= head + tail, "a page has a place for its data");
  require(page.compare(0, head, sample, 0, head) == 0 &&
              page.compare(page.size() - tail, tail, sample, head + mark.size(), tail) == 0,
          "data change nothing of the page around them");
  return page.substr(head, page.size() - head - tail);
}

std::string as_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    out.append(point.valid ? text.substr(0, point.length) : kReplacementCharacter);
    text.remove_prefix(point.length);
  }
  return out;
}

void check_page(const std::string& json) {
  const std::string data = data_of(profile::html_report(json));
  require(data.find('<') == std::string::npos, "no element and no comment begins in the data");
  require(data.find("\xE2\x80\xA8") == std::string::npos && data.find("\xE2\x80\xA9") == std::string::npos,
          "no line of a script ends in the data");
  require(as_utf8(data) == data, "the page is UTF-8");
  const Json given = Json::parse(json, nullptr, false);
  if (!given.is_discarded()) require(Json::parse(data, nullptr, false) == given, "the page holds what it was given");
}

void run_page(Bytes input) {
  const std::string text(as_text(input));
  check_page(text);
  const Json named{{"title", text}, {"notes", {text, text}}, {"layers", {{{"name", text}, {"op_type", text}}}}};
  check_page(named.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// Stages and spans: name, times.
void run_trace(Bytes input) {
  Parts parts(input);
  std::vector<profile::StageTime> stages;
  std::vector<profile::TraceSpan> spans;
  std::vector<profile::TimelinePoint> timeline;
  while (!parts.empty() && stages.size() + spans.size() < 50) {
    const std::uint8_t form = parts.byte();
    const auto number = [&] { return (form & 0x80) != 0 ? parts.number<double>() : parts.byte() / 4.0; };
    const double start = number(), seconds = number();
    if (form % 3 == 0) {
      spans.push_back({parts.text(), start, seconds, parts.text()});
    } else if (form % 3 == 1) {
      stages.push_back({.name = parts.text(), .seconds = seconds, .start = start});
    } else {
      timeline.push_back({.time = start,
                          .resident = parts.number<std::uint64_t>(),
                          .disk_read = parts.byte(),
                          .gpu_memory = parts.byte(),
                          .gpu_busy = parts.byte(),
                          .device_memory = parts.byte()});
    }
  }
  const auto path = fresh_folder("trace") / "trace.json";
  try_to([&] {
    profile::write_trace(path, stages, timeline, spans);
    profile::check_trace_path(path);
  });
  const auto file = MappedFile::open(path, "trace");
  const Json json = Json::parse(as_text(file->bytes()), nullptr, false);
  require(json.is_object() && json["traceEvents"].is_array(), "a trace is JSON");
  const auto bars = std::ranges::count_if(json["traceEvents"], [](const Json& event) { return event["ph"] == "X"; });
  require(static_cast<std::size_t>(bars) == stages.size() + spans.size(), "each stage and span is one bar");
}

/// Results of quantize, side by side.
void run_result(Bytes input) {
  std::vector<Json> results;
  std::string_view rest = as_text(input);
  while (!rest.empty() && results.size() < 4) {
    const auto end = std::min(rest.find('\n'), rest.size());
    results.push_back(Json::parse(rest.substr(0, end), nullptr, false));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (!results.back().is_object()) results.pop_back();
  }
  if (results.empty()) return;
  const std::string table = cli::markdown_table(results);
  require(as_utf8(table) == table, "a table is UTF-8");
  require(table.find('\x1b') == std::string::npos, "no escape sequence reaches a terminal");
}

const Registered result{{"result", run_result, {}, 0, 4}};
const Registered page{{"page", run_page, {}, 0, 8}};
const Registered trace{{"trace", run_trace, {}, 0, 15}};

}  // namespace
}  // namespace detent::fuzz
