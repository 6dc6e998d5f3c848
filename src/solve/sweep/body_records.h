// What layers in bodies of If, Loop and Scan read and give: values in there cannot be outputs of a session, but taps
// hand them over, once for each time that a body runs.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tap.h"
#include "exec/sweep.h"
#include "onnx/model.h"
#include "solve/sweep/layer_tuner.h"
#include "solve/sweep/tuned_layer.h"
#include "store/spool.h"

namespace detent::solve {

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
