// The methods of the Gram form on devices.
#pragma once

#include "cuda/gram_rows.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/solver.h"

namespace detent::cuda {

/// Whether a method has iterations for devices. The CPU solves the others from the device's sums: GPTQ rounds one
/// weight after another.
bool runs_on_devices(WeightSolver solver);

class GramMethodsOnDevices final : public solve::GramMethods {
 public:
  /// All must outlive it.
  GramMethodsOnDevices(Devices& devices, const solve::QuantizedWeights& weights, const solve::GramForm& form,
                       std::span<const float> bias, DevicePrecision precision, const solve::Kernels& kernels,
                       const solve::SolveControl& control)
      : devices_(devices),
        weights_(weights),
        form_(form),
        bias_(bias),
        precision_(precision),
        kernels_(kernels),
        control_(control) {}

  solve::Integers integers(const FinetuneConfig& config) override;
  solve::Integers better_rows(const FinetuneConfig& config, solve::Integers first,
                              const solve::Integers& second) override;
  solve::Integers coordinate_descent(const FinetuneConfig& config, solve::Integers start) override;

 private:
  void prepare(const FinetuneConfig& config);

  Devices& devices_;
  const solve::QuantizedWeights& weights_;
  const solve::GramForm& form_;
  std::span<const float> bias_;
  DevicePrecision precision_;
  const solve::Kernels& kernels_;
  const solve::SolveControl& control_;
  std::optional<solve::Quadratic> quadratic_;    // for this layer's update_bias, which stays the same
  std::vector<std::unique_ptr<GramRows>> rows_;  // of each device
};

solve::Integers adaround(std::span<const std::unique_ptr<GramRows>> rows, const solve::QuantizedWeights& weights,
                         const solve::Quadratic& quadratic, const FinetuneConfig& config,
                         const solve::SolveControl& control);
solve::Integers adaquant(std::span<const std::unique_ptr<GramRows>> rows, const solve::QuantizedWeights& weights,
                         const solve::Quadratic& quadratic, const FinetuneConfig& config,
                         const solve::SolveControl& control);

}  // namespace detent::cuda
