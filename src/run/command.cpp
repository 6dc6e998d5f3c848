#include "run/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"

namespace detent::run {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(2);  // between SIGTERM and SIGKILL
constexpr auto kPoll = std::chrono::milliseconds(20);

std::atomic<pid_t> running_group{0};

// In the child, between fork() and exec(), where only async-signal-safe calls are allowed.
[[noreturn]] void become_shell(const char* line, int output, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // it died before it could be asked for that signal
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  for (const int ignored : {SIGPIPE, SIGXFSZ}) ::signal(ignored, SIG_DFL);  // as every program expects them
  const int empty = ::open("/dev/null", O_RDONLY);
  ::dup2(empty, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::execl("/bin/sh", "sh", "-c", line, nullptr);
  ::_exit(127);
}

// The shell and all that it starts, in a process group of their own. The group is gone when the object is.
class ShellCommand {
 public:
  explicit ShellCommand(const std::string& line) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw failed_call(errno, "no pipe to a command", ErrorKind::resource);
    output_ = UniqueFd(ends[0]);
    const UniqueFd input(ends[1]);
    const pid_t parent = ::getpid();
    group_ = ::fork();
    if (group_ < 0) throw failed_call(errno, "cannot start a command", ErrorKind::resource);
    if (group_ == 0) become_shell(line.c_str(), input.get(), parent);
    ::setpgid(group_, group_);  // here too: whoever comes first
    running_group = group_;
  }
  ShellCommand(const ShellCommand&) = delete;
  ShellCommand& operator=(const ShellCommand&) = delete;
  ~ShellCommand() {
    if (group_ == 0) return;
    ::kill(-group_, SIGKILL);
    wait();
  }

  /// Its standard output, when all who write to it and the shell have ended; nullopt when a stop was requested, after
  /// which nothing of it is left.
  std::optional<std::string> read_all(const std::stop_token& stop) {
    std::string text;
    std::optional<Clock::time_point> until;
    for (bool open = true; open || !shell_has_ended();) {
      if (stop.stop_requested() && !until) {
        ::kill(-group_, SIGTERM);
        until = Clock::now() + kGrace;
      }
      if (until && Clock::now() >= *until) break;
      if (open) {
        open = read_some(text);
      } else {
        std::this_thread::sleep_for(kPoll);
      }
    }
    if (!until) return text;
    ::kill(-group_, SIGKILL);  // before the shell is waited for: until then its number belongs to no other process
    wait();
    return std::nullopt;
  }

  /// Status of the shell, as of waitpid().
  int wait() {
    running_group = 0;
    int status = 0;
    while (::waitpid(group_, &status, 0) < 0 && errno == EINTR) {
    }
    group_ = 0;
    return status;
  }

 private:
  bool shell_has_ended() const {
    siginfo_t ended{};
    return ::waitid(P_PID, static_cast<id_t>(group_), &ended, WEXITED | WNOWAIT | WNOHANG) == 0 && ended.si_pid != 0;
  }

  // Waits a little for more output; false at its end.
  bool read_some(std::string& text) {
    pollfd ready{output_.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kPoll.count())) <= 0) return true;
    char piece[4096];
    const auto count = ::read(output_.get(), piece, sizeof piece);
    if (count < 0) return errno == EINTR;
    text.append(piece, static_cast<std::size_t>(count));
    return count > 0;
  }

  pid_t group_ = 0;
  UniqueFd output_;
};

}  // namespace

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

CommandResult run_command(const std::string& line, const std::stop_token& stop) {
  ShellCommand shell(line);
  auto output = shell.read_all(stop);
  if (!output) throw interrupted();
  const int status = shell.wait();
  if (stop.stop_requested()) throw interrupted();  // what it has said may come from the same signal
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), std::move(*output)};
}

void kill_command() noexcept {
  if (const pid_t group = running_group.load(); group > 0) ::kill(-group, SIGKILL);
}

}  // namespace detent::run
