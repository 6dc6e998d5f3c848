#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/small_file.h"
#include "cli/commands.h"
#include "cli/markdown.h"
#include "cli/output.h"

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
  auto* command = app.add_subcommand("report", "Results of quantize side by side, as a table in Markdown");
  const auto files = std::make_shared<std::vector<std::string>>();
  command->add_option("RESULTS", *files, "what quantize --json printed, in files")
      ->required()
      ->option_text(" ")
      ->group("Files");
  command->footer("Example:\n  detent report int8.json int4.json");
  command->callback([files] {
    std::vector<nlohmann::json> results;
    for (const auto& file : *files) results.push_back(read_result(file));
    print_text("{}", markdown_table(results));
  });
}

}  // namespace detent::cli
