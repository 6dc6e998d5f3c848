// One GPU of a run: its budget and its queues.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/simt.h"
#include "cuda/stream.h"
#include "detent/device.h"
#include "profile/trace.h"

namespace detent::cuda {

// Times of queued work, told to the log of a run once the device has done it.

using profile::DeviceAmount;
using profile::DeviceLane;

/// Of one device, by one thread at a time whose device it is. Without a log nothing is timed.
class ActivityClock {
 public:
  explicit ActivityClock(int device) noexcept : device_(device) {}

  /// Waits for `stream`, to know where the device's clock stands beside the host's. Null: nothing is logged from now
  /// on.
  void log_to(profile::DeviceActivity* log, const Stream& stream);
  profile::DeviceActivity* log() const noexcept { return log_; }

  /// Calls `work`, which queues work in `stream`; the time is the device's. `what` is a literal. Not while a graph is
  /// recorded.
  template <class Work>
  void queued(const Stream& stream, DeviceLane lane, const char* what, DeviceAmount amount, const Work& work) {
    if (log_ == nullptr) return work();
    Timed& timed = next();
    timed.begin->record(stream);
    work();
    timed.end->record(stream);
    timed.lane = lane;
    timed.what = what;
    timed.amount = amount;
  }
  /// Calls `work`, which the host does.
  template <class Work>
  void on_host(DeviceLane lane, const char* what, std::uint64_t bytes, const Work& work) {
    if (log_ == nullptr) return work();
    const auto begin = profile::DeviceActivity::Clock::now();
    work();
    tell_host(lane, what, bytes, begin);
  }

  /// Waits for all that was timed and tells of it. For moments at which the host waits for the device anyway.
  void report_finished_work();

 private:
  struct Timed {
    std::unique_ptr<Event> begin, end;
    DeviceLane lane = DeviceLane::compute;
    const char* what = "";
    DeviceAmount amount;
  };

  Timed& next();
  void tell_first();
  void tell_host(DeviceLane lane, const char* what, std::uint64_t bytes,
                 profile::DeviceActivity::Clock::time_point begin) const;

  int device_;
  profile::DeviceActivity* log_ = nullptr;
  std::unique_ptr<Event> base_;
  double base_seconds_ = 0;
  const Stream* stream_ = nullptr;  // for the next base
  std::deque<Timed> under_way_;
  std::vector<Timed> free_;
};

struct MatmulContext;
struct ConvolutionContext;

/// What the libraries need on a device; made, and known, by gpu/libraries.cpp when they are first used.
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

/// Row-major: C[i] = alpha · op(A[i]) · op(B[i]) + beta · C[i] for i in [0, batch), op(A) of m × k and op(B) of k × n.
/// Lengths of rows and distances of batches are in elements. Addresses are aligned as far as those are, up to 16 bytes.
struct Product {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

/// One product, with the way chosen in which the device computes it: the same one each time on the same kind of device.
/// In float32 and TF32, A and B are floats; in bfloat16 they are Bfloat16. C and all sums are float32.
class Matmul {
 public:
  /// `device` must outlive it. `choice`: 0 for the way that the library puts first, the others are for measuring how
  /// good that is. Throws device, also where the library has fewer ways.
  Matmul(Device& device, const Product& product, DevicePrecision precision, int choice = 0);
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;
  ~Matmul();

  /// Queued in the device's stream. Throws internal for elements of the other kind.
  void run(const float* a, const float* b, float* c, float alpha = 1, float beta = 0) const;
  void run(const Bfloat16* a, const Bfloat16* b, float* c, float alpha = 1, float beta = 0) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace detent::cuda
