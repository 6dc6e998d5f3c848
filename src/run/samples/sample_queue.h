// Distributes samples among workers, and keeps the first error.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

namespace detent::run {

/// Workers take items from `next`, which is called by one of them at a time and returns nullopt at the end. After
/// `until` (but not before the first item) and after a failure no more are handed out, so the items taken are a prefix
/// of all.
template <class Item>
class SampleQueue {
 public:
  using Clock = std::chrono::steady_clock;

  SampleQueue(std::function<std::optional<Item>()> next, std::optional<Clock::time_point> until)
      : next_(std::move(next)), until_(until) {}

  std::optional<Item> take() {
    const std::lock_guard lock(mutex_);
    if (failure_ || exhausted_ || (taken_ > 0 && until_ && Clock::now() >= *until_)) return std::nullopt;
    try {
      auto item = next_();
      exhausted_ = !item;
      if (item) ++taken_;
      return item;
    } catch (...) {
      keep(taken_, std::current_exception());
      return std::nullopt;
    }
  }

  /// Of several errors, that with the smallest `order` is kept.
  void failed(std::size_t order, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    keep(order, std::move(error));
  }

  /// After all workers have ended: rethrows the first error; whether all items were handed out.
  bool finish() const {
    if (failure_) std::rethrow_exception(failure_);
    return exhausted_;
  }

 private:
  void keep(std::size_t order, std::exception_ptr error) {
    if (failure_ && order >= failed_) return;
    failed_ = order;
    failure_ = std::move(error);
  }

  std::function<std::optional<Item>()> next_;
  std::optional<Clock::time_point> until_;
  std::mutex mutex_;
  std::size_t taken_ = 0;
  bool exhausted_ = false;
  std::size_t failed_ = 0;
  std::exception_ptr failure_;
};

}  // namespace detent::run
