#include "cli/signals.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/leftovers.h"
#include "cli/isolation.h"
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
    const timespec time{whole.count(), static_cast<decltype(timespec::tv_nsec)>((left - whole).count())};
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

namespace {

std::atomic<bool> allocation_failed = false;

// Called by operator new before it throws: where an exception cannot be seen any more, this is.
void note_no_memory() {
  allocation_failed = true;
  throw std::bad_alloc();
}

bool memory_has_run_out() noexcept {
  if (allocation_failed) return true;
  constexpr std::size_t kSome = std::size_t{64} << 20;
  void* block = ::mmap(nullptr, kSome, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return true;
  ::munmap(block, kSome);
  return false;
}

[[noreturn]] void end_by_terminate() noexcept {
  static std::atomic<pid_t> first = 0;
  if (pid_t none = 0; !first.compare_exchange_strong(none, ::gettid())) {
    if (none == ::gettid()) std::abort();
    for (;;) ::pause();  // another thread is at it
  }
  run::kill_command();
  remove_leftovers();
  std::string_view line = "detent: error: internal error: std::terminate() was called; please report it\n";
  ErrorKind kind = ErrorKind::internal;
  constexpr std::string_view kNoMemory =
      "detent: error: out of memory, in a place that cannot be left; give smaller samples, or --batch-size\n";
  constexpr std::string_view kNoThread =
      "detent: error: cannot start a thread; raise the limit of processes (ulimit -u), or give fewer --threads\n";
  const auto set = [&](std::string_view text) {
    line = text;
    kind = ErrorKind::resource;
  };
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
    if (memory_has_run_out()) set(kNoMemory);
  } catch (const std::bad_alloc&) {
    set(kNoMemory);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::not_enough_memory) set(kNoMemory);
    if (e.code() == std::errc::resource_unavailable_try_again) set(kNoThread);
  } catch (...) {
    if (memory_has_run_out()) set(kNoMemory);
  }
  say_raw(line);
  ::_exit(exit_code(kind));
}

}  // namespace

void say_raw(std::string_view text) noexcept {
  for (const int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    if (::write(fd, text.data(), text.size()) >= 0) return;
  }
}

void clean_up_at_crash() {
  std::set_terminate(end_by_terminate);
  std::set_new_handler(note_no_memory);
  explain_faults();
}

}  // namespace detent::cli
