#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/commands/commands.h"
#include "cli/model_to_stdout.h"
#include "cli/options.h"
#include "cli/output/error_words.h"
#include "cli/output/markdown.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/output/quantize_json.h"
#include "cli/pictures.h"
#include "cli/run_file.h"
#include "config/family.h"
#include "config/presets.h"
#include "detent/quantize.h"
#include "run/comparison/latency.h"
#include "run/comparison/lost_channels.h"
#include "run/comparison/outcome.h"

namespace detent::cli {
namespace {

void print_fallbacks(const char* what, const std::vector<FallbackNode>& nodes, bool verbose) {
  constexpr std::size_t kMost = 8;
  const auto shown = verbose ? nodes.size() : std::min(nodes.size(), kMost);
  for (const auto& n : std::span(nodes).first(shown)) {
    print_text("{}: {}, up to {:.1f} % of an output's error and {:.1f} % of the multiplications\n", what, n.node,
               100 * n.error_share, 100 * n.macs_share);
  }
  if (shown < nodes.size()) print_text("{}: {} more (-v lists them)\n", what, nodes.size() - shown);
}

// What was changed before products are left in float; as a rule of no interest one by one.
void print_remedies(const AccuracyResult& a, bool verbose) {
  if (!verbose) {
    const auto count = [](const char* what, std::size_t n) {
      if (n > 0) print_text("{}: {} (-v tells more)\n", what, count_with_noun(n, "value"));
    };
    count("channel ranges equalized", a.equalized.size());
    count("range by another method", a.methods.size());
    return;
  }
  for (const auto& e : a.equalized) {
    print_text("channel ranges equalized: '{}', error {:.1f} -> {:.1f} dB\n", e.value, in_db(e.error_before),
               in_db(e.error_after));
  }
  for (const auto& m : a.methods) {
    print_text("range by {}: '{}', error {:.1f} -> {:.1f} dB\n", m.method, m.value, in_db(m.error_before),
               in_db(m.error_after));
  }
}

// Where some inputs, or some channels of an output, fare clearly worse than all together.
std::string spread(const AccuracyResult& a) {
  constexpr double kWorth = 3;  // dB
  std::vector<std::string> parts;
  const double worst = a.worst_sample_db.value_or(a.sqnr_db);
  if (worst < a.sqnr_db - kWorth) parts.push_back(fmt::format("worst sample {:.1f}", worst));
  if (a.worst_channels)
    parts.push_back(fmt::format("{}: {:.1f}", run::channel_group_text(*a.worst_channels), a.worst_channels->sqnr_db));
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

void print_accuracy(const QuantizeOptions& options, const AccuracyResult& a, bool verbose) {
  if (options.accuracy.sensitivity == SensitivityMode::report) {
    print_text("{:<8} {:<10} {:<44} {}\n", "SQNR dB", "rounded", "value", "node");
    for (const auto& s : a.sensitivities) {
      print_text("{:>7.1f}  {:<10} {:<44} {}\n", in_db(s.error), s.is_weight ? "weight" : "activation", s.value,
                 s.node);
    }
  }
  print_remedies(a, verbose);
  print_fallbacks("in float", a.float_nodes, verbose);
  print_fallbacks("with 16-bit activations", a.wide_nodes, verbose);
  if (a.tuned) {
    print_text("weights by gptq: error of a typical sample {:.1f} -> {:.1f} dB{}\n", in_db(a.tuned->error_before),
               in_db(a.tuned->error_after), a.tuned->kept ? "" : ", so weights are rounded to the nearest");
  }
  const auto macs = a.integer_macs
                        ? fmt::format("; {:.1f} % of the multiplications in integers{}", 100 * *a.integer_macs,
                                      a.wide_macs > 0 ? fmt::format(", {:.1f} % of 16 bits", 100 * a.wide_macs) : "")
                        : std::string();
  if (a.samples == 0) {
    print_text("accuracy was not measured, since no result has numbers to compare{}\n", macs);
    return;
  }
  print_text("accuracy on {}, worst output: SQNR {:.1f} dB{}, cosine {:.5f}{}{}\n",
             count_with_noun(a.samples, "sample"), a.sqnr_db, spread(a), a.cosine,
             a.score ? fmt::format(", score {:.4f} of float", *a.score) : "", macs);
}

std::string change_of_size(std::uint64_t before, std::uint64_t after) {
  const bool grown = after > before;
  const double times = static_cast<double>(grown ? after : before) / static_cast<double>(grown ? before : after);
  constexpr double kSame = 0.005;  // what two digits show
  if (times < 1 + kSame) return "as large";
  return fmt::format("{:.2f}x {}", times, grown ? "larger" : "smaller");
}

std::string counted_samples(std::uint64_t samples) {
  constexpr std::uint64_t kFew = 8;  // fewer say little of all inputs
  if (samples == 0) return "no samples";
  return count_with_noun(samples, "sample") + (samples < kFew ? " (few)" : "");
}

void print_sparsity(const std::vector<BlockedWeight>& weights) {
  double sparse = 0, dense = 0;
  std::size_t count = 0;
  for (const auto& w : weights) {
    if (!w.dense_error || !w.output_error) continue;
    sparse += in_db(*w.output_error);
    dense += in_db(*w.dense_error);
    ++count;
  }
  if (count == 0) return;
  const auto n = static_cast<double>(count);
  print_text("{} with 2:4 sparsity: SQNR of a product's results {:.1f} dB in the mean, {:.1f} dB if dense\n",
             count_with_noun(count, "weight"), sparse / n, dense / n);
}

// `member`: of a family, whose results are told together.
void print_rotation(const QuantizeResult& r, const std::string& member = {}) {
  if (!r.rotated) return;
  print_text("{}{}\n", member.empty() ? "" : member + ": ",
             rotation_words(r.rotated->kept, r.rotated->error_before, r.rotated->error_after));
}

constexpr std::array<int, 4> kBits{2, 4, 8, 0};

std::string words_of_bits(int bits) { return bits == 0 ? "float" : fmt::format("{} bits", bits); }

void print_plan(const QuantizeResult& r) {
  constexpr std::size_t kMost = 6;
  if (!r.bits_plan) return;
  for (const int bits : kBits) {
    std::vector<std::string> nodes;
    for (const auto& w : r.bits_plan->weights) {
      if (w.bits == bits) nodes.push_back(w.node);
    }
    if (nodes.empty()) continue;
    const auto more = nodes.size() > kMost ? fmt::format(" and {} more", nodes.size() - kMost) : std::string();
    nodes.resize(std::min(nodes.size(), kMost));
    print_text("{:<7} {}{}\n", words_of_bits(bits) + ":", fmt::join(nodes, ", "), more);
  }
  // Where the outputs were compared, what was expected of them is no news.
  const auto expected =
      r.accuracy ? std::string()
                 : fmt::format(", {} {:.1f} dB",
                               r.samples > 0 ? "expected SQNR of the worst output" : "total SQNR of the weights",
                               in_db(r.bits_plan->error));
  print_text("planned: {} of at most {}{}\n", format_size(r.bits_plan->size), format_size(r.bits_plan->max_size),
             expected);
  if (r.bits_plan->reached) {
    std::vector<std::string> tried;
    for (const auto& t : r.bits_plan->tried)
      tried.push_back(fmt::format("{:.6g} with {}", t.value, format_size(t.size)));
    print_text("target: {:.6g} reached on held-back samples; tried: {}\n", *r.bits_plan->reached,
               fmt::join(tried, ", "));
  }
}

void print_weights(const std::vector<BlockedWeight>& weights) {
  if (weights.empty()) return;
  const auto worst = std::min_element(weights.begin(), weights.end(),
                                      [](const auto& a, const auto& b) { return a.sqnr_db < b.sqnr_db; });
  print_text("{} in blocks, worst SQNR of {} values: {:.1f} dB, '{}', {} bits, {}\n",
             count_with_noun(weights.size(), "weight"), weights.size() == 1 ? "its" : "their", worst->sqnr_db,
             worst->name, worst->bits, worst->method);
  const auto loses_most = std::max_element(
      weights.begin(), weights.end(), [](const auto& a, const auto& b) { return a.output_error < b.output_error; });
  if (loses_most->output_error) {
    print_text("worst SQNR of a product's results on held-back samples: {:.1f} dB, '{}'\n",
               in_db(*loses_most->output_error), loses_most->node);
  }
  print_sparsity(weights);
}

void print_layers(const std::vector<LayerTuning>& layers) {
  if (layers.empty()) return;
  print_text("{:<40} {:<13} {:<8} {:>11} {:>11} {:>7} {:>8}\n", "layer", "type", "form", "nearest", "tuned", "ratio",
             "seconds");
  for (const auto& l : layers) {
    print_text("{:<40} {:<13} {:<8} {:>11.4g} {:>11.4g} {:>7.3f} {:>8.2f}{}\n", l.name, l.op_type,
               l.streamed ? "streamed" : "gram", l.error_before, l.error_after,
               l.error_before > 0 ? l.error_after / l.error_before : 1.0, l.seconds,
               l.tuned  ? ""
               : l.seen ? "  kept nearest rounding"
                        : "  no sample came to it");
  }
}

// What came of it, in one line.
std::string verdict(const QuantizeResult& r) {
  std::string text;
  if (r.latency) {
    const auto& [before, after, threads, samples, synthetic] = *r.latency;
    if (before.is_doubtful() || after.is_doubtful()) {
      text = "latency not measured: the machine was busy, ";
    } else {
      text = fmt::format("latency {:.4g} -> {:.4g} ms ({}{}, {} thread{}), ", kMilli * before.median,
                         kMilli * after.median, run::speed_words(after.ratio), synthetic ? ", synthetic inputs" : "",
                         threads, threads == 1 ? "" : "s");
    }
  }
  text += fmt::format("size {} -> {}", format_size(r.model_bytes_before), format_size(r.model_bytes_after));
  if (r.accuracy && r.accuracy->samples > 0) {
    text += fmt::format(", worst output SQNR {:.1f} dB on {}", r.accuracy->sqnr_db,
                        count_with_noun(r.accuracy->samples, "sample"));
    if (r.accuracy->worst_channels)
      text += fmt::format(" ({}: {:.1f})", run::channel_group_text(*r.accuracy->worst_channels),
                          r.accuracy->worst_channels->sqnr_db);
    if (r.accuracy->rounded_db) text += fmt::format(" ({:.1f} as devices round)", *r.accuracy->rounded_db);
  }
  return text;
}

void print_floats(const QuantizeOptions& options, const QuantizeResult& r) {
  const auto type = options.config.float_type;
  print_text("{}: {} in {}, {} in float32, {}; {:.1f} % of the float bytes converted; {} -> {}; {}\n",
             options.output.string(), count_with_noun(r.floats->nodes, "node"),
             type == FloatType::bfloat16  ? "bfloat16"
             : type == FloatType::float16 ? "float16"
                                          : "16-bit floats",
             r.floats->nodes_kept, count_with_noun(r.floats->casts, "cast"), 100 * r.floats->constants,
             format_size(r.model_bytes_before), format_size(r.model_bytes_after), counted_samples(r.samples));
}

void print_all_notes(const QuantizeResult& r) {
  print_notes(r.notes);
  for (const auto& member : r.family) {
    for (const auto& note : member.result.notes) print_note(fmt::format("{}: {}", member.name, note));
  }
}

// A line for each member.
void print_family(const QuantizeOptions& options, const QuantizeResult& r, bool verbose) {
  for (const auto& member : r.family) print_rotation(member.result, member.name);
  for (const auto& s : verbose ? r.stages : std::vector<StageReport>())
    print_text("{:<32} {:>7.2f} s   peak {:>9}\n", s.name, s.seconds, format_size(s.peak_memory));
  for (const auto& member : r.family)
    print_text("{:<6} {}: {}\n", member.name, member.output.string(), verdict(member.result));
  print_text("{}: {}, {} -> {}; {}; peak memory {}\n", options.output.string(),
             count_with_noun(r.family.size(), "model"), format_size(r.model_bytes_before),
             format_size(r.model_bytes_after), counted_samples(r.samples), format_size(r.peak_memory));
}

void print_summary(const QuantizeOptions& options, const QuantizeResult& r, bool verbose) {
  if (!r.family.empty()) return print_family(options, r, verbose);
  if (r.accuracy && has_remedies(options, r)) print_accuracy(options, *r.accuracy, verbose);
  if (tunes(options.finetune.rounding)) print_layers(r.layers);
  print_plan(r);
  print_rotation(r);
  print_weights(r.weights);
  for (const auto& s : verbose ? r.stages : std::vector<StageReport>())
    print_text("{:<24} {:>7.2f} s   peak {:>9}\n", s.name, s.seconds, format_size(s.peak_memory));
  const auto& outcome = r.outcome;
  const auto headline =
      fmt::format("{}{}{}", outcome.headline, outcome.reasons.empty() ? "" : " ", fmt::join(outcome.reasons, " "));
  if (r.floats) print_floats(options, r);
  if (r.floats && r.nodes_quantized == 0) return print_text("{}\n{}\n", headline, verdict(r));
  if (options.config.float_type == FloatType::float32 && !config::preset(options.config).quantizes)
    return print_text("{}: float32; {} -> {}\n", options.output.string(), format_size(r.model_bytes_before),
                      format_size(r.model_bytes_after));
  print_text("{}\n", headline);
  print_text("{}: {} quantized, {} left in float; {} -> {} ({}); {}; peak memory {}\n", options.output.string(),
             count_with_noun(r.nodes_quantized, "node"), r.nodes_in_float, format_size(r.model_bytes_before),
             format_size(r.model_bytes_after), change_of_size(r.model_bytes_before, r.model_bytes_after),
             counted_samples(r.samples), format_size(r.peak_memory));
  print_text("{}\n", verdict(r));
}

// The command line with what a file of options says, which a report is to tell.
std::vector<std::string> spelled_out(const std::vector<GivenOption>& given) {
  std::vector<std::string> words{"detent", "quantize"};
  for (const auto& entry : given) {
    if (entry.option->positional()) words.insert(words.end(), entry.texts.begin(), entry.texts.end());
    if (!entry.option->positional() && entry.option->name != "config") words.push_back(as_word(entry));
  }
  return words;
}

void run(QuantizeOptions options, const config::CommandLine& line, const std::vector<GivenOption>& given) {
  if (!line.model_fingerprint.empty()) check_model(options.model, line.model_fingerprint);
  std::optional<RunFile> run_file;
  if (line.save_config) run_file.emplace(*line.save_config, given);
  const auto pictures = take_pictures(line, options.model, options);
  ModelToStdout to_stdout(options);
  ProgressLine progress;
  progress.expect(expected_stages(options));
  progress.set_memory_budget(options.resources.memory_budget.value_or(0));
  options.progress = progress_to(progress, line.quiet);
  options.stage_expected = [&](const std::string& stage, double times) { progress.expect(stage, times); };
  options.layer_tuned = [&](const LayerTuning& layer) {
    progress.set_detail(fmt::format("{}: error {:.3g} -> {:.3g}", layer.name, layer.error_before, layer.error_after));
  };
  const auto result = quantize(options);
  progress.finish();
  if (result.rank != 0) return;
  if (run_file) run_file->commit(run_options(given), options.model);
  to_stdout.send();
  if (to_stdout.is_wanted()) options.output = "-";
  if (line.json) {
    auto json = quantize_json(options, result);
    json["config"] = run_options(given);
    json["config"]["model-fingerprint"] = fingerprint_of(options.model);
    json["made"] = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
    json["detent"] = DETENT_VERSION;
    print_json(json);
    return;
  }
  if (line.quiet) return;
  print_all_notes(result);
  if (line.summary == config::SummaryForm::md) {
    const auto json = quantize_json(options, result);
    const auto members = json.value("family", std::vector{json});
    write_out(markdown_table(members));
  } else {
    print_summary(options, result, line.verbose);
  }
}

}  // namespace

void add_quantize(CLI::App& app, Signals& signals, const std::vector<std::string>& words) {
  auto* command = app.add_subcommand(
      "quantize", "Write a quantized model: integers, weights in blocks or small floats instead of float32");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kQuantize);
  command->footer(
      "Example:\n  detent quantize model.onnx -o model.int8.onnx --calibration-data samples/\n\n"
      "Started by mpirun, each process takes a share of the work; rank 0 writes.");
  command->callback([declared, &signals, words] {
    QuantizeOptions options;
    config::CommandLine line;
    options.command = words;
    const auto given = declared->read(options, line);
    if (line.options_file) options.command = spelled_out(given);
    options.stop = signals.token();
    run(std::move(options), line, given);
  });
}

}  // namespace detent::cli
