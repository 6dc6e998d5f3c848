#include "host.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

#include "base/error.h"

namespace nb = nanobind;

namespace detent::python {

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
