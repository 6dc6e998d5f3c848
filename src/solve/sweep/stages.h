// Which layers are solved from one pass over the samples, and where that cuts the two models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnx/model.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::solve {

/// Layers that are solved from one pass: none of them is before the input of another.
struct Stage {
  std::vector<std::size_t> layers;
  /// Layers in bodies: the stage looks into the segment, and the next one begins where it does.
  bool in_body = false;
  /// Of both models.
  std::size_t segment = 0;
};

/// Bytes of a layer's Gram matrix.
std::uint64_t gram_bytes(const onnx::Model& float_model, const TunedLayer& layer);

/// Stages in the order of the layers, which are as find_layers() gives them. Which layers go together does not change
/// what is found for them. `together`: bytes of the Gram matrices of a stage of several layers, at most.
std::vector<Stage> stages_of(const std::vector<TunedLayer>& layers, const onnx::Model& float_model,
                             const onnx::Model& quantized, std::uint64_t together);

/// Where the segments end in the float model: behind the last target of each stage that is not in bodies. The model
/// may have nodes behind the last, which are then a segment too.
std::vector<int> float_ends(const std::vector<TunedLayer>& layers, const std::vector<Stage>& stages);
/// And in the quantized model: before the first layer.
std::vector<int> quantized_ends(const std::vector<TunedLayer>& layers, const std::vector<Stage>& stages);

}  // namespace detent::solve
