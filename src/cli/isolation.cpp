#include "cli/isolation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/failure.h"
#include "base/file.h"
#include "base/leftovers_journal.h"
#include "base/spawn_texts.h"
#include "cli/output/output.h"
#include "cli/signals.h"

namespace detent::cli {
namespace {

constexpr const char* kVariable = "DETENT_ISOLATED";  // "DESCRIPTOR PARENT"

// In a process group of its own, so that Ctrl-C in a terminal comes once, from here.
pid_t start(std::vector<std::string> words, int journal) {
  auto environment = environment_with(fmt::format("{}={} {}", kVariable, journal, ::getpid()));
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, "/proc/self/exe", nullptr, &attributes, pointers_to(words).data(),
                                   pointers_to(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw failed_call(failed, "cannot start a process for --isolate", ErrorKind::resource);
  return child;
}

struct End {
  int status = 0;      // as of waitpid()
  bool asked = false;  // a signal was handed on
};

// Ctrl-Z stops both processes, and what continues this one continues the other.
void stop_both(pid_t child) {
  ::kill(child, SIGSTOP);
  std::raise(SIGSTOP);
  ::kill(child, SIGCONT);
}

End wait_for(pid_t child, const sigset_t& signals) {
  End end;
  while (true) {
    const int number = ::sigwaitinfo(&signals, nullptr);
    if (number == SIGCHLD) {
      // Also those that the child left, which came to this process.
      for (pid_t ended = 0; (ended = ::waitpid(-1, &end.status, WNOHANG)) > 0;) {
        if (ended == child) return end;
      }
    } else if (number == SIGTSTP) {
      stop_both(child);
    } else if (number > 0) {
      end.asked = true;
      ::kill(child, number);
    }
  }
}

// What the child had started, as an accuracy command.
void end_orphans() {
  const auto path = fmt::format("/proc/self/task/{}/children", ::gettid());
  for (int tries = 0; tries < 100; ++tries) {  // each may leave others
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char text[4096];
    const auto count = file.valid() ? ::read(file.get(), text, sizeof text) : 0;
    const char* const end = text + std::max<ssize_t>(count, 0);
    pid_t orphan = 0;
    if (std::from_chars(text, end, orphan).ec != std::errc() || orphan <= 0) return;
    ::kill(orphan, SIGKILL);
    ::waitpid(orphan, nullptr, 0);
  }
}

Error error_of(const End& end) {
  const int number = WTERMSIG(end.status);
  if (end.asked) return interrupted();
  if (number == SIGKILL)
    return resource_error("the process that ran the model was killed, as the system does when memory runs out",
                          "give a --memory-budget, smaller samples or a smaller batch");
  return bad_input(fmt::format("the process that ran the model ended by a signal ({})", ::strsignal(number)),
                   "no such model can be used; if you trust this one, please report it");
}

}  // namespace

void recognise_isolation() {
  const char* const value = std::getenv(kVariable);
  if (value == nullptr) return;
  int journal = -1, parent = 0;
  const char* const end = value + std::strlen(value);
  const auto [next, failed] = std::from_chars(value, end, journal);
  if (failed != std::errc() || next == end || std::from_chars(next + 1, end, parent).ec != std::errc()) return;
  ::unsetenv(kVariable);  // not for what this process starts
  ::fcntl(journal, F_SETFD, FD_CLOEXEC);
  keep_journal_of_leftovers(journal);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(exit_code(ErrorKind::interrupted));  // it died before
  is_isolated = true;
}

int run_isolated(const std::vector<std::string>& words) {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t signals = ending_signals();
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGTSTP);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const UniqueFd journal(::memfd_create("detent-leftovers", 0));
  if (!journal.valid()) throw failed_call(errno, "no memory for --isolate", ErrorKind::resource);
  const End end = wait_for(start(words, journal.get()), signals);
  if (WIFEXITED(end.status)) return WEXITSTATUS(end.status);
  end_orphans();
  remove_leftovers_of(journal.get());
  if (WTERMSIG(end.status) == SIGPIPE) {  // nobody reads standard output any more
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  return fail(error_of(end));
}

}  // namespace detent::cli
