#include "host.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/leftovers.h"

namespace nb = nanobind;

namespace detent::python {

// All that run in this process.
struct Hosts {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<Host*> running;
  pid_t process = ::getpid();
  bool ending = false;
  std::atomic<bool> abandoned = false;
};

namespace {

// Those of a forked child are its own. Called with the GIL held.
Hosts& hosts() {
  static Hosts* all = new Hosts;  // never destroyed: threads may outlive main()
  if (all->process != ::getpid()) all = new Hosts;
  return *all;
}

}  // namespace

Host::Host() : all_(hosts()) {
  const std::lock_guard lock(all_.mutex);
  if (all_.ending) throw usage_error("Python is about to end, so no run can begin");
  all_.running.insert(this);
}

Host::~Host() {
  const std::lock_guard lock(all_.mutex);
  all_.running.erase(this);
  all_.changed.notify_all();
}

void Host::end_all() {
  constexpr std::chrono::seconds kLongest{10};
  auto& all = hosts();
  const nb::gil_scoped_release released;
  std::unique_lock lock(all.mutex);
  all.ending = true;
  for (auto* host : all.running) host->stop_.request_stop();
  if (all.running.empty()) return;
  if (all.changed.wait_for(lock, kLongest, [&] { return all.running.empty(); })) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // they are on their way back to Python
    return;
  }
  all.abandoned = true;
  remove_leftovers();
}

void Host::run(const std::function<void(std::stop_token)>& work) {
  std::exception_ptr failure;
  std::jthread worker([&] {
    try {
      work(stop_.get_token());
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
  });
  constexpr std::chrono::milliseconds kSignals{50};
  for (bool finished = false; !finished;) {
    const std::function<void()>* errand = nullptr;
    {
      const nb::gil_scoped_release released;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kSignals, [&] { return errand_ != nullptr || finished_; });
      errand = errand_;
      finished = finished_;
      lock.unlock();
      while (all_.abandoned) ::pause();  // Python has no way back for this thread
    }
    if (errand != nullptr) serve(*errand);
    check_signals();
  }
  {
    const nb::gil_scoped_release released;
    worker.join();
  }
  if (raised_) std::rethrow_exception(raised_);
  if (failure) std::rethrow_exception(failure);
}

void Host::call(const std::function<void()>& errand) {
  const std::lock_guard one(callers_);
  std::unique_lock lock(mutex_);
  if (!stop_.stop_requested()) {
    errand_ = &errand;
    changed_.notify_all();
    changed_.wait(lock, [&] { return errand_ == nullptr; });
  }
  if (stop_.stop_requested()) throw interrupted();
}

void Host::serve(const std::function<void()>& errand) {
  try {
    errand();
  } catch (...) {
    raised_ = std::current_exception();
    stop_.request_stop();
  }
  const std::lock_guard lock(mutex_);
  errand_ = nullptr;
  changed_.notify_all();
}

void Host::check_signals() {
  if (raised_ || PyErr_CheckSignals() == 0) return;
  try {
    nb::raise_python_error();
  } catch (const nb::python_error&) {
    raised_ = std::current_exception();
    stop_.request_stop();
  }
}

}  // namespace detent::python
