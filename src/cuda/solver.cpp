#include "cuda/solver.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "cuda/gram_methods.h"
#include "cuda/gram_sums.h"
#include "cuda/pass_rows.h"
#include "cuda/streamed.h"
#include "solve/layers/device_memory.h"
#include "solve/layers/input_descent.h"
#include "solve/solvers.h"

namespace detent::cuda {
namespace {

using solve::GramForm;
using solve::GramFormOrRawInputs;
using solve::LayerGeometry;
using solve::LayerSamples;
using solve::QuantizedWeights;
using solve::Shape;
using solve::Solution;
using solve::SolveControl;

static_assert(kMemoryUnit == solve::kDeviceMemoryUnit);

class CudaSolver final : public solve::LayerSolver {
 public:
  CudaSolver(const DeviceConfig& config, const solve::Kernels& kernels, profile::DeviceActivity* activity)
      : config_(config), kernels_(kernels) {
    for (const int number : config.cuda)
      devices_.push_back(std::make_unique<Device>(number, config.memory_budget, activity, config.pin_memory));
    readers_ = std::make_unique<RecordReaders>(devices_, config.gds);
  }

  // Each layer's sums go where least is taken, so half of every budget can be filled.
  std::uint64_t sums_budget() const override {
    std::uint64_t bytes = 0;
    for (const auto& device : devices_) bytes += device->memory().limit() / 2;
    return bytes;
  }

  void check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape, bool streamed,
                    const FinetuneConfig& config) override;

  std::unique_ptr<solve::GramSums> sums(const LayerGeometry& geometry, std::size_t) override {
    return std::make_unique<GramSumsOnDevice>(device_for_sums(), geometry);
  }

  Solution solve(const QuantizedWeights& weights, const GramFormOrRawInputs& form, std::span<const float> bias,
                 const FinetuneConfig& config, const SolveControl& control) override {
    if (const auto* solver = solve::find_solver(config.rounding);
        solver != nullptr && !runs_on_devices(config.rounding)) {
      solved_by_cpu_ = solver->name;
    }
    const auto* gram = std::get_if<GramForm>(&form);
    if (gram == nullptr) return solve::solve(weights, form, bias, config, kernels_, control);
    GramMethodsOnDevices methods(devices_, weights, *gram, bias, config_.precision, kernels_, control);
    return solve::solve(weights, *gram, bias, config, methods);
  }

  Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                          LayerSamples& samples, const FinetuneConfig& config, const SolveControl& control) override;

  double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                              LayerSamples& samples, const SolveControl& control) override;

  std::vector<std::string> notes() const override;

 private:
  /// Layers that are solved from one pass have sums side by side: each where least is taken, the first of equals. Which
  /// device it is makes no difference to sums.
  Device& device_for_sums() {
    return **std::min_element(devices_.begin(), devices_.end(),
                              [](const auto& a, const auto& b) { return a->memory().used() < b->memory().used(); });
  }

  static void foretell(Device& device, std::uint64_t bytes) {
    if (device.clock().log() != nullptr) device.clock().log()->add_memory_estimate(device.number(), bytes);
  }

  DeviceConfig config_;
  const solve::Kernels& kernels_;
  Devices devices_;
  std::unique_ptr<RecordReaders> readers_;
  std::string solved_by_cpu_;  // the method's name, where the CPU solved a layer
  bool streamed_ = false;      // whether one was solved in mini-batches
  bool descended_by_cpu_ = false;
};

void CudaSolver::check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape,
                              bool streamed, const FinetuneConfig& config) {
  const auto need = solve::device_need(geometry, input_shape, streamed, config, config_.precision, devices_.size());
  if (!streamed) {
    Device& device = device_for_sums();
    const std::uint64_t there = device.libraries().matmuls ? solve::kMatmulScratch : 0;
    device.memory().require(need.sums - there, layer);
    foretell(device, device.memory().used() + need.sums - there);
  }
  for (std::size_t i = 0; i < need.solving.size(); ++i) {
    // All sums are on the host by then.
    MemoryBudget& memory = devices_[i]->memory();
    if (need.solving[i] > memory.limit()) memory.require(need.solving[i], layer);
    foretell(*devices_[i], need.solving[i]);
  }
}

Solution CudaSolver::solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                    std::span<const float> bias, LayerSamples& samples, const FinetuneConfig& config,
                                    const SolveControl& control) {
  streamed_ = true;
  descended_by_cpu_ = descended_by_cpu_ || (solve::uses_sample_descent(config) && !solve::descends_by_sums(geometry));
  return cuda::solve_streamed(devices_, config_, {weights, geometry, samples, &*readers_}, bias, config, kernels_,
                              control);
}

double CudaSolver::reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                        const Solution& solution, LayerSamples& samples, const SolveControl& control) {
  return cuda::reconstruction_error(devices_, {weights, geometry, samples}, solution, control);
}

std::vector<std::string> CudaSolver::notes() const {
  std::vector<std::string> notes;
  for (const auto& device : devices_) {
    notes.push_back(fmt::format("fine-tuning ran on cuda:{} ({}) and used at most {}", device->number(),
                                device->facts().name, format_size(device->memory().peak())));
  }
  const auto reads = readers_->notes();
  notes.insert(notes.end(), reads.begin(), reads.end());
  if (streamed_ && reads.empty() && config_.gds == GdsMode::on)
    notes.emplace_back("no spooled sample was read by GPUDirect Storage: all were in host memory");
  if (!solved_by_cpu_.empty()) {
    notes.push_back(
        fmt::format("the GPU summed the samples of layers; {} itself was solved by the CPU", solved_by_cpu_));
  }
  if (descended_by_cpu_)
    notes.emplace_back(
        "mini-batches ran on the GPU; coordinate descent after them ran on the CPU for layers of long rows");
  if (streamed_ && config_.precision == DevicePrecision::bfloat16) {
    notes.emplace_back(
        "in mini-batches the GPU used bfloat16 for matrix products whose rows have multiples of 8 elements, and TF32 "
        "for convolutions and all others");
  }
  return notes;
}

}  // namespace

std::unique_ptr<solve::LayerSolver> make_solver(const DeviceConfig& config, const solve::Kernels& kernels,
                                                profile::DeviceActivity* activity) {
  return std::make_unique<CudaSolver>(config, kernels, activity);
}

}  // namespace detent::cuda
