// One layer of a stage: its samples are taken, its problem is solved, and the result is judged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/sweep.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "shim/shared_work.h"
#include "solve/layers/input_form.h"
#include "solve/layers/layer_solver.h"
#include "solve/layers/streamed.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/solved_layers.h"
#include "solve/sweep/tuned_layer.h"
#include "store/spool.h"

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
  struct Found {
    Solution solution;
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
  bool judge(const LayerProblem& problem, const SolveControl& control, Found& found) const;
  double error_of(const LayerProblem& problem, const Solution& solution, LayerSamples& samples,
                  const SolveControl& control) const;

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

// Samples that ranks share: each runs its own through the models, and what layers take of them comes to all.

/// The rank that runs a sample: each has as many as the others of those that are fitted to, and of those held back.
std::size_t runner_of(std::size_t sample, std::size_t ranks);

/// One pass over the samples, for layers that each take a record of every sample.
class SharedSamples {
 public:
  /// What a layer takes of a sample; nothing where the record stays with the rank that ran it.
  using Take = std::function<void(std::size_t layer, std::size_t sample, std::optional<store::Record> record)>;

  /// What is sent of a record, and taken: less than it may do.
  using Reduce = std::function<store::Record(std::size_t layer, std::size_t sample, store::Record record)>;

  /// `keeps_held_back`: whether records that are held back stay with the ranks that ran them.
  SharedSamples(store::Spool& spool, std::size_t layers, bool keeps_held_back, shim::Team team);
  ~SharedSamples();
  SharedSamples(const SharedSamples&) = delete;
  SharedSamples& operator=(const SharedSamples&) = delete;

  /// Of a sample that this rank runs.
  void put(std::size_t layer, std::size_t sample, store::Record record);
  /// Collective, once there are all records of so many samples: hands them out in the order of samples.
  void hand_out(std::size_t samples, const Reduce& reduce, const Take& take);

 private:
  using Queue = std::deque<store::Record>;

  bool travels(std::size_t sample) const;
  bool is_mine(std::size_t sample) const { return runner_of(sample, team_.size()) == team_.rank(); }
  store::Record take_own(std::size_t layer, std::size_t sample);
  void exchange_some(std::size_t samples, std::size_t most, const Reduce& reduce);

  store::Spool& spool_;
  store::Spool::Lane lane_;
  std::size_t layers_;
  bool keeps_held_back_;
  shim::Team team_;
  std::size_t sent_ = 0;       // of the numbers of records, counted over all ranks: those that this one has gone past
  std::vector<Queue> queues_;  // of each rank: what was exchanged and is still to be handed out
};

// What layers in bodies of If, Loop and Scan read and give: values in there cannot be outputs of a session, but taps
// hand them over, once for each time that a body runs.

/// Names of taps of layers in bodies, for exec::BranchOptions: what they give in the float model, which names its
/// readers too, and what reads in the quantized one.
std::vector<std::string> body_targets(std::span<const TunedLayer> layers);
std::vector<std::string> body_readers(std::span<const TunedLayer> layers, const onnx::Model& quantized);

/// Hands on what the taps of some layers receive.
class LayerTaps final : public data::TapReceiver {
 public:
  using Receive = std::function<void(std::size_t layer, const data::TensorView& tensor)>;

  /// `names` of the layers' taps among those of the stage, which may have others.
  LayerTaps(const exec::Stage& stage, const std::vector<std::string>& names, Receive receive);
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override;

 private:
  std::vector<std::size_t> layer_of_;  // by tap
  Receive receive_;
};

/// One pass over the bodies of a segment, for the layers of a stage. Runs of a sample are paired in their order; where
/// one model runs a body more often than the other, or with other shapes, what has no partner is left out.
class BodyPass {
 public:
  /// The stages are what exec::Branch::load_for_taps() gave; all must outlive the pass.
  BodyPass(exec::Stage& float_stage, exec::Stage& quantized_stage, const onnx::Model& quantized,
           std::vector<LayerProblem>& problems, LayerTuner& tuner, store::Spool& spool);
  ~BodyPass();
  BodyPass(const BodyPass&) = delete;
  BodyPass& operator=(const BodyPass&) = delete;

  /// Arguments as of exec::Stage::run(). The problems take what comes of the sample.
  void run(std::size_t sample, std::span<const data::Array> graph_inputs, const std::string& where);

 private:
  /// What the float model's runs of a layer's body gave for the sample that is on its way.
  struct Waiting {
    store::Spool::Lane lane = 0;
    std::size_t put = 0, taken = 0;  // records, over all samples
    store::Record begun;             // of a run whose values are not all there
  };

  bool needs_float() const;
  void keep(std::size_t layer, const data::TensorView& tensor);
  std::optional<store::Record> next_of(Waiting& waiting);
  void pair(std::size_t layer, const data::TensorView& tensor);

  exec::Stage& float_stage_;
  exec::Stage& quantized_stage_;
  std::vector<LayerProblem>& problems_;
  LayerTuner& tuner_;
  store::Spool& spool_;
  std::vector<Waiting> waiting_;  // of each problem
  LayerTaps of_float_, of_quantized_;
  std::size_t sample_ = 0;
};

}  // namespace detent::solve
