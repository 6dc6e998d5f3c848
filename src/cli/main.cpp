// The command line: options in, one call of the library, a readable answer or one line that says what is wrong.
#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "cli/commands/commands.h"
#include "cli/isolation.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/signals.h"
#include "exec/guarded_session.h"

namespace {

using detent::cli::Signals;

void run(const std::vector<std::string>& words, Signals& signals) {
  using namespace detent::cli;
  CLI::App app{"detent quantizes ONNX models after training, at the memory cost of plain inference.", "detent"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "show the usual options");
  app.set_help_all_flag("--help-all", "show all options");
  app.set_version_flag("--version", "detent " DETENT_VERSION);
  app.allow_windows_style_options(false);  // "/name" is a path
  app.require_subcommand(0, 1);            // an unknown word is then reported as such
  app.footer(
      "detent help COMMAND lists a command's options.\n\nExit codes: 0 done, 2 usage, 3 bad model or data, 4 out of "
      "memory, disk or time, 5 runtime or device, 130 interrupted, 1 a bug.");

  for (const auto* each : kSubcommands) add_command(app, *each, signals, words);
  add_options(app);
  add_report(app);
  add_completions(app);
  const auto usage = [&](const std::string& what) { return detent::usage_error(what, see_help(app, words)); };
  for (const auto& word : words) {  // CLI11 would take the next word for the value
    if (word.starts_with("--") && word.ends_with('=')) throw usage(word.substr(0, word.size() - 1) + " has no value");
  }
  try {
    const auto given = with_help_as_option(app, words);
    std::vector<std::string> reversed(given.rbegin(), given.rend() - 1);  // as CLI11 takes them, without the program
    app.parse(std::move(reversed));
    if (app.get_subcommands().empty()) throw usage("no command given");
  } catch (const CLI::CallForHelp&) {
    print_help(app.help());
  } catch (const CLI::CallForAllHelp&) {
    print_help(app.help("", CLI::AppFormatMode::All));
  } catch (const CLI::ExtrasError&) {
    throw unexpected_word(app);
  } catch (const CLI::CallForVersion& e) {
    write_out(fmt::format("{}\n", e.what()));
  } catch (const CLI::ParseError& e) {
    if (has_unknown_option(app)) throw unexpected_word(app);  // it explains what else is wrong
    throw usage(in_words(e.what()));
  }
  flush_out();
}

// What was thrown, as an exit code and one line. Throws std::bad_alloc where there is no memory for that.
int fail_with(const std::exception_ptr& thrown, const Signals& signals) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    return detent::cli::fail_without_memory();
  } catch (const detent::cli::StdoutClosed&) {
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);  // ends as others do whose reader has gone
    return 1;
  } catch (...) {
    auto error = detent::as_error(std::current_exception());
    if (error.kind() == detent::ErrorKind::interrupted) error = signals.reason();
    if (error.kind() == detent::ErrorKind::internal && error.hint().empty())
      error = detent::Error(error.kind(), error.what(), "please report it");
    return detent::cli::fail(error);
  }
}

int guarded_run(int argc, char** argv) {
  const auto words = detent::command_line(argc, argv);
  Signals signals;
  try {
    run(words, signals);
    return 0;
  } catch (const detent::cli::WantsIsolation&) {
    signals.stop_taking_signals();
    return detent::cli::run_isolated(words);
  } catch (...) {
    return fail_with(std::current_exception(), signals);
  }
}

}  // namespace

int main(int argc, char** argv) {
  detent::open_standard_descriptors();
  detent::cli::settle_stack();
  if (const auto socket = detent::exec::guarded_socket()) return detent::exec::serve_guarded_session(*socket);
  detent::cli::hold_ending_signals();
  detent::cli::clean_up_at_crash();
  detent::cli::recognise_isolation();
  detent::set_overdue_handler(detent::cli::end_process);
  try {
    return guarded_run(argc, argv);
  } catch (const std::bad_alloc&) {
    return detent::cli::fail_without_memory();
  } catch (...) {  // no thread for signals
    return detent::cli::fail(detent::as_error(std::current_exception()));
  }
}
