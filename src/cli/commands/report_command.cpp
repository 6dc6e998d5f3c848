#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/small_file.h"
#include "cli/commands/commands.h"
#include "cli/output/comparison_page.h"
#include "cli/output/markdown.h"
#include "cli/output/output.h"
#include "cli/output/result_fields.h"

namespace detent::cli {
namespace {

nlohmann::json read_result(const std::string& path) {
  auto result = parse_json(read_small_file(path, "result"));
  if (!result || !result->is_object() || !result->contains("model_bytes_after"))
    throw bad_input(fmt::format("'{}' is not a result of quantize", path),
                    "make one by: detent quantize … --json > FILE");
  return std::move(*result);
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "Results of quantize side by side, as a table in Markdown or a page");
  struct Asked {
    std::vector<std::string> files;
    std::string page;
  };
  const auto asked = std::make_shared<Asked>();
  command->add_option("RESULTS", asked->files, "what quantize --json printed, in files")
      ->required()
      ->option_text(" ")
      ->group("Files");
  command
      ->add_option("-o,--output", asked->page,
                   "write an HTML page instead, with a picture of size, latency and accuracy")
      ->option_text("FILE")
      ->group("Files");
  command->footer("Example:\n  detent report int8.json int4.json -o both.html");
  command->callback([asked] {
    std::vector<nlohmann::json> results;
    for (const auto& file : asked->files) results.push_back(read_result(file));
    results = single_results(std::move(results));
    if (asked->page.empty()) return write_out(markdown_table(results));
    AtomicFile page(asked->page);
    page.write(as_byte_span(comparison_page(results)));
    page.commit();
    print_text("picture: {}\n", asked->page);
  });
}

}  // namespace detent::cli
