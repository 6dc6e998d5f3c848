#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/latency_json.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/pictures.h"
#include "detent/verify.h"
#include "run/comparison/latency.h"

namespace detent::cli {
namespace {

// JSON has no infinity: null.
nlohmann::json finite(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

nlohmann::json to_json(const Fidelity& f) {
  return {{"sqnr_db", finite(f.sqnr_db)}, {"cosine", f.cosine}, {"max_abs", finite(f.max_abs)}};
}

nlohmann::json to_json(const Verification& r) {
  nlohmann::json out{{"target", r.target},
                     {"target_reason", r.target_reason},
                     {"consumer", r.consumer},
                     {"samples", r.samples},
                     {"max_steps", finite(r.max_steps)},
                     {"notes", r.notes},
                     {"outputs", nlohmann::json::array()},
                     {"layers", nlohmann::json::array()},
                     {"latency", nlohmann::json::array()}};
  for (const auto& o : r.outputs)
    out["outputs"].push_back({{"name", o.deployed.name},
                              {"reference", to_json(o.reference)},
                              {"deployed", to_json(o.deployed)},
                              {"consumer_sqnr_db", finite(o.consumer_sqnr_db)}});
  for (const auto& l : r.layers)
    out["layers"].push_back({{"name", l.name},
                             {"made_by", l.made_by},
                             {"quantized", l.quantized},
                             {"elements", l.elements},
                             {"max_steps", finite(l.max_steps)},
                             {"share", l.share},
                             {"share_over_one", l.share_over_one},
                             {"exact", l.exact},
                             {"reason", l.reason}});
  for (const auto& l : r.latency) out["latency"].push_back(latency_json(l));
  return out;
}

void print_outputs(const Verification& r) {
  print_text("{:>8} {:>9}  {:>11} {:>9}  {:>10}  output\n", "exact dB", "cosine", "deployed dB", "cosine",
             "between dB");
  for (const auto& o : r.outputs)
    print_text("{:>8.2f} {:>9.6f}  {:>11.2f} {:>9.6f}  {:>10.2f}  {}\n", o.reference.sqnr_db, o.reference.cosine,
               o.deployed.sqnr_db, o.deployed.cosine, o.consumer_sqnr_db, o.deployed.name);
  print_text("\n");
}

void print_layers(const Verification& r, std::size_t limit) {
  std::size_t same = 0;
  for (const auto& l : r.layers) same += l.share == 0 ? 1 : 0;
  const std::size_t different = r.layers.size() - same;
  const std::size_t shown = limit == 0 ? different : std::min(limit, different);
  if (shown > 0) print_text("{:>9} {:>9} {:>9}  layer, worst first\n", "max steps", "differ", "> 1 step");
  std::string reason;  // of the line before
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& l = r.layers[i];
    print_text("{:>9.4g} {:>7.2g} % {:>7.2g} %  {}  {}{}{}\n", l.max_steps, 100 * l.share, 100 * l.share_over_one,
               l.name, l.made_by, l.quantized ? "" : " (float)", l.exact ? "" : " (reference in float32)");
    if (!l.reason.empty() && l.reason != reason) print_text("{:>31}{}\n", "", l.reason);
    reason = l.reason;
  }
  if (shown < different) print_text("… and {} more (--layers 0 lists all)\n", different - shown);
  print_text("{} of {} agree in {}, on {}\n", same, count_with_noun(r.layers.size(), "layer"), r.consumer,
             count_with_noun(r.samples, "sample"));
}

void print_result(const Verification& r, std::size_t layers) {
  if (!r.target_reason.empty()) print_note(r.target_reason);
  print_notes(r.notes);
  print_outputs(r);
  print_layers(r, layers);
  if (r.latency.size() == 2)
    print_text("latency {:.3f} -> {:.3f} ms ({})\n", kMilli * r.latency[0].median, kMilli * r.latency[1].median,
               run::speed_words(r.latency[1].ratio));
}

void run(VerifyOptions options, const config::CommandLine& line) {
  if (line.max_steps && !(*line.max_steps >= 0)) throw usage_error("--max-steps is less than 0", "give 0 or more");
  const auto pictures = take_pictures(line, options.float_model, options);
  ProgressLine progress;
  options.progress = progress_to(progress, line.quiet);
  const auto result = verify(options);
  progress.finish();
  if (line.json) {
    print_json(to_json(result));
  } else {
    print_result(result, line.layers);
  }
  if (line.max_steps && result.max_steps > *line.max_steps) {
    const auto& worst = result.layers.front();
    throw bad_input(fmt::format("'{}' differs by {:.4g} steps from exact arithmetic, more than --max-steps {:g}",
                                worst.name, worst.max_steps, *line.max_steps),
                    worst.reason);
  }
}

}  // namespace

void add_verify(CLI::App& app, Signals& signals) {
  auto* command = app.add_subcommand(
      "verify", "What the runtime makes of a quantized model, beside the float model and exact integers");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kVerify);
  command->footer("Example:\n  detent verify model.onnx model.int8.onnx --calibration-data samples/");
  command->callback([declared, &signals] {
    VerifyOptions options;
    config::CommandLine line;
    declared->read(options, line);
    options.stop = signals.token();
    run(std::move(options), line);
  });
}

}  // namespace detent::cli
