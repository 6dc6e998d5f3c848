// Rewrites that prepare a float model for quantization. Each keeps the model's function; each reports what it did as
// lines for the user (empty: nothing to do). One file each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

using Notes = std::vector<std::string>;

/// What putting bodies and functions in place may take of a run.
struct UnfoldLimits {
  std::optional<std::uint64_t> memory = {};  // of the process: an eighth of it is theirs
  std::stop_token stop = {};
};

/// The nodes of bodies of If, Loop and Scan come to stand in the main graph (onnx/bodies.h), and those of model-local
/// functions in place of each call. A value or node whose name is taken gets the path to it before its name. As they
/// are stay bodies with sparse constants or of other operators, and functions that hold such a body, that import
/// another opset than the model, that have overloads, or that come to more than kMostInlined nodes; calls and functions
/// whose attributes are graphs. Throws bad_input where names come to far more than the file holds, resource where they
/// come to more than the limits give, and interrupted where a stop is requested.
inline constexpr std::uint64_t kMostInlined = 100'000;
void unfold(onnx::Model& model, const UnfoldLimits& limits = {});

/// Throws resource where the nodes and values of a model take more than `memory` (of the process; unset: no limit),
/// whatever is in its weights. unfold() looks as well, once all nodes are in place.
void require_room(const onnx::Model& model, const std::optional<std::uint64_t>& memory);

/// Constant nodes become initializers of the same name; data stay where they are in the file.
Notes lift_constants(onnx::Model& model);

/// Of an unfolded If whose condition is known, the nodes of the branch that it takes come to stand in its place. The
/// runtime does the same when it loads a model, and dies of some that stand in bodies of others.
void take_constant_branches(onnx::Model& model);

/// Initializers listed among the graph inputs (all of them before IR version 4, overridable defaults after) become
/// constants.
Notes drop_initializer_inputs(onnx::Model& model);

/// Each CastLike becomes a Cast to the type that it is to be like, or an Identity where it has that type.
void resolve_cast_likes(onnx::Model& model, const ValueTypes& types);

/// Inputs of Range that may be lists of one number become numbers, as ONNX has them: the runtime computes with lists,
/// but does not load a model in which they follow from known shapes.
Notes give_ranges_scalars(onnx::Model& model, const ValueTypes& types);

/// Identity, and Dropout outside of training, are removed where the names of graph inputs and outputs allow it.
Notes remove_identities(onnx::Model& model);
/// The same for products and quotients with 1, and sums and differences with 0.
Notes remove_neutral_arithmetic(onnx::Model& model, const ValueTypes& types);

/// Nodes whose inputs are all constant, in order. Leaves out what has a body, what draws random numbers, and results
/// whose shape is unknown or that would grow the model (more bytes than `small`, of weights than 64 KiB, and more than
/// 4 times their inputs).
std::vector<int> constant_nodes(const onnx::Model& model, const ValueTypes& types,
                                std::uint64_t small = std::uint64_t{4} << 10);
/// Constant nodes that weights of products and tables are made by, in order, unless each of these is among `left`.
/// Without those that turn a matrix for a product.
std::vector<int> weight_makers(const onnx::Model& model, const std::set<std::string>& left);
/// Of nodes that compute the same of the same constants, readers read the first. `nodes` as from constant_nodes.
void merge_equal_constants(onnx::Model& model, const std::vector<int>& nodes);
/// Replaces the nodes by initializers, which must hold every output of theirs that other nodes or the graph's outputs
/// read.
Notes replace_by_constants(onnx::Model& model, const std::vector<int>& nodes, std::vector<onnx::Tensor> results);

/// What constants were made by before replace_by_constants().
struct FoldedConstants {
  std::vector<onnx::Node> nodes;                // in the order of the graph
  std::map<std::string, onnx::Tensor> sources;  // initializers that they read
  std::map<std::string, const void*> results;   // TensorData::identity() of each

  void add(const onnx::Model& model, const std::vector<int>& which, const std::vector<onnx::Tensor>& made);
};
/// Constants that are still as they were computed are made by their nodes again where that halves what is stored, as of
/// 16-bit floats that a Cast widens. Runtimes compute them when they load the model.
void recompute_constants_at_load(onnx::Model& model, const FoldedConstants& folded);

/// Stores the elements of a rewritten weight and gives back where they are; lets large results live in a file.
using Store = std::function<onnx::TensorData(std::vector<std::byte>)>;

/// Conv and ConvTranspose followed by BatchNormalization become one node. Arithmetic and names ("ConvBnFusion_W_…",
/// "ConvBnFusion_BN_B_…") are those of ONNX Runtime's own fusion, so that weights are comparable with models it
/// prepared.
Notes fold_batch_norm(onnx::Model& model, const Store& store);

/// BatchNormalization with constants, of values with four axes, becomes a convolution of one place for each channel.
Notes batch_norms_as_convolutions(onnx::Model& model, const ValueTypes& types, const Store& store);

/// x (1 + erf(x / sqrt(2))) / 2 becomes Gelu of Microsoft's domain.
Notes compose_gelus(onnx::Model& model, const ValueTypes& types);

/// A Gemm's alpha becomes part of its constant weight, and its constant C, with beta, a vector with a value for each
/// output: kernels on integers have neither alpha nor beta, and add vectors alone.
Notes plain_gemms(onnx::Model& model, const Store& store);

/// Products and sums with constants that follow a convolution or matrix product, one number or one for each channel,
/// become part of its weight and bias. A product of two matrices becomes a Gemm where it gets a bias: ONNX Runtime
/// makes of MatMul and Add a Gemm in float, whose integers it would convert back at each run.
Notes fold_after_products(onnx::Model& model, const ValueTypes& types, const Store& store);

/// The same for one number that what products read is multiplied by, or that is added to it. What a padded convolution
/// reads stays a sum, since zeros are put around it.
Notes fold_before_products(onnx::Model& model, ValueTypes& types, const Store& store);

/// Clip(x + 3, 0, 6) / 6 becomes HardSigmoid, also where x is multiplied with it before it is divided.
Notes compose_hard_sigmoids(onnx::Model& model, ValueTypes& types);

/// HardSwish becomes x * HardSigmoid(x), which there are kernels on integers for.
Notes take_hard_swishes_apart(onnx::Model& model, ValueTypes& types);
/// The way back, where nothing came between both: one operator, which the runtime fuses with a convolution before it.
void compose_hard_swishes(onnx::Model& model);

/// PRelu with one slope for all channels becomes LeakyRelu.
Notes uniform_prelus(onnx::Model& model);

/// PRelu with constant slopes, Mish (also as x * tanh(softplus(x))), Elu, Selu and Celu become operators that ONNX
/// Runtime's CPU computes faster; results differ by roundings of float32.
Notes write_fast_activations(onnx::Model& model, ValueTypes& types);

inline constexpr std::int64_t kOldestOpset = 7;
inline constexpr std::int64_t kUpgradedOpset = 13;
/// Brings a model of opset 7 or later to opset `to`, 13 to 25: 13 is the first with per-axis QuantizeLinear, 21 the
/// first with blocks. Throws bad_input for an operator whose meaning changed in between and that has no rewrite, and
/// for opsets below 7. Models that have it already, or a later one, are left alone.
Notes upgrade_opset(onnx::Model& model, const ValueTypes& types, std::int64_t to = kUpgradedOpset);

/// A value whose channels are divided by factors, and the products that make up for it in their weights.
struct ChannelScaling {
  struct Reader {
    int node = 0;
    std::string weight;    // float32; no other node reads it
    std::size_t axis = 0;  // of the weight, along the channels of the value
  };
  /// Constants of the convolution that the value comes from, by way of a Relu at most; float32, read by nobody else.
  struct Maker {
    std::string weight;
    std::string bias;  // empty: none
  };
  std::string value;
  bool last_axis = true;  // channels along the last axis of the value; else along the second of a convolution's input
  std::vector<float> factors;  // above 0
  std::vector<Reader> readers;
  std::optional<Maker> maker;
};

/// The readers take value / factors, and their weights are multiplied by them. The division becomes part of the maker's
/// constants, and what else reads the value gets it as it was by a Mul; without a maker it becomes part of a
/// LayerNormalization's constants where the value has no other readers, else a Mul before the readers.
/// Gives back the name of each scaled value, a new one.
std::vector<std::string> scale_channels(onnx::Model& model, ValueTypes& types,
                                        const std::vector<ChannelScaling>& scalings, const Store& store);
/// A weight's elements times the factor of their index along an axis.
std::vector<float> scaled_along(const onnx::Tensor& weight, std::size_t axis, const std::vector<float>& factors);

/// Values of float16 and bfloat16 become float32, also in bodies: constants, casts, and types that attributes name.
/// With `keep_io_types` graph inputs and outputs stay as they are, with a cast each; a note says what else stays.
Notes half_floats_to_float32(onnx::Model& model, const Store& store, bool keep_io_types);
/// Casts of a value to the type that it has become Identity.
void idle_casts_to_identities(onnx::Model& model, const ValueTypes& types);

/// Of constants that are equal or transposed to one another one is stored, and the others are read from it, in the
/// second case through a Transpose, which runtimes compute when they load the model. Looks at those whose dimensions,
/// in ascending order, are among `shapes`. 8-bit integers are turned where `turns_integers`; smaller ones never are.
void deduplicate_constants(onnx::Model& model, const std::set<std::vector<std::int64_t>>& shapes, bool turns_integers);

/// Constants that mask scores before a Softmax (graph/patterns.h) do not go below kMask: no infinities, no sums beyond
/// all floats.
Notes clamp_masks(onnx::Model& model, const Store& store);

/// Where(IsNaN(x), 0, x) behind a Softmax, as torch guards rows in which everything is masked, becomes x. For what
/// reads integers, which are never NaN.
Notes remove_softmax_guards(onnx::Model& model);

/// An AveragePool with ceil_mode and count_include_pad reads zeros that a Pad puts around its values: the same results.
Notes pad_before_means(onnx::Model& model);

/// A product whose channels differ much in size by its weights, such as boxes of hundreds of pixels beside scores up to
/// 1, becomes one for each run of neighbours of one size, where its result leaves the graph or is taken apart: joined
/// by a Concat, or in place of the Split that parts them. Nodes that `stays` names are left as they are.
Notes part_products(onnx::Model& model, const ValueTypes& types, const std::function<bool(const onnx::Node&)>& stays,
                    const Store& store);

/// Pad of some axes becomes Pad of all of them, where axes are constants and the rank is known.
Notes pad_all_axes(onnx::Model& model, const ValueTypes& types);
/// The same of Resize; sizes that are computed, or that other axes have while the model runs, are joined there. One
/// that keeps a ratio among its axes gets the others joined to one.
Notes resize_all_axes(onnx::Model& model, const ValueTypes& types);

/// Removes initializers that nothing reads.
void drop_unused_initializers(onnx::Model& model);

/// Convolutions and poolings get the attributes that they left at their defaults: kernel_shape, strides, dilations,
/// pads where auto_pad does not give them, group. Some compilers do not know the defaults.
void complete_convolutions(onnx::Model& model);

/// What Qualcomm's HTP computes wrongly or does not compile, in forms that it computes: Reciprocal as Div,
/// InstanceNormalization of known shapes as LayerNormalization, which has a bias. From opset 17 on.
Notes rewrite_for_htp(onnx::Model& model, const ValueTypes& types, const Store& store);
bool has_instance_norm(const onnx::Model& model);

/// Pow(x, 2) becomes Mul(x, x), which NPUs run on integers.
Notes squares_to_mul(onnx::Model& model);

/// A convolution with a kernel of one place and with strides takes its values from a MaxPool of one value that has
/// these strides: the same results.
Notes pool_before_strided_points(onnx::Model& model);

/// Of two products with constants, one behind the other with element-wise operators between them, both of matrices of
/// at most 8 rows or as many as the user likes, the second becomes a MatMul of three axes, with a Reshape before and
/// behind it.
Notes add_axis_for_few_rows(onnx::Model& model, const ValueTypes& types, const Store& store);

}  // namespace detent::graph
