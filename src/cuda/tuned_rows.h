// The variables of some rows in mini-batches, on one device.
#pragma once

#include <span>
#include <vector>

#include "cuda/pass_rows.h"
#include "cuda/step_kernels.h"
#include "detent/config.h"
#include "solve/layers/rounding_variables.h"

namespace detent::cuda {

/// The numbers of all iterations, as solve/layers/adaround_variables.h and adaquant_variables.h have them.
struct StepNumbers {
  std::vector<AdaRoundNumbers> adaround;
  std::vector<AdaQuantNumbers> adaquant;  // and of biases
};
StepNumbers step_numbers(const FinetuneConfig& config);

/// Of a block of scales, in that order of all rows' blocks; with a scale of 0 its weights stay as they are.
AdaQuantBlockNumbers adaquant_block_numbers(const solve::QuantizedWeights& weights, std::size_t block, float factor,
                                            float relative);

class TunedRows {
 public:
  /// The weights must outlive it.
  TunedRows(Device& device, const solve::QuantizedWeights& weights, const solve::LayerGeometry& geometry,
            solve::RowRange rows, PassKind way, DevicePrecision precision, const FinetuneConfig& config,
            double input_power, const StepNumbers& steps);

  PassRows& pass() noexcept { return pass_; }
  /// Between the host's variables, of all rows, and those here. Both wait.
  void put(solve::RoundingVariables& variables, std::size_t iteration);
  void get(solve::RoundingVariables& variables);

  /// An iteration: begin(), add() for each sample, end(). All only queue. `positions`: of all its samples.
  void begin(std::span<const LayerSample> batch);
  void add(const LayerSample& sample, std::size_t positions);
  void end();
  /// An iteration without samples.
  void skip();

 private:
  void queue_step();
  template <class Copy>
  void each(solve::RoundingVariables& variables, const Copy& copy);

  const solve::QuantizedWeights& weights_;
  bool adaround_, trains_bias_ = false;
  PassRows pass_;
  LayerPass* chosen_ = nullptr;  // for the mini-batch
  DeviceArray<float> variable_, mean_, square_, rounded_, base_;
  DeviceArray<float> bias_, bias_mean_, bias_square_;
  DeviceArray<double> by_bias_;
  DeviceArray<AdaRoundBlockNumbers> adaround_numbers_;
  DeviceArray<AdaQuantBlockNumbers> adaquant_numbers_;
  DeviceArray<AdaRoundNumbers> adaround_steps_;
  DeviceArray<AdaQuantNumbers> adaquant_steps_;
  DeviceArray<unsigned> iteration_;
};

}  // namespace detent::cuda
