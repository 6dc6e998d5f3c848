#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/output/result_json.h"
#include "config/results.h"
#include "detent/bench.h"
#include "detent/compare.h"
#include "detent/verify.h"
#include "profile/meters.h"
#include "run/comparison/latency.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const Comparison& result) {
  auto out = config::result_json(result);
  out.erase("sample_names");
  out.emplace("next_tokens", nullptr);
  config::keep_lists(out, {"outputs", "layers", "notes"});
  for (const auto* list : {"outputs", "layers"}) {
    for (auto& value : out[list]) {
      for (const auto* text : {"reason", "suggestion"}) {
        if (value[text] == "") value.erase(text);
      }
    }
  }
  return out;
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

void run_compare(Options& options, const config::CommandLine& line) {
  const auto pictures = take_pictures(line, options.model, options);
  const auto result = with_progress(options, line.quiet, compare);
  if (line.json) {
    print_json(to_json(result));
  } else if (!print_members(line, result)) {
    print_comparison(result, options.outputs_only, line.layers);
  }
  if (line.min_sqnr) require(result.outputs, *line.min_sqnr);
}

}  // namespace

const Subcommand compare_command{config::kCompare,
                                 "Measure how close a quantized model is to the float model: SQNR (signal over "
                                 "error, in dB) and cosine, of each output and layer",
                                 "Example:\n  detent compare model.onnx model.int8.onnx --calibration-data samples/",
                                 [](Call& call) { run_compare(call.options, call.line); }};

namespace {

nlohmann::json to_json(const Verification& r) {
  auto out = config::result_json(r);
  config::keep_lists(out, {"outputs", "layers", "latency", "notes"});
  for (auto& output : out["outputs"]) {
    output["name"] = output["deployed"]["name"];
    for (const auto* side : {"reference", "deployed"}) {
      for (const auto* text : {"name", "made_by", "reason", "suggestion"}) output[side].erase(text);
    }
  }
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

void print_verification(const Verification& r, std::size_t layers) {
  if (!r.target_reason.empty()) print_note(r.target_reason);
  print_notes(r.notes);
  print_outputs(r);
  print_layers(r, layers);
  if (r.latency.size() == 2)
    print_text("latency {:.3f} -> {:.3f} ms ({})\n", kMilli * r.latency[0].median, kMilli * r.latency[1].median,
               run::speed_words(r.latency[1].ratio));
}

void run_verify(Options& options, const config::CommandLine& line) {
  if (line.max_steps && !(*line.max_steps >= 0)) throw usage_error("--max-steps is less than 0", "give 0 or more");
  const auto pictures = take_pictures(line, options.model, options);
  const auto result = with_progress(options, line.quiet, verify);
  if (line.json) {
    print_json(to_json(result));
  } else if (!print_members(line, result)) {
    print_verification(result, line.layers);
  }
  if (line.max_steps && result.max_steps > *line.max_steps) {
    const auto& worst = result.layers.front();
    throw bad_input(fmt::format("'{}' differs by {:.4g} steps from exact arithmetic, more than --max-steps {:g}",
                                worst.name, worst.max_steps, *line.max_steps),
                    worst.reason);
  }
}

}  // namespace

const Subcommand verify_command{
    config::kVerify, "Compare what the runtime computes of a quantized model with exact integers, layer by layer",
    "Example:\n  detent verify model.onnx model.int8.onnx --calibration-data samples/",
    [](Call& call) { run_verify(call.options, call.line); }};

namespace {

nlohmann::json to_json(const BenchResult& r) {
  auto out = config::result_json(r);
  config::keep_lists(out, {"notes"});
  out["peak_memory_bytes"] = profile::peak_resident();
  for (std::size_t i = 0; i < r.models.size(); ++i) {
    out["models"][i].update(config::result_json(r.models[i].latency));
    if (!r.models[i].peak_memory) out["models"][i].erase("peak_memory_bytes");
  }
  return out;
}

void print_models(const BenchResult& r) {
  print_text("{:>9} {:>9} {:>9} {:>9} {:>6} {:>12} {:>8} {:>10} {:>10}  {}\n", "min ms", "median ms", "p90 ms",
             "CPU ms", "ratio", "(quartiles)", "load s", "size", "memory", "model");
  for (const auto& m : r.models) {
    const auto& l = m.latency;
    print_text("{:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>6.2f} {:>12} {:>8.2f} {:>10} {:>10}  {}\n", kMilli * l.min,
               kMilli * l.median, kMilli * l.p90, kMilli * l.cpu, l.ratio,
               fmt::format("({:.2f}-{:.2f})", l.ratio_low, l.ratio_high), m.load_seconds, format_size(m.bytes),
               m.peak_memory ? format_size(*m.peak_memory) : "-", m.model.string());
  }
}

void print_operators(const BenchedModel& m) {
  print_text("\n{:>9} {:>7} {:>6}  operators of {}\n", "ms", "share", "nodes", m.model.string());
  for (const auto& o : m.operators)
    print_text("{:>9.3f} {:>5.1f} % {:>6}  {}\n", kMilli * o.seconds, 100 * o.share, o.nodes, o.op_type);
}

void print_bench(const BenchResult& r) {
  print_models(r);
  const std::string inputs = r.synthetic ? "synthetic inputs" : count_with_noun(r.samples, "sample");
  print_text("{}, {} interleaved runs of each model, on {}, ONNX Runtime {}\n",
             count_with_noun(static_cast<std::uint64_t>(r.threads), "thread"), r.models.front().latency.runs, inputs,
             r.runtime);
  print_notes(r.notes);
  for (const auto& model : r.models) {
    if (!model.operators.empty()) print_operators(model);
  }
}

}  // namespace

const Subcommand bench_command{
    config::kBench, "Time models side by side in ONNX Runtime: latency, processor time, size, memory, time by operator",
    "Example:\n  detent bench model.onnx model.int8.onnx", [](Call& call) {
      auto& [options, line, given] = call;
      if (!paths::names_open_files()) throw unavailable("bench, which starts processes,");
      options.program = paths::target_of("/proc/self/exe");
      const auto pictures = take_pictures(line, options.models.front(), options);
      const auto result = with_progress(options, line.quiet, bench);
      if (line.json) {
        print_json(to_json(result));
      } else if (!print_members(line, result)) {
        print_bench(result);
      }
    }};

}  // namespace detent::cli
