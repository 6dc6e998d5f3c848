#include "cli/isolation.h"

#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/start_process.h"
#include "cli/output/output.h"
#include "cli/signals.h"
#include "detent/error.h"
#include "run/command.h"

namespace detent::cli {
namespace {

constexpr const char* kVariable = "DETENT_ISOLATED";  // "DESCRIPTOR PARENT"

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
  const auto entry = fmt::format("{}={} {}", kVariable, journal.get(), ::getpid());
  const End end =
      wait_for(start_process("/proc/self/exe", words, entry, nullptr, "cannot start a process for --isolate"), signals);
  if (WIFEXITED(end.status)) return WEXITSTATUS(end.status);
  end_orphans();
  remove_leftovers_of(journal.get());
  if (WTERMSIG(end.status) == SIGPIPE) {  // nobody reads standard output any more
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  return fail(error_of(end));
}

namespace {

// A line of /proc/self/maps: FROM-TO PERMISSIONS OFFSET DEVICE INODE PATH.
struct Mapping {
  std::uint64_t offset = 0;  // in the file, of the address that was asked for
  std::array<char, PATH_MAX> path{};
};

std::string_view next_word(std::string_view& line, char end) {
  const auto at = std::min(line.find(end), line.size());
  const auto word = line.substr(0, at);
  line.remove_prefix(std::min(at + 1, line.size()));
  return word;
}

std::uint64_t hexadecimal(std::string_view word) {
  std::uint64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value, 16);
  return value;
}

bool is_mapping_of(std::uint64_t address, std::string_view line, Mapping& mapping) {
  const auto from = hexadecimal(next_word(line, '-')), to = hexadecimal(next_word(line, ' '));
  if (address < from || address >= to) return false;
  next_word(line, ' ');
  mapping.offset = hexadecimal(next_word(line, ' ')) + (address - from);
  const auto slash = line.find('/');
  if (slash == std::string_view::npos) return false;
  line.remove_prefix(slash);
  if (line.size() >= mapping.path.size()) return false;
  std::memcpy(mapping.path.data(), line.data(), line.size());
  return true;
}

// Of calls that are allowed in a handler only.
bool find_mapping(std::uint64_t address, Mapping& mapping) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::array<char, PATH_MAX + 256> line{};
  std::size_t length = 0;
  char c = 0;
  bool found = false;
  while (!found && ::read(fd, &c, 1) == 1) {
    if (c == '\n') {
      found = is_mapping_of(address, {line.data(), length}, mapping);
      length = 0;
    } else if (length < line.size()) {
      line[length++] = c;
    }
  }
  ::close(fd);
  return found;
}

// The name of a file comes from outside: what could move a terminal's cursor does not reach it.
void say_name(char* name) {
  for (char* c = name; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7F) *c = '?';
  }
  say_raw(name);
}

// Runs in the thread that touched the page, in the midst of reading a file: it holds none of the locks that removing
// needs, and nothing of that takes memory.
void on_bus_error(int number, siginfo_t* info, void*) {
  static std::atomic_flag first = ATOMIC_FLAG_INIT;
  while (first.test_and_set()) ::pause();  // another thread is at it
  static Mapping mapping;
  if (!find_mapping(reinterpret_cast<std::uintptr_t>(info->si_addr), mapping)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  run::kill_command();
  remove_leftovers();
  struct stat now {};
  constexpr std::string_view kDeleted = " (deleted)";
  const bool deleted = std::string_view(mapping.path.data()).ends_with(kDeleted);
  const bool shorter =
      deleted || ::stat(mapping.path.data(), &now) != 0 || static_cast<std::uint64_t>(now.st_size) <= mapping.offset;
  say_raw("detent: error: '");
  say_name(mapping.path.data());
  say_raw(shorter ? "' became shorter while it was read; let nobody write to it during a run\n"
                  : "' cannot be read: Input/output error; check the disk\n");
  ::_exit(exit_code(shorter ? ErrorKind::bad_input : ErrorKind::resource));
}

constexpr rlim_t kUsual = rlim_t{8} << 20, kLeast = rlim_t{1} << 20;

}  // namespace

void explain_faults() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // else the C library loads what unwinds when it is first needed, and aborts without memory
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void settle_stack() noexcept {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kUsual) {
    limit.rlim_cur = std::min(kUsual, limit.rlim_max);
    ::setrlimit(RLIMIT_STACK, &limit);  // holds for the thread that runs, which grows as it needs more
    if (limit.rlim_cur < kLeast) {      // no room for an exception
      constexpr std::string_view kLine =
          "detent: error: the stack is limited to less than 1 MiB; raise the limit (ulimit -s 8192)\n";
      [[maybe_unused]] const auto told = ::write(STDERR_FILENO, kLine.data(), kLine.size());
      ::_exit(exit_code(ErrorKind::resource));
    }
  }
  // Of threads, those of the runtime too: the C library has read the limit before main().
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) != 0) return;
  if (::pthread_attr_setstacksize(&attributes, kUsual) == 0) ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

}  // namespace detent::cli
