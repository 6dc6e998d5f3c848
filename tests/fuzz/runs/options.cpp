// Options, as words of the command line and as a file of YAML.
#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "config/validate.h"
#include "fuzz/fuzz.h"

namespace detent::fuzz {
namespace {

using Words = std::vector<std::string>;

template <class Options>
void read(const cli::DeclaredOptions& declared) {
  Options options;
  config::CommandLine line;
  declared.read(options, line);
  if constexpr (requires { config::validate(options); }) config::validate(options);
}

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
    for (const auto& [command, name] : config::commands()) {
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
    switch (command) {
      case config::kQuantize:
      case config::kPlan: return read<QuantizeOptions>(declared);
      case config::kCalibrate: return read<CalibrateOptions>(declared);
      case config::kCompare: return read<CompareOptions>(declared);
      case config::kInspect: return read<InspectOptions>(declared);
      case config::kCheck: return read<CheckOptions>(declared);
      case config::kVerify: return read<VerifyOptions>(declared);
      default: return read<BenchOptions>(declared);
    }
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
  const auto commands = config::commands();
  const auto& [command, name] = commands[parts.byte() % commands.size()];
  const MemoryFile file(parts.rest());
  Words words{"detent", std::string(name), "model.onnx", "--config", file.path()};
  if (command == config::kQuantize || command == config::kCalibrate) words.insert(words.end(), {"-o", "out"});
  if (command == config::kCompare || command == config::kBench) words.insert(words.begin() + 2, "other.onnx");
  try_to([&] { parse(words); });
}

const Registered command_line{{"command_line", run_words, {}, 0, 3}};
const Registered yaml{{"yaml", run_yaml, {}, 0, 6}};

}  // namespace
}  // namespace detent::fuzz
