#include "cuda/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/observe_kernel.h"

namespace detent::cuda {
namespace {

using calibration::Histogram;
using calibration::RunCell;

constexpr const char* kObservers = "observers";
constexpr const char* kWhat = "the counters of calibration";

std::uint64_t counter_bytes(std::size_t taps, std::size_t cells, bool tables) {
  return counted_bytes(cells * sizeof(RunCell)) +
         counted_bytes(tables ? taps * Histogram::kTable * sizeof(std::uint32_t) : 0);
}

class Tables : public calibration::DeviceTables {
 public:
  Tables(Device& device, std::size_t taps, std::size_t cells, bool with_tables)
      : device_(device),
        cells_(device.memory(), cells, kWhat),
        counters_(device.memory(), with_tables ? taps * Histogram::kTable : 0, kWhat),
        taken_(std::max(cells * sizeof(RunCell), with_tables ? Histogram::kTable * sizeof(std::uint32_t) : 0),
               device.pins()) {
    clear(device_.stream(), cells_);
    clear(device_.stream(), counters_);
  }

  void reduce(const float* values, std::size_t count, std::size_t tap, std::size_t cell) override {
    if (count == 0) return;
    device_.current();
    RunCell* const into = cells_.data() + cell;
    const unsigned blocks = observe_blocks(count, device_.facts().multiprocessors);
    device_.clock().queued(device_.stream(), DeviceLane::compute, kObservers, {count * sizeof(float), 0}, [&] {
      if (counters_.size() == 0) {
        launch(device_.stream(), Observe<false>{values, count, into, nullptr}, blocks, kObserveBytes<false>);
      } else {
        launch(device_.stream(), Observe<true>{values, count, into, table(tap)}, blocks, kObserveBytes<true>);
      }
    });
  }

  void take_cells(std::span<RunCell> cells) override {
    take(cells, cells_.data());
    device_.stream().clear(cells_.data(), cells.size_bytes());
  }

  void take_table(std::size_t tap, std::span<std::uint32_t, Histogram::kTable> counts) override {
    take(std::span<std::uint32_t>(counts), table(tap));
    device_.stream().clear(table(tap), counts.size_bytes());
  }

 private:
  std::uint32_t* table(std::size_t tap) const { return counters_.data() + tap * Histogram::kTable; }

  template <class T>
  void take(std::span<T> to, const T* from) const {
    const auto pinned = taken_.as<T>().first(to.size());
    device_.clock().queued(device_.stream(), DeviceLane::copy, "counts to the host", {pinned.size_bytes(), 0},
                           [&] { device_.stream().download(pinned.data(), from, pinned.size_bytes()); });
    device_.stream().wait();
    device_.clock().report_finished_work();
    std::copy(pinned.begin(), pinned.end(), to.begin());
  }

  Device& device_;
  DeviceArray<RunCell> cells_;
  DeviceArray<std::uint32_t> counters_;
  HostMemory taken_;
};

class Calibration : public calibration::CalibrationDevice {
 public:
  explicit Calibration(const calibration::DeviceRequest& request)
      : device_(request.number, request.memory_budget, request.activity, request.pins) {
    place_.provider = device_.facts().provider;
    place_.memory = device_.facts().memory;
    place_.ordinal = request.number;
    place_.stream = device_.stream().handle();
    place_.tf32 = request.tf32;
    place_.copy = [this](void* to, const void* from, std::size_t bytes) { device_.stream().copy(to, from, bytes); };
    if (request.activity != nullptr) {
      const auto cells = calibration::DeviceObservers::cells_for(request.taps);
      request.activity->add_memory_estimate(request.number, counter_bytes(request.taps, cells, request.tables));
    }
    if (!request.memory_budget) return;
    const std::uint64_t counters =
        counter_bytes(request.taps, calibration::DeviceObservers::cells_for(request.taps), request.tables);
    device_.memory().require(counters, kWhat);
    place_.memory_limit = *request.memory_budget - counters;
  }

  std::string name() const override { return fmt::format("cuda:{} ({})", device_.number(), device_.facts().name); }
  const shim::Device& place() const override { return place_; }
  std::unique_ptr<calibration::DeviceTables> tables(std::size_t taps, std::size_t cells, bool with_tables) override {
    return std::make_unique<Tables>(device_.current(), taps, cells, with_tables);
  }

 private:
  Device device_;
  shim::Device place_;
};

std::unique_ptr<calibration::CalibrationDevice> open(const calibration::DeviceRequest& request) {
  return std::make_unique<Calibration>(request);
}

}  // namespace

const calibration::CalibrationCalls& calibration_calls() {
  static constexpr calibration::CalibrationCalls kCalls{&open};
  return kCalls;
}

}  // namespace detent::cuda
