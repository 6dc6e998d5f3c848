#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdlib>

#include "base/text.h"
#include "cli/isolation.h"
#include "cli/options.h"
#include "cli/output/tables.h"
#include "config/validate.h"
#include "data/given_inputs.h"
#include "detent/calibrate.h"
#include "detent/check.h"
#include "detent/compare.h"
#include "detent/inspect.h"
#include "detent/plan.h"
#include "detent/quantize.h"
#include "detent/verify.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/model.h"
#include "profile/machine.h"
#include "profile/report.h"
#include "profile/trace.h"

namespace detent::fuzz {
namespace {

// Whole runs on a model: inspect, plan, quantize and weights alone; check, compare and verify, which read what others
// have quantized. The runtime is in this process.

namespace fs = std::filesystem;

/// As detent writes a model: readable again.
void check_written(const fs::path& path) {
  require(try_to([&] { onnx::read_model(path); }), "a model that was written can be read");
}

/// Two samples of made-up values for the model's inputs, none where they would be large or have types that samples do
/// not come in.
class Samples final : public SampleStream {
 public:
  explicit Samples(const onnx::Model& model) {
    std::vector<data::InputSpec> inputs;
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const auto& input : model.graph.inputs) {
      const auto is_input = [&](const auto& tensor) { return tensor.name == input.name; };
      if (std::ranges::any_of(model.graph.initializers, is_input) || !input.shape) continue;
      std::vector<std::int64_t> shape;
      double size = 1;
      for (const auto& dim : *input.shape) {
        shape.push_back(dim.is_static() ? dim.value : 2);
        size *= static_cast<double>(shape.back());
      }
      if (size > 4096) return;
      inputs.push_back({input.name, input.type, shape});
      shapes[input.name] = shape;
    }
    if (!try_to([&] { arrays_ = data::synthetic_inputs(inputs, shapes); })) return;
    for (const auto& input : inputs) names_.push_back(input.name);
  }

  std::optional<std::vector<NamedArray>> next() override {
    if (given_ == 2) return std::nullopt;
    ++given_;
    std::vector<NamedArray> sample;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      sample.push_back(
          {names_[i], static_cast<ElementType>(arrays_[i].type), arrays_[i].shape, arrays_[i].bytes, arrays_[i].owner});
    }
    return sample;
  }
  void rewind() override { given_ = 0; }
  std::size_t size() const override { return 2; }

 private:
  std::vector<std::string> names_;
  std::vector<data::Array> arrays_;
  int given_ = 0;
};

/// What a first byte chooses of the options.
QuantizeOptions options_of(std::uint8_t choice, const fs::path& model) {
  QuantizeOptions options;
  require(std::getenv("DETENT_ONNXRUNTIME") != nullptr, "$DETENT_ONNXRUNTIME names the runtime");
  const char* preset = (choice & 1) != 0 ? "plain" : "balanced";
  options.config = preset_config(preset);
  options.method = preset_method(preset);
  options.model = model;
  options.output = folder() / "out.onnx";
  options.kernel_table = folder() / "kernels.json";
  options.optimize_for = OptimizeFor::size;  // no timing: it takes long, and differs from run to run
  options.bench = false;
  options.threads = 1;
  options.resources.memory_budget = std::uint64_t{256} << 20;
  options.resources.disk_budget = std::uint64_t{16} << 20;
  options.resources.work_dir = folder();
  options.resources.time_limit = 5;
  options.allow_nonfinite = true;
  if ((choice & 2) != 0) options.accuracy.sensitivity = SensitivityMode::off;
  if ((choice & 4) != 0) options.config.per_channel = true;
  if ((choice & 8) != 0) options.resources.segments = 2;
  if ((choice & 16) != 0) options.external_data_threshold = 16;
  if ((choice & 32) != 0) options.config.activation_type = QuantType::int16;
  return options;
}

void run_inspect(Bytes input) {
  const MemoryFile model(input);
  InspectOptions options;
  options.model = model.path();
  try_to([&] { inspect(options); });
}

void run_plan(Bytes input) {
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  try_to([&] {
    Samples samples(onnx::read_model(model.path()));
    QuantizeOptions options = options_of(choice, model.path());
    options.samples = &samples;
    plan(options);
  });
}

void run_quantize(Bytes input) {
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  fs::remove(folder() / "out.onnx");
  try_to([&] {
    Samples samples(onnx::read_model(model.path()));
    QuantizeOptions options = options_of(choice, model.path());
    options.samples = &samples;
    quantize(options);
    check_written(options.output);
  });
}

void run_weights(Bytes input) {
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  fs::remove(folder() / "out.onnx");
  try_to([&] {
    QuantizeOptions options = options_of(static_cast<std::uint8_t>(choice & 16), model.path());
    options.weights_only.enabled = true;
    options.allow_nonfinite = false;
    options.weights_only.bits = (choice & 1) != 0 ? WeightBits::eight : WeightBits::four;
    options.weights_only.form = (choice & 2) != 0 ? WeightForm::matmul_nbits : WeightForm::qdq;
    quantize(options);
    check_written(options.output);
  });
}

/// A model that a stranger has quantized: beside itself, since any two models have to be alike in more than a mutation
/// leaves.
void run_quantized(Bytes input) {
  static constexpr const char* kTargets[] = {"ort-cpu", "openvino", "qnn",     "tensorrt",
                                             "xnnpack", "coreml",   "amd-npu", "tflite-like"};
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  try_to([&] {
    CheckOptions options;
    options.model = model.path();
    options.config.target = kTargets[choice % std::size(kTargets)];
    check(options);
  });
  const auto beside = [&](const auto& call) {
    try_to([&] {
      Options options;
      Samples samples(onnx::read_model(model.path()));
      options.model = options.quantized_model = model.path();
      options.samples = &samples;
      options.threads = 1;
      options.bench = false;
      call(options);
    });
  };
  if ((choice & 8) != 0) return beside(compare);
  beside(verify);
}

const Registered quantized_target{{"quantized", run_quantized, {&kModel}, 1, 300}};
const Registered inspects_target{{"inspect", run_inspect, {&kModel}, 0, 60}};
const Registered plans_target{{"plan", run_plan, {&kModel}, 1, 200}};
const Registered quantizes_target{{"quantize", run_quantize, {&kModel}, 1, 120}};
const Registered weights_target{{"weights", run_weights, {&kModel}, 1, 50}};

// Options, as words of the command line and as a file of YAML.

using Words = std::vector<std::string>;

// CLI11's app keeps the order of the words of one line in the next.
struct Forgetful : CLI::App {
  using App::App;
  void forget() {
    clear();
    parse_order_.clear();
  }
};

// All commands with their options, declared once: that takes a hundred times as long as reading a line.
class Program {
 public:
  Program() {
    app_.require_subcommand(0, 1);
    for (const auto& [command, name] : config::kCommands) {
      auto sub = commands_.emplace_back(std::make_shared<Forgetful>("", std::string(name)));
      const auto declared = std::make_shared<cli::DeclaredOptions>(*sub, command);
      sub->callback([declared, command = command] { read_options(*declared, command); });
      app_.add_subcommand(sub);
    }
  }

  void parse(const Words& words) {
    app_.forget();
    for (const auto& command : commands_) command->forget();
    try {
      const auto given = cli::with_help_as_option(app_, words);
      Words reversed(given.rbegin(), given.rend() - 1);
      app_.parse(std::move(reversed));
    } catch (const CLI::Success&) {
    } catch (const CLI::ExtrasError&) {
      throw cli::unexpected_word(app_);
    } catch (const CLI::ParseError&) {  // becomes a usage error
    }
  }

 private:
  static void read_options(const cli::DeclaredOptions& declared, config::Command command) {
    Options options;
    config::CommandLine line;
    declared.read(options, line);
    config::validate(options, command);
  }

  Forgetful app_{"", "detent"};
  std::vector<std::shared_ptr<Forgetful>> commands_;
};

void parse(const Words& words) {
  static Program program;
  program.parse(words);
}

Words split(std::string_view text) {
  Words words{"detent"};
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    words.emplace_back(text.substr(0, end));
    std::erase(words.back(), '\0');
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

void run_words(Bytes input) {
  const Words words = split(as_text(input));
  // What the words name is opened: only configurations, and those of this run.
  for (const auto& word : words) {
    if (word.starts_with("--config") || word.starts_with("--c")) return;
  }
  try_to([&] { parse(words); });
}

// No other process is started: as if this were it.
const bool isolated = cli::is_isolated = true;

void run_yaml(Bytes input) {
  Parts parts(input);
  const auto& commands = config::kCommands;
  const auto& [command, name] = commands[parts.byte() % std::size(commands)];
  const MemoryFile file(parts.rest());
  Words words{"detent", std::string(name), "model.onnx", "--config", file.path()};
  if (command == config::kQuantize || command == config::kCalibrate) words.insert(words.end(), {"-o", "out"});
  if (command == config::kCompare || command == config::kBench) words.insert(words.begin() + 2, "other.onnx");
  try_to([&] { parse(words); });
}

const Registered command_line_target{{"command_line", run_words, {}, 0, 3}};
const Registered yaml_target{{"yaml", run_yaml, {}, 0, 6}};

// The report's page and the trace: whatever names and figures hold, they stay data.

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

const Registered result_target{{"result", run_result, {}, 0, 4}};
const Registered page_target{{"page", run_page, {}, 0, 8}};
const Registered trace_target{{"trace", run_trace, {}, 0, 15}};

}  // namespace
}  // namespace detent::fuzz

namespace detent::profile {

// In place of the library's: measuring the machine takes longer than all else that a plan does, and differs each time.

MachinePeaks measure_machine(int threads, const std::filesystem::path&) noexcept { return {1e10, 1e10, 1e9, threads}; }

}  // namespace detent::profile
