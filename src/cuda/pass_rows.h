// Some rows of a layer on one device, and samples that go through them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cuda/gram_rows.h"
#include "cuda/gram_sums.h"
#include "cuda/layer_pass.h"
#include "cuda/step_kernels.h"
#include "detent/config.h"
#include "solve/layers/problem.h"
#include "solve/layers/rounding_variables.h"
#include "store/device_route.h"

namespace detent::cuda {

/// How a layer's outputs are computed. The numbers are saved in states of interrupted layers.
enum class PassKind : std::uint64_t { undecided = 0, patches = 1, nchw = 2, nhwc = 3 };

/// One sample of the whole layer: on the host, or at rest on disk.
struct LayerSample {
  const solve::Shape* shape = nullptr;
  std::span<const float> input = {}, target = {};
  /// Its first two parts are input and target, as float32; null: it is on the host.
  const store::RecordOnDisk* resting = nullptr;
};

/// Filters, outputs and losses of the rows. One thread at a time, which makes the device its own.
class PassRows {
 public:
  /// The geometry must outlive it.
  PassRows(Device& device, const solve::QuantizedWeights& weights, const solve::LayerGeometry& geometry,
           solve::RowRange rows, PassKind way, DevicePrecision precision);

  Device& device() noexcept { return device_; }
  solve::RowRange range() const noexcept { return rows_; }
  std::size_t count() const noexcept { return rows_.count(); }
  std::size_t fan_in() const noexcept { return fan_in_; }
  std::size_t values() const noexcept { return count() * fan_in_; }
  const ScaleBlocks& scale_blocks() const noexcept { return blocks_; }

  /// The pass for all of these samples: of the way that was chosen if it can, else by patches. Those of one mini-batch
  /// share it, and with it the order of weights.
  LayerPass& pass_for(std::span<const LayerSample> samples);

  /// filter = scale · (base + soft), in units of the scale; base may be null.
  void fill_filter(const LayerPass& pass, const float* base, const float* soft);
  struct Task {
    const float* bias = nullptr;  // of these rows, on the device
    float factor = 0;             // of the slope
    double weight = 1;            // of the loss
    double* row_sums = nullptr;   // where the slopes' sums over all positions are added for each row
    bool backward = false;        // adds the gradient; the first sample after fill_filter() replaces what was there
  };
  /// What brings samples that rest on disk; it must outlive this. Without one there may be none.
  void read_by(store::DeviceReader& reader) noexcept { reader_ = &reader; }
  /// Queues one sample, whose bytes may change as soon as this returns.
  void run(LayerPass& pass, const LayerSample& sample, const Task& task);
  /// The gradient by weights in the matrix's order.
  const float* gradient(const LayerPass& pass);
  /// What losses have added up to since the last call. Waits.
  double take_losses();
  /// Milliseconds that a sample takes, forward and backward, with whatever weights.
  double time(LayerPass& pass, const LayerSample& sample);

  template <class T>
  DeviceArray<T> array(std::size_t count) const {
    return {device_.memory(), count, "fine-tuning a layer in mini-batches"};
  }

 private:
  struct Staged {
    const float *input, *target;
  };
  Staged stage(const LayerSample& sample);
  void queue(LayerPass& pass, const LayerSample& sample, const Staged& staged, const Task& task);
  DeviceAmount amount(const solve::Shape& shape, bool backward) const;

  Device& device_;
  const solve::LayerGeometry& geometry_;
  solve::RowRange rows_;
  std::size_t fan_in_;
  std::unique_ptr<LayerPass> by_patches_, by_convolutions_;
  Staging staging_;
  store::DeviceReader* reader_ = nullptr;
  ScaleBlocks blocks_;
  DeviceArray<float> scale_, filter_, filter_gradient_, slope_;
  DeviceArray<double> losses_;
  bool fresh_ = true;  // nothing is in the gradient yet
};

/// The numbers of all iterations, as solve/layers/rounding_variables.h and rounding_variables.h have them.
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
