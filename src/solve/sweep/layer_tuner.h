// One layer of a stage: its samples are taken, its problem is solved, and the result is judged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graph/values.h"
#include "onnx/model.h"
#include "solve/algebra/scale_fit.h"
#include "solve/layers/input_form.h"
#include "solve/layers/layer_solver.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/solved_layers.h"
#include "solve/sweep/stored_samples.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::solve {

/// A layer and what is known of it while samples pass. All but `layer` is set with the first record.
struct LayerProblem {
  const TunedLayer* layer = nullptr;
  std::size_t fitted = 0;  // records that weights are fitted to
  LayerGeometry geometry;
  bool streamed = false;
  QuantizedWeights weights;
  std::vector<float> bias;
  double positions_per_weight = 0;  // of one output
  bool needs_targets = true;
  std::optional<FormAccumulator> sums;       // of samples, where the layer is not streamed
  std::optional<GramFormOrRawInputs> form;   // what they add up to
  std::unique_ptr<StoredSamples> stored;     // where it is streamed
  std::unique_ptr<StoredSamples> held_back;  // to judge the result by
  std::size_t judges = 0;                    // how many records are held back, on all ranks
  bool judged_apart = false;                 // whether each rank has its own of these
};

/// Solves the layers of one run. One thread at a time.
class LayerTuner {
 public:
  /// All must outlive it. `samples`: how many are expected. `report` is called now and then while a layer is solved.
  LayerTuner(const onnx::Model& float_model, const graph::ValueTypes& float_types, const onnx::Model& quantized,
             std::span<const TunedLayer> layers, std::uint64_t samples, LayerSolver& solver, const Kernels& kernels,
             const FinetuneOptions& options, std::function<void()> report);

  /// Whether all samples need the layer's float output, and not only those that are held back. It depends on shapes and
  /// options alone; a layer whose input shape is not static needs them.
  bool needs_targets(std::size_t layer) const { return needs_targets_[layer]; }
  bool needs_targets(const LayerProblem& problem) const { return needs_targets_[number(problem)]; }
  /// So many records are expected of a layer, instead of one of each sample. Layers in bodies may count on the float
  /// model's outputs until this is known.
  void expect(std::size_t layer, std::uint64_t records);

  /// How many values of the float model a record holds where that was run.
  std::size_t float_values() const;
  /// Whether values of the float model, the target last, have shapes that belong to this input of the quantized one.
  bool agree(const LayerProblem& problem, const data::Array& input, const store::Record& of_float) const;

  /// The record as the layer can take it. Where shapes depend on values, the float model may have come to another
  /// shape: then the targets are what the float layer makes of the quantized model's input.
  store::Record paired(const LayerProblem& problem, store::Record record) const;

  /// Several records of a sample come one after another. `record`: the quantized model's input; the float model's
  /// output where it was run; its input with a drop ratio.
  void take(LayerProblem& problem, std::size_t sample, store::Record record);
  /// Of a record that goes to other ranks what take() needs there and here.
  store::Record reduced(const LayerProblem& problem, std::size_t sample, store::Record record) const;
  /// Another rank holds a record of the layer back.
  void take_elsewhere(LayerProblem& problem) { ++problem.judges; }
  /// Whether records that are held back may stay with the ranks that have them: each then judges by its own.
  bool judges_apart() const { return options_.device.is_cpu(); }
  /// After the last sample. Sums of all layers of a stage are finished before the first is solved: on a device they
  /// have to make room for it.
  void finish_samples(LayerProblem& problem);
  SolvedLayer solve(LayerProblem& problem);
  /// Where the state of an unsolved layer is saved.
  std::filesystem::path state_file(const LayerProblem& problem) const;

 private:
  /// Integers, and the weights' scales where these were fitted to them.
  struct Found {
    Solution solution;
    std::optional<QuantizedWeights> fitted;
    double nearest_error = 0, error = 0;  // by the form, where no samples are left to judge by
  };

  std::size_t number(const LayerProblem& problem) const {
    return static_cast<std::size_t>(problem.layer - layers_.data());
  }
  /// An early stop looks at all rows, and devices have all of them.
  bool shares_rows() const { return options_.device.is_cpu() && !options_.config.early_stop; }
  bool has_symmetric_targets() const;
  bool needs_targets_by_shape(std::size_t layer) const;
  float share_of_asymmetric(double positions_per_weight, std::int32_t levels = 256) const;
  SolvedLayer unsolved(const LayerProblem& problem) const;
  data::Array mixed_targets(const LayerProblem& problem, const store::Record& record) const;
  void begin(LayerProblem& problem, const store::Record& record);
  void check_memory(const LayerProblem& problem, std::uint64_t needed) const;
  Found search(LayerProblem& problem, const FinetuneConfig& config, const SolveControl& control);
  Found search_form(LayerProblem& problem, const FinetuneConfig& config, const SolveControl& control);
  void fit(const LayerProblem& problem, const FinetuneConfig& config, const OutputSums& sums, Found& found) const;
  bool judge(const LayerProblem& problem, const SolveControl& control, Found& found) const;
  double error_of(const LayerProblem& problem, const QuantizedWeights& weights, const Solution& solution,
                  LayerSamples& samples, const SolveControl& control) const;

  const onnx::Model& float_;
  const graph::ValueTypes& float_types_;
  const onnx::Model& quantized_;
  std::span<const TunedLayer> layers_;
  LayerSolver& solver_;
  const Kernels& kernels_;
  const FinetuneOptions& options_;
  std::function<void()> report_;
  // Of each layer.
  std::vector<std::uint64_t> records_;  // that are expected
  std::vector<bool> needs_targets_;
};

}  // namespace detent::solve
