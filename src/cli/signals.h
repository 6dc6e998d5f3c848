// Signals that end a program as a stop token.
#pragma once

#include <atomic>
#include <csignal>
#include <stop_token>
#include <thread>

#include "detent/error.h"

namespace detent::cli {

/// The signals by which users, terminals and limits end a process, as far as this process does not ignore them.
sigset_t ending_signals();

/// Has the ending signals wait until somebody takes them. To be called before anything else: what ends a process by
/// itself leaves what it has made.
void hold_ending_signals() noexcept;

/// Ends the process without unwinding: what it would leave is removed, an accuracy command is killed, the error is
/// told.
[[noreturn]] void end_process(const Error& error);

/// Takes the signals by which users, terminals and limits end a process (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM,
/// SIGXCPU, SIGUSR2; those that the process was started to ignore stay ignored, but SIGINT and SIGTERM). The first one
/// requests a stop, after which the run unwinds and removes its working files. What has not ended five seconds later,
/// at the second signal, or where nobody waits for a stop, is ended here: working files and an accuracy command are
/// removed all the same, then the process exits. SIGPIPE and SIGXFSZ are ignored: writing then fails with an error.
///
/// Make it before any other thread starts, and once.
class Signals {
 public:
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

  /// For a command that ends soon after a stop is requested.
  std::stop_token token() {
    unwinds_ = true;
    return source_.get_token();
  }

  /// What the user is told of a run that was interrupted.
  Error reason() const;

  /// Takes no more signals. They stay blocked.
  void stop_taking_signals();

 private:
  void wait(const std::stop_token& ended);
  [[noreturn]] void end_for_signal() const;

  std::stop_source source_;
  std::atomic<bool> unwinds_ = false;
  std::atomic<int> first_ = 0;  // signal
  std::jthread waiter_;
};

// What would end the process without unwinding, and still has to leave nothing.

/// From here on std::terminate() (an exception in a thread of the runtime's, or where none may be thrown, as in many a
/// destructor when memory has run out) and SIGBUS (a mapped file that became shorter, or a disk that failed under one)
/// remove working files, print the one line of a failure and exit with its code. Other faults of the processor stay
/// what they are: with memory in disorder nothing should be removed.
void clean_up_at_crash();

}  // namespace detent::cli
