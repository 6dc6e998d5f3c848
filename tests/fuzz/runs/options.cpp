// Options, as words of the command line and as a file of YAML.
#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "cli/slips.h"
#include "config/identity.h"
#include "config/validate.h"
#include "fuzz/fuzz.h"

namespace detent::fuzz {
namespace {

using Words = std::vector<std::string>;

template <class Options>
void read(const cli::Declared& declared) {
  Options options;
  config::CommandLine line;
  declared.read(options, line);
  if constexpr (requires { config::validate(options); }) config::validate(options);
}

void parse(const Words& words) {
  CLI::App app{"", "detent"};
  app.require_subcommand(0, 1);
  for (const auto& [command, name] : config::commands()) {
    auto* sub = app.add_subcommand(std::string(name));
    if (std::ranges::find(words, name) == words.end()) continue;  // declaring all takes most of the time
    const auto declared = std::make_shared<cli::Declared>(*sub, command);
    sub->callback([declared, command = command] {
      switch (command) {
        case config::kQuantize:
        case config::kPlan: return read<QuantizeOptions>(*declared);
        case config::kCalibrate: return read<CalibrateOptions>(*declared);
        case config::kCompare: return read<CompareOptions>(*declared);
        case config::kInspect: return read<InspectOptions>(*declared);
        case config::kCheck: return read<CheckOptions>(*declared);
        case config::kVerify: return read<VerifyOptions>(*declared);
        default: return read<BenchOptions>(*declared);
      }
    });
  }
  try {
    const auto given = cli::with_help_as_option(app, words);
    Words reversed(given.rbegin(), given.rend() - 1);
    app.parse(std::move(reversed));
  } catch (const CLI::Success&) {
  } catch (const CLI::ExtrasError&) {
    throw cli::unexpected_word(app);
  } catch (const CLI::ParseError&) {  // becomes a usage error
  }
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

const Registered command_line{{"command_line", run_words}};
const Registered yaml{{"yaml", run_yaml}};

}  // namespace
}  // namespace detent::fuzz
