// Ctrl-C and SIGTERM as a stop token.
#pragma once

#include <stop_token>
#include <thread>

namespace detent::cli {

/// Takes SIGINT and SIGTERM for the process: the first one requests a stop, after which the run unwinds and removes its
/// working files; a second one ends the process at once, with the accuracy
/// command that it may have started. Make it before any other thread starts.
class Signals {
 public:
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread waiter_;
};

}  // namespace detent::cli
