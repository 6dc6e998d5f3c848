// Layers solved in mini-batches on devices, and errors measured there.
#pragma once

#include "cuda/record_readers.h"
#include "cuda/rows.h"
#include "detent/device.h"
#include "finetune/problem.h"
#include "finetune/samples.h"
#include "finetune/solver.h"

namespace detent::cuda {

/// A layer's problem in mini-batches.
struct StreamedLayer {
  const finetune::QuantizedWeights& weights;
  const finetune::LayerGeometry& geometry;
  finetune::LayerSamples& samples;
  RecordReaders* readers = nullptr;  // what reads samples that rest on disk; null: they come through the host
};

/// As finetune::solve_streamed, but that mini-batches are of whole samples. `kernels` of the CPU are for coordinate
/// descent afterwards.
finetune::Solution solve_streamed(Devices& devices, const DeviceConfig& on, const StreamedLayer& layer,
                                  std::span<const float> bias, const FinetuneConfig& config,
                                  const finetune::Kernels& kernels, const finetune::SolveControl& control);

/// As finetune::reconstruction_error; in float32 whatever the precision of steps.
double reconstruction_error(Devices& devices, const StreamedLayer& layer, const finetune::Solution& solution,
                            const finetune::SolveControl& control);

}  // namespace detent::cuda
