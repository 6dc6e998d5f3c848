#include "cli/signals.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/leftovers.h"
#include "cli/output/output.h"
#include "run/command.h"

namespace detent::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(5);
constexpr int kWake = SIGUSR1;  // of the waiter, at the end

bool is_ignored(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

sigset_t watched() {
  sigset_t set = ending_signals();
  sigaddset(&set, kWake);
  return set;
}

// The next of the signals; 0 when none has come until then.
int next_signal(const sigset_t& signals, const std::optional<Clock::time_point>& until) {
  while (true) {
    if (!until) {
      if (const int number = ::sigwaitinfo(&signals, nullptr); number > 0) return number;
      continue;
    }
    const auto left = std::chrono::nanoseconds(*until - Clock::now());
    if (left.count() <= 0) return 0;
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec time{whole.count(), (left - whole).count()};
    const int number = ::sigtimedwait(&signals, nullptr, &time);
    if (number > 0) return number;
    if (errno == EAGAIN) return 0;
  }
}

}  // namespace

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&set, number);
  for (const int number : {SIGHUP, SIGQUIT, SIGALRM, SIGXCPU, SIGUSR2}) {
    if (!is_ignored(number)) sigaddset(&set, number);
  }
  return set;
}

void hold_ending_signals() noexcept {
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
  const sigset_t set = watched();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void end_process(const Error& error) {
  run::kill_command();
  remove_leftovers();
  ::_exit(fail(error));
}

// A waiting thread instead of a handler: in a handler hardly anything is allowed, not even a stop request.
Signals::Signals() {
  hold_ending_signals();
  waiter_ = std::jthread([this](const std::stop_token& ended) { wait(ended); });
}

void Signals::wait(const std::stop_token& ended) {
  const sigset_t signals = watched();
  std::optional<Clock::time_point> until;
  while (!ended.stop_requested()) {
    const int number = next_signal(signals, until);
    if (number == kWake) continue;
    if (first_ == 0) first_ = number;
    if (until && number == SIGXCPU) continue;  // which comes every second
    if (until || number == 0 || !unwinds_) end_for_signal();
    source_.request_stop();
    until = Clock::now() + kGrace;
  }
}

void Signals::end_for_signal() const {
  try {
    end_process(reason());
  } catch (const std::bad_alloc&) {  // there is no memory for the reason
    run::kill_command();
    remove_leftovers();
    ::_exit(fail_without_memory());
  }
}

Error Signals::reason() const {
  if (first_ == SIGXCPU)
    return resource_error("the limit of processor time was reached", "raise it (ulimit -t), or give less work");
  return interrupted();
}

void Signals::stop_taking_signals() {
  if (!waiter_.joinable()) return;
  waiter_.request_stop();
  ::pthread_kill(waiter_.native_handle(), kWake);
  waiter_.join();
}

Signals::~Signals() { stop_taking_signals(); }

}  // namespace detent::cli
