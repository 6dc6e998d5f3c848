// Runs detent in a thread of its own while the caller's thread looks after Python.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>

namespace detent::python {

struct Hosts;  // all of a process

/// The caller's Python code (samples, progress) runs in the caller's own thread, where its thread-local settings hold
/// and where Python delivers signals; the GIL is free all the while that no such code runs.
///
/// A thread that Python's end finds in a run could not come back to Python: end_all() is to be called before.
class Host {
 public:
  Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  /// Stops all runs of this process and waits for them, ten seconds at most; further ones are refused. Called with the
  /// GIL held, at exit.
  static void end_all();

  /// Runs `work` to its end and serves its errands. Called with the GIL held. An exception of Python's, Ctrl-C among
  /// them, stops the work and is what comes out; else what the work throws.
  void run(const std::function<void(std::stop_token)>& work);

  /// Has the caller's thread do something, with the GIL held, and waits for it. Called by the work, from any thread,
  /// without the GIL. When Python raises, the run ends: this throws interrupted, now and from then on.
  void call(const std::function<void()>& errand);

 private:
  void serve(const std::function<void()>& errand);
  void check_signals();

  Hosts& all_;
  std::mutex callers_;  // one errand at a time
  std::mutex mutex_;    // of the next three
  std::condition_variable changed_;
  const std::function<void()>* errand_ = nullptr;
  bool finished_ = false;
  std::exception_ptr raised_;  // by Python; written by the caller's thread alone
  std::stop_source stop_;
};

}  // namespace detent::python
