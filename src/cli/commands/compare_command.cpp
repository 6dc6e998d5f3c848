#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/pictures.h"
#include "detent/compare.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const std::vector<Fidelity>& all) {
  auto list = nlohmann::json::array();
  for (const auto& f : all) {  // JSON has no infinity: equal values have a null SQNR
    list.push_back({{"name", f.name},
                    {"made_by", f.made_by},
                    {"cosine", f.cosine},
                    {"max_abs", f.max_abs},
                    {"sqnr_db", std::isfinite(f.sqnr_db) ? nlohmann::json(f.sqnr_db) : nlohmann::json(nullptr)}});
    if (!f.reason.empty()) list.back()["reason"] = f.reason;
    if (!f.suggestion.empty()) list.back()["suggestion"] = f.suggestion;
  }
  return list;
}

void print_table(const std::vector<Fidelity>& all, std::size_t limit, const char* title) {
  print_text("{:>8} {:>10} {:>11}  {}\n", "SQNR dB", "cosine", "max |diff|", title);
  const std::size_t shown = limit == 0 ? all.size() : std::min(limit, all.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& f = all[i];
    print_text("{:>8.2f} {:>10.6f} {:>11.4g}  {}{}{}\n", f.sqnr_db, f.cosine, f.max_abs, f.name,
               f.made_by.empty() ? "" : "  ", f.made_by);
    if (!f.reason.empty()) print_text("{:>33}{}{}{}\n", "", f.reason, f.suggestion.empty() ? "" : ": ", f.suggestion);
  }
  if (shown < all.size()) print_text("… and {} more (--layers 0 lists all)\n", all.size() - shown);
}

nlohmann::json to_json(const std::optional<NextTokens>& tokens) {
  if (!tokens) return nullptr;
  return {{"positions", tokens->positions},
          {"float_perplexity", tokens->float_perplexity},
          {"perplexity", tokens->perplexity},
          {"agreement", tokens->agreement},
          {"kl_divergence", tokens->kl_divergence}};
}

void print_tokens(const NextTokens& tokens) {
  print_text(
      "perplexity {:.4f}, of the float model {:.4f} ({:+.2f} %); the same next token at {:.2f} % of {} positions; ",
      tokens.perplexity, tokens.float_perplexity, 100 * (tokens.perplexity / tokens.float_perplexity - 1),
      100 * tokens.agreement, tokens.positions);
  print_text("KL divergence {:.4g} nats\n\n", tokens.kl_divergence);
}

void print_comparison(const Comparison& result, bool outputs_only, std::size_t layers) {
  print_notes(result.notes);
  if (result.next_tokens) print_tokens(*result.next_tokens);
  print_table(result.outputs, 0, "output, as deployed");
  if (outputs_only) return;
  print_text("\n");
  print_table(result.layers, layers, "inner value, worst first");
}

// NaN counts as lower.
void require(const std::vector<Fidelity>& outputs, double least) {
  if (outputs.empty())
    throw bad_input("no output could be compared, so that none reaches --min-sqnr", "the notes say why");
  for (const auto& output : outputs) {
    if (output.sqnr_db >= least) continue;
    throw bad_input(fmt::format("output '{}' has {:.2f} dB, less than the {:.6g} of --min-sqnr", output.name,
                                output.sqnr_db, least),
                    "detent verify shows which layer loses most");
  }
}

void run(CompareOptions options, const config::CommandLine& line) {
  const auto pictures = take_pictures(line, options.float_model, options);
  ProgressLine progress;
  options.progress = progress_to(progress, line.quiet);
  const auto result = compare(options);
  progress.finish();
  if (!line.json) {
    print_comparison(result, options.outputs_only, line.layers);
  } else {
    print_json({{"samples", result.samples},
                {"next_tokens", to_json(result.next_tokens)},
                {"outputs", to_json(result.outputs)},
                {"layers", to_json(result.layers)},
                {"notes", result.notes}});
  }
  if (line.min_sqnr) require(result.outputs, *line.min_sqnr);
}

}  // namespace

void add_compare(CLI::App& app, Signals& signals) {
  auto* command = app.add_subcommand("compare",
                                     "How close a quantized model is to its float original: SQNR (signal over error, "
                                     "in dB) and cosine, of each output and layer");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kCompare);
  command->footer("Example:\n  detent compare model.onnx model.int8.onnx --calibration-data samples/");
  command->callback([declared, &signals] {
    CompareOptions options;
    config::CommandLine line;
    declared->read(options, line);
    options.stop = signals.token();
    run(std::move(options), line);
  });
}

}  // namespace detent::cli
