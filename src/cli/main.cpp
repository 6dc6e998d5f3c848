// The command line: options in, one call of the library, a readable answer or one line that says what is wrong.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/signals.h"
#include "detent/error.h"

namespace {

int fail(int code, const std::string& what, const std::string& hint = {}) {
  fmt::print(stderr, "detent: error: {}{}{}\n", what, hint.empty() ? "" : "; ", hint);
  return code;
}

int run(int argc, char** argv) {
  CLI::App app{"detent quantizes ONNX models after training, at the memory cost of plain inference.", "detent"};
  app.set_version_flag("--version", "detent " DETENT_VERSION);
  app.require_subcommand(0, 1);  // an unknown word is then reported as such
  app.footer(
      "Exit codes: 0 done, 2 usage, 3 bad model or data, 4 out of memory or disk, 5 runtime or device, 130 "
      "interrupted, 1 a bug.");

  const detent::cli::Signals signals;
  const auto words = std::vector<std::string>(argv, argv + argc);
  detent::cli::add_quantize(app, signals.token(), words);
  detent::cli::add_calibrate(app, signals.token(), words);
  detent::cli::add_plan(app);
  detent::cli::add_inspect(app);
  detent::cli::add_compare(app, signals.token());
  detent::cli::add_bench(app, signals.token());
  detent::cli::add_options(app);
  for (const auto& word : words) {  // CLI11 would take the next word for the value
    if (word.starts_with("--") && word.ends_with('='))
      return fail(exit_code(detent::ErrorKind::usage), word.substr(0, word.size() - 1) + " has no value",
                  "see: detent --help");
  }
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend() - 1);  // as CLI11 takes them, without the program
    app.parse(std::move(reversed));
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return fail(exit_code(detent::ErrorKind::usage), e.what(), "see: detent --help");
  }
  if (app.get_subcommands().empty())
    return fail(exit_code(detent::ErrorKind::usage), "no command given", "see: detent --help");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const detent::Error& e) {
    return fail(exit_code(e.kind()), e.what(), e.hint());
  } catch (const std::bad_alloc&) {
    return fail(exit_code(detent::ErrorKind::resource), "out of memory", "give smaller samples, or --batch-size");
  } catch (const std::exception& e) {
    return fail(exit_code(detent::ErrorKind::internal), fmt::format("internal error: {}", e.what()),
                "please report it");
  }
}
