// The plugin's entries: one for each room that uses GPUs, each of that room's own version.
#include "cuda/device.h"
#include "cuda/plugin_calls.h"
#include "shim/cuda_driver.h"

namespace detent::cuda {
namespace {

void require(int device) { facts_of(device); }
std::uint64_t budget(int device) { return default_budget(facts_of(device)); }

}  // namespace
}  // namespace detent::cuda

extern "C" __attribute__((visibility("default"))) const detent::shim::CudaProbe* detent_cuda_probe(int version) {
  static const detent::shim::CudaProbe probe{&detent::cuda::require, &detent::cuda::budget};
  return version == detent::shim::kCudaProbeVersion ? &probe : nullptr;
}

extern "C" __attribute__((visibility("default"))) const detent::calibration::CalibrationCalls* detent_cuda_calibration(
    int version) {
  return version == detent::calibration::kCalibrationVersion ? &detent::cuda::calibration_calls() : nullptr;
}

extern "C" __attribute__((visibility("default"))) const detent::store::StorageCalls* detent_cuda_storage(int version) {
  return version == detent::store::kStorageVersion ? &detent::cuda::storage_calls() : nullptr;
}

extern "C" __attribute__((visibility("default"))) detent::solve::LayerSolver* detent_cuda_solver(
    int version, const detent::DeviceConfig& config, const detent::solve::Kernels& kernels,
    detent::profile::DeviceActivity* activity) {
  if (version != detent::solve::kCudaSolverVersion) return nullptr;
  return detent::cuda::make_solver(config, kernels, activity).release();
}

extern "C" __attribute__((visibility("default"))) const detent::profile::PeaksCalls* detent_cuda_peaks(int version) {
  return version == detent::profile::kPeaksVersion ? &detent::cuda::peaks_calls() : nullptr;
}
