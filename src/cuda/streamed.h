// Layers solved in mini-batches on devices, and errors measured there.
#pragma once

#include "cuda/record_readers.h"
#include "cuda/rows.h"
#include "detent/device.h"
#include "solve/layers/problem.h"
#include "solve/layers/samples.h"
#include "solve/layers/solver.h"

namespace detent::cuda {

/// A layer's problem in mini-batches.
struct StreamedLayer {
  const solve::QuantizedWeights& weights;
  const solve::LayerGeometry& geometry;
  solve::LayerSamples& samples;
  RecordReaders* readers = nullptr;  // what reads samples that rest on disk; null: they come through the host
};

/// As solve::solve_streamed, but that mini-batches are of whole samples. `kernels` of the CPU are for coordinate
/// descent afterwards.
solve::Solution solve_streamed(Devices& devices, const DeviceConfig& on, const StreamedLayer& layer,
                               std::span<const float> bias, const FinetuneConfig& config, const solve::Kernels& kernels,
                               const solve::SolveControl& control);

/// As solve::reconstruction_error; in float32 whatever the precision of steps.
double reconstruction_error(Devices& devices, const StreamedLayer& layer, const solve::Solution& solution,
                            const solve::SolveControl& control);

}  // namespace detent::cuda
