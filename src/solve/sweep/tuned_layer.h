// The layers that fine-tuning works on, found in the float model and in its quantized form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/emit/barriers.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// A linear layer whose weights are stored as integers. Nodes are positions in their model, tensors positions among its
/// initializers.
struct TunedLayer {
  std::string name;  // of the node
  std::string op_type;
  int float_node = 0;
  int quantized_node = 0;
  std::string input;        // of the quantized model: the layer's first input
  std::string float_input;  // of the float model
  std::string target;       // of the float model: the layer's output
  std::size_t float_weight = 0;
  std::size_t stored_weight = 0;
  std::size_t stored_scale = 0;
  std::size_t stored_zero = 0;
  float bias_factor = 1;                          // Gemm's beta, which the stored bias has in it
  std::optional<std::size_t> float_bias;          // initializer of the float model
  std::optional<std::size_t> stored_bias;         // int32, or the float bias itself
  std::optional<std::size_t> bias_scale;          // of an int32 bias
  bool in_body = false;                           // or among the nodes of one: no segment ends before it or behind it
  std::optional<quantization::Summation> paired;  // whose pairs of integers are not to saturate
  WeightLayout layout = WeightLayout::outputs_first;
};

struct FoundLayers {
  std::vector<TunedLayer> layers;  // in the order of the float model
  std::vector<std::string> notes;  // what cannot be tuned, with the reason
};

/// Layers that the configuration names and whose weights are stored as integers; there may be none. Throws usage for
/// names and types that match nothing.
FoundLayers find_layers(const onnx::Model& float_model, const quantization::Emitted& quantized,
                        const FinetuneConfig& config);

/// All layers of a float model that could be tuned if their weights were quantized; only what concerns the float model
/// is filled in.
std::vector<TunedLayer> linear_layers(const onnx::Model& float_model);

/// Whether the configuration names the node.
bool is_selected(const onnx::Node& node, const FinetuneConfig& config);

/// The layer's geometry for an input of this shape. Throws bad_input for attributes that contradict it.
LayerGeometry geometry_of(const onnx::Model& float_model, const TunedLayer& layer,
                          const std::vector<std::int64_t>& input_shape);

/// The integers of its weight as they are stored.
std::vector<std::byte> stored_integers(const onnx::Model& quantized, const TunedLayer& layer);
/// Weights, scales and zero points, as a matrix.
QuantizedWeights weights_of(const onnx::Model& float_model, const onnx::Model& quantized, const TunedLayer& layer,
                            const LayerGeometry& geometry);
/// The bias that the float layer adds; empty: none.
std::vector<float> bias_of(const onnx::Model& float_model, const TunedLayer& layer);

/// Integers in the order and type of the stored weight, as bytes.
std::vector<std::byte> stored_integers(const onnx::Model& quantized, const TunedLayer& layer,
                                       const LayerGeometry& geometry, const std::vector<std::int32_t>& integers);
/// The bias as it is stored, as bytes.
std::vector<std::byte> stored_bias(const onnx::Model& quantized, const TunedLayer& layer,
                                   const std::vector<float>& bias);

/// Stores these bytes as the layer's bias.
void replace_bias(onnx::Model& quantized, const TunedLayer& layer, onnx::TensorData data);

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
