// One GPU of a run: its budget and its queues.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cuda/activity.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace detent::cuda {

struct MatmulContext;
struct ConvolutionContext;

/// What the libraries need on a device; made, and known, by matmul.h and convolution.h when they are first used.
struct Libraries {
  std::shared_ptr<MatmulContext> matmuls;
  std::shared_ptr<ConvolutionContext> convolutions;
};

struct DeviceFacts {
  std::string name;
  int multiprocessors = 0;
  std::uint64_t free_bytes = 0;
  /// What ONNX Runtime calls those who compute there, and its memory.
  const char* provider = "CUDAExecutionProvider";
  const char* memory = "Cuda";
};

/// Throws device where there is none of this number, or it is too old for this library.
DeviceFacts facts_of(int number);
/// Bytes to take where no budget is given.
inline std::uint64_t default_budget(const DeviceFacts& facts) noexcept { return facts.free_bytes / 10 * 9; }
/// Makes it the calling thread's device.
void make_current(int number);

/// Used by one thread at a time, which calls current() before it begins.
class Device {
 public:
  /// `budget`: bytes to take at the most; unset: 90 % of what is free now. `log` is told of memory and of what is timed
  /// by clock(), and must outlive this; it may be null. `pins`: DeviceConfig::pin_memory.
  Device(int number, std::optional<std::uint64_t> budget, profile::DeviceActivity* log = nullptr, bool pins = true)
      : number_(number),
        facts_(facts_of(number)),
        budget_(number, budget ? *budget : default_budget(facts_)),
        stream_(std::make_unique<Stream>()),
        copies_(std::make_unique<Stream>()),
        clock_(number),
        pins_(pins) {
    if (log == nullptr) return;
    log->add_device(number, facts_.name, budget_.limit());
    budget_.log_to(log);
    clock_.log_to(log, *stream_);
  }

  int number() const noexcept { return number_; }
  /// Itself, made the calling thread's device.
  Device& current() {
    make_current(number_);
    return *this;
  }
  const DeviceFacts& facts() const noexcept { return facts_; }
  MemoryBudget& memory() noexcept { return budget_; }
  const Stream& stream() const noexcept { return *stream_; }  // where work is queued
  const Stream& copies() const noexcept { return *copies_; }  // where the next samples come by meanwhile
  Libraries& libraries() noexcept { return libraries_; }
  ActivityClock& clock() noexcept { return clock_; }
  /// Whether samples come from pinned memory.
  bool pins() const noexcept { return pins_; }

 private:
  int number_;
  DeviceFacts facts_;  // made before the queues: looking makes the device current
  MemoryBudget budget_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Stream> copies_;
  ActivityClock clock_;
  bool pins_;
  Libraries libraries_;  // last, so that it goes first: its memory is counted by the budget
};

}  // namespace detent::cuda
