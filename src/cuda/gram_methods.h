// The methods of the Gram form on devices.
#pragma once

#include "cuda/gram_rows.h"
#include "finetune/kernels.h"
#include "finetune/solver.h"

namespace detent::cuda {

/// Whether a method has iterations for devices. The CPU solves the others from the device's sums: GPTQ rounds one
/// weight after another.
bool runs_on_devices(WeightSolver rounding);

class GramMethodsOnDevices final : public finetune::GramMethods {
 public:
  /// All must outlive it.
  GramMethodsOnDevices(Devices& devices, const finetune::QuantizedWeights& weights, const finetune::GramForm& form,
                       std::span<const float> bias, DevicePrecision precision, const finetune::Kernels& kernels,
                       const finetune::SolveControl& control)
      : devices_(devices),
        weights_(weights),
        form_(form),
        bias_(bias),
        precision_(precision),
        kernels_(kernels),
        control_(control) {}

  finetune::Integers integers(const FinetuneConfig& config) override;
  finetune::Integers better_rows(const FinetuneConfig& config, finetune::Integers first,
                                 const finetune::Integers& second) override;
  finetune::Integers coordinate_descent(const FinetuneConfig& config, finetune::Integers start) override;

 private:
  void prepare(const FinetuneConfig& config);

  Devices& devices_;
  const finetune::QuantizedWeights& weights_;
  const finetune::GramForm& form_;
  std::span<const float> bias_;
  DevicePrecision precision_;
  const finetune::Kernels& kernels_;
  const finetune::SolveControl& control_;
  std::optional<finetune::Quadratic> quadratic_;  // for this layer's update_bias, which stays the same
  std::vector<std::unique_ptr<GramRows>> rows_;   // of each device
};

finetune::Integers adaround(std::span<const std::unique_ptr<GramRows>> rows, const finetune::QuantizedWeights& weights,
                            const finetune::Quadratic& quadratic, const FinetuneConfig& config,
                            const finetune::SolveControl& control);
finetune::Integers adaquant(std::span<const std::unique_ptr<GramRows>> rows, const finetune::QuantizedWeights& weights,
                            const finetune::Quadratic& quadratic, const FinetuneConfig& config,
                            const finetune::SolveControl& control);

}  // namespace detent::cuda
