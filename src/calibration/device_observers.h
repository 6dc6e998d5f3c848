// Observing tensors where they are, in the memory of a device: the device counts, and the host makes summaries of the
// counts. A plugin brings the device's side; this file is all that the two know of each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "calibration/observers.h"
#include "calibration/run_cell.h"
#include "profile/trace.h"
#include "shim/cuda_driver.h"

namespace detent::calibration {

KeyRange extremes_of(const RunCell& cell) noexcept;

/// Counters in a device's memory: one cell for each value of a run, and one table (Histogram::kTable) for each value.
/// All of it is 0 at first. Called by one thread; what a call asks for is done in the order of the calls and after all
/// that the runtime put on the stream before. All throw device.
class DeviceTables {
 public:
  virtual ~DeviceTables() = default;
  /// Adds `count` floats at `values`, an address of the device, to a cell and, where there are tables, to the table of
  /// `tap`. Returns before it is done.
  virtual void reduce(const float* values, std::size_t count, std::size_t tap, std::size_t cell) = 0;
  /// Copies the first cells, once they are right, and sets them to 0.
  virtual void take_cells(std::span<RunCell> cells) = 0;
  /// The same for the table of `tap`.
  virtual void take_table(std::size_t tap, std::span<std::uint32_t, Histogram::kTable> counts) = 0;
};

/// A device that can calibrate.
class CalibrationDevice {
 public:
  virtual ~CalibrationDevice() = default;
  /// "cuda:0 (its name)", for notes.
  virtual std::string name() const = 0;
  /// What the runtime needs to compute there; lives as long as this object.
  virtual const shim::Device& place() const = 0;
  /// Counters for so many taps, with tables or without. Throws resource when the device's memory does not hold them.
  virtual std::unique_ptr<DeviceTables> tables(std::size_t taps, std::size_t cells, bool with_tables) = 0;
};

/// The same statistics as Observers gives for the same tensors. Cells come to the host at the end of each sample (24
/// bytes a tap), tables with statistics() alone, unless votes are asked for: those need the table of each run.
class DeviceObservers : public Observation {
 public:
  /// `device` must outlive this.
  DeviceObservers(std::vector<Observed> values, const ObserverOptions& options, CalibrationDevice& device);

  /// Cells that are asked of the device for so many taps.
  static std::size_t cells_for(std::size_t taps) noexcept;
  /// Bytes of a device that all counters take, with tables or without.
  static std::uint64_t counter_bytes(std::size_t taps, bool tables) noexcept {
    return cells_for(taps) * sizeof(RunCell) + (tables ? taps * Histogram::kTable * sizeof(std::uint32_t) : 0);
  }

  void begin_sample(const std::string& origin) override { sample_ = origin; }
  /// Observes nothing: tensors in the host's memory do not come here. Throws internal.
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override;
  void receive_on_device(std::size_t tap, const data::DeviceTensorView& tensor) override;
  /// Throws bad_input naming the first tensor of the run with a NaN or infinity, unless they are allowed.
  void end_sample() override;
  Statistics statistics() override;
  DeviceWork device_work() const override { return work_; }

 private:
  /// A tensor whose cell has not been read yet; cells stand in the same order.
  struct Pending {
    std::size_t tap = 0;
    std::uint64_t count = 0;
  };
  void read_cells();
  void read_table(std::size_t tap, Histogram& into);

  std::vector<Observed> values_;
  ObserverOptions options_;
  std::vector<Summary> summaries_;
  std::vector<std::uint64_t> in_table_;  // values counted in each tap's table; its counters have 32 bits
  std::vector<Pending> pending_;
  Histogram early_;  // with votes: of the run at hand, what its table could not hold
  std::vector<RunCell> cells_;
  std::vector<std::uint32_t> table_;
  std::string sample_;
  DeviceWork work_;
  std::unique_ptr<DeviceTables> tables_;
};

// The plugin's devices, for calibration.

struct DeviceRequest {
  int number = 0;
  /// Bytes of its memory: for the counters, and what they leave for the runtime. Unset: 90 % of what is free for the
  /// counters, and the runtime takes what it needs.
  std::optional<std::uint64_t> memory_budget;
  bool tf32 = false;     // see shim::Device
  std::size_t taps = 0;  // at most at a time
  bool tables = false;   // whether there will be any
  bool pins = true;      // DeviceConfig::pin_memory
  /// Told of what is done there, with times; must outlive the device. Null: nothing is timed.
  profile::DeviceActivity* activity = nullptr;
};

/// Loads the plugin and opens the device. Throws device where there is none, or another version of the plugin; resource
/// where the budget does not hold the counters.
std::unique_ptr<CalibrationDevice> open_cuda(const DeviceRequest& request);

/// What the plugin offers this room, by its entry symbol.
struct CalibrationCalls {
  std::unique_ptr<CalibrationDevice> (*open)(const DeviceRequest& request);
};
using CalibrationEntry = const CalibrationCalls*(int version);  // null: the plugin is of another version
inline constexpr const char* kCalibrationEntryName = "detent_cuda_calibration";
/// Raised when anything above changes, or in device_observers.h. Plugin and binary come from the same compiler.
inline constexpr int kCalibrationVersion = 3;

}  // namespace detent::calibration
