// What the plugin offers: counters of calibration, rates of a device, readers of stored tensors, the solver of layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "calibration/device_observers.h"
#include "cuda/device.h"
#include "cuda/gram_rows.h"
#include "profile/machine.h"
#include "solve/layers/layer_solver.h"
#include "store/device_route.h"

namespace detent::cuda {

/// What the plugin offers to calibration/.
const calibration::CalibrationCalls& calibration_calls();

// What a GPU can do at best, measured by what the plugin itself uses of it.

/// What is measured grows until one turn takes long enough that starting it has no part in the rate: how far that is
/// depends on the device. It grows no further than these sizes and an eighth of the memory that is left on the device.
struct PeakLimits {
  double enough_seconds = 2e-3;                            // of one turn
  std::size_t most_memory_bytes = std::size_t{512} << 20;  // in caches of no device
  std::size_t most_bus_bytes = std::size_t{64} << 20;
  std::int64_t most_matrix = 8192;  // rows and positions
};

/// The rates at the largest size that was measured. Takes some tens of turns of about `enough_seconds`, on any device.
/// Throws device, and resource where the device's memory is full.
profile::DevicePeaks measure_peaks(Device& device, DevicePrecision precision, const PeakLimits& limits = {});

const profile::PeaksCalls& peaks_calls();

/// What the plugin offers to store/.
const store::StorageCalls& storage_calls();

/// Opens the devices. `kernels` must outlive it, and so must `activity` (see solve::cuda_solver). Throws device.
std::unique_ptr<solve::LayerSolver> make_solver(const DeviceConfig& config, const solve::Kernels& kernels,
                                                profile::DeviceActivity* activity);

}  // namespace detent::cuda
