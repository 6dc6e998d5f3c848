// `-o -`: the model goes to standard output.
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/paths.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/output/result_json.h"
#include "cli/output/tables.h"
#include "config/formats.h"
#include "config/option.h"
#include "config/presets.h"
#include "detent/quantize.h"
#include "onnx/model.h"
#include "run/comparison/latency.h"
#include "run/comparison/outcome.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/files/run_directory.h"

namespace detent::cli {

namespace {

namespace fs = std::filesystem;

// What says how a run is told of, or where its options come from.
constexpr std::string_view kLeftOut[] = {"config",  "save-config",      "json", "quiet", "verbose", "summary", "resume",
                                         "isolate", "model-fingerprint"};

bool is_path(const config::Option& option) {
  const auto type = config::type_of(config::any_member(option), option.form);
  return type == "path" || type == "paths";
}

std::string whole(const fs::path& path) { return paths::absolute(path).lexically_normal().string(); }

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto point = first_code_point(text);
    if (!point.valid) return false;
    text.remove_prefix(point.length);
  }
  return true;
}

void write_value(YAML::Emitter& out, const nlohmann::json& value) {
  if (!value.is_array()) {
    out << YAML::DoubleQuoted << value.get<std::string>();
    return;
  }
  out << YAML::Flow << YAML::BeginSeq;
  for (const auto& item : value) out << YAML::DoubleQuoted << item.get<std::string>();
  out << YAML::EndSeq;
}

std::string fingerprint_of(const fs::path& model) {
  return run::fingerprint_of(onnx::read_model(run::model_file(model))).text();
}

// The options that a user gave, by their names: {"model": "/path/m.onnx", "output": …, "format": "q4"}.
nlohmann::json run_options(const std::vector<GivenOption>& given) {
  auto all = nlohmann::json::object();
  for (const auto& entry : given) {
    const auto& option = *entry.option;
    if (std::find(std::begin(kLeftOut), std::end(kLeftOut), option.name) != std::end(kLeftOut)) continue;
    auto texts = entry.texts;
    for (auto& text : texts) {
      if (is_path(option) && text != "-") text = whole(text);
    }
    const bool is_plain = texts.size() == 1 && !config::is_list(config::any_member(option));
    all[key_of(option)] = is_plain ? nlohmann::json(texts.front()) : nlohmann::json(texts);
  }
  return all;
}

// Options as YAML, written when commit() is called; without, nothing is written.
class RunFile {
 public:
  // Throws usage where `path` cannot be written, or is that of another file that these options name.
  RunFile(const fs::path& path, const std::vector<GivenOption>& given) : file_((run::check_place(path), path)) {
    for (const auto& entry : given) {
      for (const auto& text : entry.texts) {
        // YAML holds Unicode alone, so that another name would be read from it.
        if (!is_utf8(text))
          throw usage_error(fmt::format("--save-config: '{}' of {} is not UTF-8", printable(text), entry.name),
                            "give it another name, or leave out --save-config");
      }
      if (entry.option->name == "calibration-data" && !entry.texts.empty())
        run::check_apart({path}, fs::path(entry.texts.front()));
      if (entry.option->name == "save-config" || !is_path(*entry.option)) continue;
      for (const auto& text : entry.texts) {
        if (whole(text) == whole(path))
          throw usage_error(fmt::format("--save-config: '{}' is the file of {} as well", path.string(), entry.name),
                            "give it another name");
      }
    }
  }

  void commit(nlohmann::json options, const fs::path& model) {
    options["model-fingerprint"] = fingerprint_of(model);
    YAML::Emitter out;
    out << YAML::Comment("detent " DETENT_VERSION "; makes this run again: detent quantize --config THIS_FILE");
    out << YAML::Newline << YAML::BeginMap;
    for (const auto& [name, value] : options.items()) {
      out << YAML::Key << name << YAML::Value;
      write_value(out, value);
    }
    out << YAML::EndMap << YAML::Newline;
    file_.write(std::as_bytes(std::span(out.c_str(), out.size())));
    file_.commit();
  }

 private:
  AtomicFile file_;
};

void check_model(const fs::path& model, const std::string& fingerprint) {
  if (fingerprint_of(model) == fingerprint) return;
  throw bad_input(fmt::format("model '{}' is not the one that this run was made with", model.string()),
                  "give that model, or leave out model-fingerprint");
}

constexpr const char* kName = "model.onnx";
constexpr const char* kGiveFile = "give a file name";

void check_fits_stdout(const QuantizeOptions& options) {
  if (::isatty(STDOUT_FILENO) == 1)
    throw usage_error("-o -: a model would fill the terminal", "send it to a file or a program, as in: > model.onnx");
  if (options.resources.resume) throw usage_error("--resume needs an output that a later run finds again", kGiveFile);
  if (options.external_data_threshold)
    throw usage_error("-o -: with --set external-data-threshold there would be two files to write", kGiveFile);
  if (!options.family.empty()) throw usage_error("-o -: --family writes a folder", "give the name of a new one");
  if (paths::is_folder(options.model))
    throw usage_error("-o -: the result of a folder is a folder", "give the name of a new one");
}

void write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) throw StdoutClosed();
    if (written < 0) throw resource_error("cannot write to standard output: " + errno_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

// With the output "-" the run writes into a private directory in Resources::work_dir, and send() copies the model to
// standard output; until then all that is printed goes to standard error. With any other output nothing is changed.
class ModelToStdout {
 public:
  explicit ModelToStdout(QuantizeOptions& options) {
    if (options.output != "-") return;
    check_fits_stdout(options);
    stdout_ = UniqueFd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!stdout_.valid() || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
      throw failed_call(errno, "-o -", ErrorKind::resource);
    directory_.emplace(options.resources.work_dir.value_or(""));
    options.output = directory_->path() / kName;
  }

  bool is_wanted() const noexcept { return directory_.has_value(); }

  void send() {
    if (!is_wanted()) return;
    for (const auto& file : paths::entries_of(directory_->path())) {
      if (file.filename() != kName)
        throw bad_input("-o -: the model is larger than 2 GiB, so that its weights are in a file of their own",
                        kGiveFile);
    }
    const auto model = MappedFile::open(directory_->path() / kName, "model");
    write_all(stdout_.get(), model->bytes());
  }

 private:
  std::optional<TempDir> directory_;
  UniqueFd stdout_;
};

void print_fallbacks(const char* what, const std::vector<FallbackNode>& nodes, bool verbose) {
  constexpr std::size_t kMost = 3;
  const auto shown = verbose ? nodes.size() : std::min(nodes.size(), kMost);
  for (const auto& n : std::span(nodes).first(shown)) {
    print_text("{}: {}, up to {:.1f} % of an output's error and {:.1f} % of the multiplications\n", what, n.node,
               100 * n.error_share, 100 * n.macs_share);
  }
  if (shown < nodes.size()) print_text("{}: {} more (-v lists them)\n", what, nodes.size() - shown);
}

void print_remedies(const AccuracyResult& a) {
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
  if (verbose) print_remedies(a);
  print_fallbacks("in float", a.float_nodes, verbose);
  print_fallbacks("with 16-bit activations", a.wide_nodes, verbose);
  if (a.tuned) {
    print_text("weights by GPTQ: SQNR of a typical sample {:.1f} -> {:.1f} dB{}\n", in_db(a.tuned->error_before),
               in_db(a.tuned->error_after), a.tuned->kept ? "" : ", so they are not used");
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
  print_text("{} with 2:4 sparsity: SQNR of a layer's results {:.1f} dB in the mean, {:.1f} dB if dense\n",
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
    print_text("worst SQNR of a layer's results on held-back samples: {:.1f} dB, '{}'\n",
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
    const auto& [before, after, threads, samples, synthetic, of_target] = *r.latency;
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
    if (r.accuracy->worst_sample_db && r.accuracy->samples > 1)
      text += fmt::format(", {:.1f} on the worst", *r.accuracy->worst_sample_db);
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
  if (tunes(options.finetune.solver)) print_layers(r.layers);
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

void run(Options& options, const config::CommandLine& line, const std::vector<GivenOption>& given) {
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
  if (print_members(line, result)) return;
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
  print_notes(result.notes, line.verbose);
  for (const auto& member : result.family) print_notes(member.result.notes, line.verbose, member.name);
  if (line.summary == config::SummaryForm::md) {
    const auto json = quantize_json(options, result);
    const auto members = json.value("family", std::vector{json});
    write_out(markdown_table(members));
  } else {
    print_summary(options, result, line.verbose);
  }
}

}  // namespace

const Subcommand quantize_command{
    config::kQuantize, "Write a quantized model: integers, weights in blocks or small floats instead of float32",
    "Example:\n  detent quantize model.onnx -o model.int8.onnx --calibration-data samples/\n\n"
    "Started by mpirun, each process takes a share of the work; rank 0 writes.",
    [](Call& call) {
      auto& [options, line, given] = call;
      if (line.options_file) options.command = spelled_out(given);
      run(options, line, given);
    }};

}  // namespace detent::cli
