// Constants that rewrites read and make.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::graph {

/// The initializer of that name where it is float32, or null.
const onnx::Tensor* float32_constant(const onnx::Model& model, const Index& index, const std::string& name);
/// The input of a node, likewise.
const onnx::Tensor* float32_constant(const onnx::Model& model, const Index& index, const onnx::Node& node,
                                     std::size_t input);

/// The initializer of that name where it holds floats of any type, or null.
const onnx::Tensor* any_float_constant(const onnx::Model& model, const Index& index, const std::string& name);

/// What a ConstantOfShape fills its result with, where that is a float of any type.
std::optional<double> constant_of_shape_value(const onnx::Model& model, const onnx::Node& node);

std::vector<float> floats_of(const onnx::Tensor& tensor);
/// The values with their axes in another order: axis `axes[d]` of `shape` becomes axis d.
std::vector<float> transposed(const std::vector<float>& values, const std::vector<std::int64_t>& shape,
                              const std::vector<std::int64_t>& axes);
onnx::Tensor stored_floats(const std::string& name, std::vector<std::int64_t> dims, const std::vector<float>& values,
                           const Store& store);

/// The one node that reads the value, or kNone: where there are others, or it is a graph output or read by a body.
int only_reader(const Index& index, const std::string& value);

/// An Add, Sub, Mul or Div that multiplies a value by a constant or adds one to it.
struct ConstantStep {
  std::string value;             // that is not constant
  const onnx::Tensor* constant;  // of the model: valid while its initializers are not touched
  bool multiplies = false;       // else it adds
  bool inverse = false;          // divides, or subtracts

  /// Multiplier or summand for each element of the constant.
  std::vector<double> values() const;
};
/// Its constant is float32.
std::optional<ConstantStep> float32_constant_step(const onnx::Model& model, const Index& index, const onnx::Node& node);
/// Its constant holds floats of any type.
std::optional<ConstantStep> any_float_constant_step(const onnx::Model& model, const Index& index,
                                                    const onnx::Node& node);

/// Of a step whose constant is one number that leaves the shape of a value of this rank.
std::optional<double> scalar_of(const ConstantStep& step, std::size_t rank);

/// A step whose constant is one number, and which leaves the shape of the value.
struct ScalarStep {
  std::string value;
  double number;
  bool multiplies;  // else it adds
};
std::optional<ScalarStep> scalar_step(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                      const onnx::Node& node);

/// Removes nodes by position.
void remove_nodes(onnx::Model& model, const std::vector<bool>& removed);

// bfloat16 in models that ONNX Runtime's CPU is to tell about, which has no kernels of it.

/// Types of bfloat16 become float16, also in bodies, while the bits of constants stay as they are: a model whose values
/// have the same shapes, and which must not run.
void relabel_bfloat16_as_float16(onnx::Model& model);
/// bfloat16 becomes float32, as half_floats_to_float32() does it of both types; float16 stays.
void bfloat16_to_float32(onnx::Model& model, const Store& store);

// Where values go that nothing computes with.

/// Nodes that only move what a value holds.
struct Moved {
  std::set<std::size_t> nodes;
  bool parts = false;  // behind them, or at once, the value leaves the graph or is taken apart
};
Moved moved_from(const onnx::Model& model, const Index& index, const std::string& value);

}  // namespace detent::graph
