#include "cuda/solver.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "cuda/gram_methods.h"
#include "cuda/gram_sums.h"
#include "cuda/pass_rows.h"
#include "cuda/streamed.h"

namespace detent::cuda {
namespace {

using finetune::Activation;
using finetune::AnyForm;
using finetune::GramForm;
using finetune::LayerGeometry;
using finetune::LayerSamples;
using finetune::QuantizedWeights;
using finetune::Shape;
using finetune::Solution;
using finetune::SolveControl;

class CudaSolver final : public finetune::LayerSolver {
 public:
  CudaSolver(const DeviceConfig& config, const finetune::Kernels& kernels) : config_(config), kernels_(kernels) {
    for (const int number : config.cuda) devices_.push_back(std::make_unique<Device>(number, config.memory_budget));
    readers_ = std::make_unique<RecordReaders>(devices_, config.gds);
  }

  std::uint64_t sums_budget() const override { return devices_[0]->memory().limit() / 2; }

  void check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape, bool streamed,
                    const FinetuneConfig& config) override;

  std::unique_ptr<finetune::GramSums> sums(const LayerGeometry& geometry, std::size_t) override {
    return std::make_unique<GramSumsOnDevice>(*devices_[0], geometry);
  }

  Solution solve(const QuantizedWeights& weights, const AnyForm& form, std::span<const float> bias,
                 const FinetuneConfig& config, const SolveControl& control) override {
    gptq_ = gptq_ || config.rounding == Rounding::gptq;
    const auto* gram = std::get_if<GramForm>(&form);
    if (gram == nullptr) return finetune::solve(weights, form, bias, config, kernels_, control);
    GramMethodsOnDevices methods(devices_, weights, *gram, bias, config_.precision, kernels_, control);
    return finetune::solve(weights, *gram, bias, config, methods);
  }

  Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                          LayerSamples& samples, const Activation& activation, const FinetuneConfig& config,
                          const SolveControl& control) override;

  double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                              LayerSamples& samples, const Activation& activation,
                              const SolveControl& control) override;

  std::vector<std::string> notes() const override;

 private:
  DeviceConfig config_;
  const finetune::Kernels& kernels_;
  Devices devices_;
  std::unique_ptr<RecordReaders> readers_;
  bool gptq_ = false;      // whether a layer was solved by the CPU
  bool streamed_ = false;  // whether one was solved in mini-batches
};

void CudaSolver::check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape,
                              bool streamed, const FinetuneConfig& config) {
  const auto rows = static_cast<std::size_t>(geometry.outputs), groups = static_cast<std::size_t>(geometry.groups);
  const auto columns = static_cast<std::size_t>(geometry.fan_in());
  const auto ranges = share_rows(rows, groups, devices_.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    Device& device = devices_[i]->current();
    const std::uint64_t scratch = device.libraries().matmuls ? 0 : kMatmulScratch;
    if (i == 0 && !streamed)
      device.memory().require(scratch + GramSumsOnDevice::bytes_for(geometry, input_shape), layer);
    if (streamed) {
      const auto bytes = pass_rows_bytes(geometry, input_shape, ranges[i].count(), config.num_iterations);
      if (bytes > device.memory().limit()) device.memory().require(bytes, layer);
      continue;
    }
    const std::size_t own_groups = groups > 1 ? ranges[i].count() / (rows / groups) : 1;
    // All sums are on the host by then.
    const std::uint64_t solving = kMatmulScratch + gram_rows_bytes(ranges[i].count(), own_groups, columns,
                                                                   config.num_iterations, config_.precision);
    if (solving > device.memory().limit()) device.memory().require(solving, layer);
  }
}

Solution CudaSolver::solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                    std::span<const float> bias, LayerSamples& samples, const Activation& activation,
                                    const FinetuneConfig& config, const SolveControl& control) {
  streamed_ = true;
  return cuda::solve_streamed(devices_, config_, {weights, geometry, samples, activation, &*readers_}, bias, config,
                              kernels_, control);
}

double CudaSolver::reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                        const Solution& solution, LayerSamples& samples, const Activation& activation,
                                        const SolveControl& control) {
  return cuda::reconstruction_error(devices_, {weights, geometry, samples, activation}, solution, control);
}

std::vector<std::string> CudaSolver::notes() const {
  std::vector<std::string> notes;
  for (const auto& device : devices_) {
    notes.push_back(fmt::format("fine-tuning ran on cuda:{} ({}), where it took {} at the most", device->number(),
                                device->facts().name, format_size(device->memory().peak())));
  }
  const auto reads = readers_->notes();
  notes.insert(notes.end(), reads.begin(), reads.end());
  if (streamed_ && reads.empty() && config_.gds == GdsMode::on)
    notes.emplace_back("no stored sample was read by GPUDirect Storage: all were in the host's memory");
  if (gptq_) notes.emplace_back("the GPU summed the samples of layers; GPTQ itself was solved by the CPU");
  if (streamed_) notes.emplace_back("the GPU went through mini-batches; coordinate descent after them ran on the CPU");
  if (streamed_ && config_.precision == DevicePrecision::bfloat16) {
    notes.emplace_back(
        "the GPU made the products of mini-batches in TF32, as --device-precision bfloat16 is of the Gram form");
  }
  return notes;
}

}  // namespace

std::unique_ptr<finetune::LayerSolver> make_solver(const DeviceConfig& config, const finetune::Kernels& kernels) {
  return std::make_unique<CudaSolver>(config, kernels);
}

}  // namespace detent::cuda
