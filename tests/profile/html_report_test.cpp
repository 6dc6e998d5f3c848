#include "profile/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace detent::profile {
namespace {

using nlohmann::json;

constexpr std::string_view kOpen = R"(<script type="application/json" id="data">)";
constexpr std::string_view kClose = "</script>";

/// What stands in the page's data block.
std::string data_of(const std::string& page) {
  const std::size_t start = page.find(kOpen) + kOpen.size();
  return page.substr(start, page.find(kClose, start) - start);
}

std::size_t occurrences(std::string_view text, std::string_view word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + word.size())) ++n;
  return n;
}

TEST(HtmlReport, KeepsTheData) {
  const json data{{"title", "a model"}, {"summary", {{"seconds", 1.5}}}, {"notes", {"ünïcode ✓ 😀", "tab\t \"quote\""}}};
  EXPECT_EQ(json::parse(data_of(html_report(data.dump()))), data);
}

TEST(HtmlReport, NoNameEndsTheDataBlock) {
  const std::string clean = html_report("{}");
  for (const std::string name :
       {"</script><img src=x onerror=alert(1)>", "<!--<script>", "</SCRIPT\n>", "]]>--></title>"}) {
    const json data{{"tensors", {{{"name", name}}}}};
    const std::string page = html_report(data.dump());
    EXPECT_EQ(data_of(page).find('<'), std::string::npos) << name;
    EXPECT_EQ(json::parse(data_of(page)), data);
    EXPECT_EQ(occurrences(page, "<script"), occurrences(clean, "<script")) << name;
    EXPECT_EQ(page.find("<img"), std::string::npos) << name;
  }
}

TEST(HtmlReport, LineSeparatorsAreEscaped) {
  const std::string page =
      data_of(html_report("{\"title\":\"a\xE2\x80\xA8"
                          "b\xE2\x80\xA9"
                          "c\"}"));
  EXPECT_EQ(page, R"({"title":"a\u2028b\u2029c"})");
}

TEST(HtmlReport, BytesThatAreNotUtf8AreReplaced) {
  const std::string replacement = "\xEF\xBF\xBD";
  const auto title = [](std::string_view bytes) {
    return json::parse(data_of(html_report("{\"title\":\"" + std::string(bytes) + "\"}")))["title"].get<std::string>();
  };
  EXPECT_EQ(title("a\xFF"
                  "b"),
            "a" + replacement + "b");
  EXPECT_EQ(title("\xC0\xAF"), replacement + replacement);                    // overlong
  EXPECT_EQ(title("\xED\xA0\x80"), replacement + replacement + replacement);  // surrogate
  EXPECT_EQ(title("\xF4\x90\x80\x80").size(), 4 * replacement.size());        // beyond Unicode
  EXPECT_EQ(title("\xE2\x82"), replacement + replacement);                    // cut off
  EXPECT_EQ(title("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
  EXPECT_NE(html_report("\xE2").find(replacement), std::string::npos);
}

TEST(HtmlReport, NothingCountsAsAnEmptyReport) {
  EXPECT_EQ(data_of(html_report("")), "{}");
  EXPECT_EQ(data_of(html_report(" \n\t")), "{}");
}

TEST(HtmlReport, AsksForNothing) {
  const std::string page = html_report("{}");
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  for (const std::string_view word :
       {"src=", "href=\"", "@import", "url(", "fetch(", "XMLHttpRequest", "sourceMappingURL"}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
  // Addresses: the home pages of D3's modules in comments, and names of XML namespaces.
  std::size_t allowed = occurrences(page, "// https://d3js.org");
  for (const std::string_view name : {"2000/svg", "1999/xhtml", "1999/xlink", "XML/1998/namespace", "2000/xmlns/"}) {
    allowed += occurrences(page, "http://www.w3.org/" + std::string(name));
  }
  EXPECT_EQ(occurrences(page, "http://") + occurrences(page, "https://"), allowed);
}

TEST(HtmlReport, IsWholeAndSmall) {
  const std::string page = html_report("{}");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_LT(page.size(), 500'000U);
  for (const std::string_view part : {"@STYLE@", "@LICENSE@", "@LIBRARY@", "@DATA@", "@SCRIPT@"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
  EXPECT_NE(page.find("Mike Bostock\n\nPermission to use"), std::string::npos) << "the licence of D3 is missing";
}

}  // namespace
}  // namespace detent::profile
