#include "cli/signals.h"

#include <csignal>

#include "run/command.h"

namespace detent::cli {
namespace {

sigset_t watched() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);  // wakes the waiter at the end
  return set;
}

}  // namespace

// A waiting thread instead of a handler: in a handler hardly anything is allowed, not even a stop request.
Signals::Signals() {
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  waiter_ = std::jthread([source = source_](const std::stop_token& ended) mutable {
    const sigset_t signals = watched();
    while (!ended.stop_requested()) {
      int number = 0;
      if (sigwait(&signals, &number) != 0 || number == SIGUSR1) continue;
      if (source.stop_requested()) {
        run::kill_command();
        std::signal(SIGINT, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        std::raise(SIGINT);
      }
      source.request_stop();
    }
  });
}

Signals::~Signals() {
  waiter_.request_stop();
  pthread_kill(waiter_.native_handle(), SIGUSR1);
}

}  // namespace detent::cli
