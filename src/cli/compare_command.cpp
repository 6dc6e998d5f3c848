#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/progress.h"
#include "detent/compare.h"

namespace detent::cli {
namespace {

struct Arguments {
  CompareOptions options;
  std::size_t layers = 20;
  bool json = false;
};

nlohmann::json to_json(const std::vector<Fidelity>& all) {
  auto list = nlohmann::json::array();
  for (const auto& f : all) {  // JSON has no infinity: equal values have a null SQNR
    list.push_back({{"name", f.name},
                    {"made_by", f.made_by},
                    {"cosine", f.cosine},
                    {"max_abs", f.max_abs},
                    {"sqnr_db", std::isfinite(f.sqnr_db) ? nlohmann::json(f.sqnr_db) : nlohmann::json(nullptr)}});
    if (!f.reason.empty()) list.back()["reason"] = f.reason;
    if (!f.cure.empty()) list.back()["cure"] = f.cure;
  }
  return list;
}

void print_table(const std::vector<Fidelity>& all, std::size_t limit, const char* title) {
  fmt::print("{:>8} {:>10} {:>11}  {}\n", "SQNR dB", "cosine", "max |diff|", title);
  const std::size_t shown = limit == 0 ? all.size() : std::min(limit, all.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& f = all[i];
    fmt::print("{:>8.2f} {:>10.6f} {:>11.4g}  {}{}{}\n", f.sqnr_db, f.cosine, f.max_abs, f.name,
               f.made_by.empty() ? "" : "  ", f.made_by);
    if (!f.reason.empty()) fmt::print("{:>33}{}{}{}\n", "", f.reason, f.cure.empty() ? "" : ": ", f.cure);
  }
  if (shown < all.size()) fmt::print("… and {} more (--layers 0 lists all)\n", all.size() - shown);
}

}  // namespace

void add_compare(CLI::App& app, const std::stop_token& stop) {
  auto* command = app.add_subcommand(
      "compare", "SQNR and cosine of a quantized model against its float original, per output and per layer");
  auto args = std::make_shared<Arguments>();
  auto& options = args->options;
  command->add_option("FLOAT", options.float_model, "float model")->required()->option_text(" ");
  command->add_option("QUANT", options.quantized_model, "quantized model")->required()->option_text(" ");
  command
      ->add_option("--calibration-data", options.calibration_data,
                   "samples, as for quantize; preferably not those used for calibration")
      ->required()
      ->option_text("PATH");
  command->add_option("--samples", options.max_samples, "use at most this many samples")
      ->check(not_negative)
      ->option_text("N");
  command->add_option("--batch-size", options.batch_size, "split the files' arrays into batches of this many rows")
      ->check(not_negative)
      ->option_text("N");
  command->add_option("--layers", args->layers, "inner values to list, worst first; 0 for all (default 20)")
      ->check(not_negative)
      ->option_text("N");
  command->add_flag("--outputs-only", options.outputs_only, "compare outputs only, not inner values");
  command->add_option("--threads", options.threads, "threads of the runtime (default: one per core)")
      ->check(not_negative)
      ->option_text("N");
  command->add_option("--runtime", options.runtime, "ONNX Runtime's library")->option_text("FILE");
  command->add_flag("--json", args->json, "print the result as JSON");
  command->callback([args, stop] {
    CompareOptions chosen = args->options;
    chosen.stop = stop;
    ProgressLine progress;
    chosen.progress = [&](const std::string& stage, std::uint64_t done, std::uint64_t total) {
      progress.update(stage, done, total);
    };
    const auto result = compare(chosen);
    progress.finish();
    if (args->json) {
      fmt::print("{}\n", nlohmann::json{{"samples", result.samples},
                                        {"outputs", to_json(result.outputs)},
                                        {"layers", to_json(result.layers)},
                                        {"notes", result.notes}}
                             .dump(2));
      return;
    }
    for (const auto& note : result.notes) fmt::print("note: {}\n", note);
    print_table(result.outputs, 0, "output, as deployed");
    if (!chosen.outputs_only) {
      fmt::print("\n");
      print_table(result.layers, args->layers, "inner value, worst first");
    }
  });
}

}  // namespace detent::cli
