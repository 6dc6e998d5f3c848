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

/// Keeps what it is given in memory.
const Store& in_memory();

/// The model with an index of what it was at first, and what is to be added and removed once all of it was looked at.
/// Rewrites derive from it. All that it is given must outlive it.
class Rewriter {
 public:
  explicit Rewriter(onnx::Model& model, const ValueTypes& types = no_types(), const Store& store = in_memory())
      : model_(model), types_(types), store_(store), index_(model), removed_(model.graph.nodes.size()) {}

 protected:
  onnx::Node& node_at(int n) { return model_.graph.nodes[static_cast<std::size_t>(n)]; }
  const onnx::Node& node_at(int n) const { return model_.graph.nodes[static_cast<std::size_t>(n)]; }
  void remove(int n) { removed_[static_cast<std::size_t>(n)] = true; }
  int only_reader(const std::string& value) const { return graph::only_reader(index_, value); }
  /// Of the node's first result.
  int only_reader(int n) const { return only_reader(node_at(n).outputs().front()); }
  /// An initializer; null: the value is none, or the node has no such input.
  const onnx::Tensor* constant(const std::string& name) const;
  const onnx::Tensor* constant(const onnx::Node& node, std::size_t input) const;
  /// The same of float32.
  const onnx::Tensor* floats(const onnx::Node& node, std::size_t input) const;
  bool is_float32(const std::string& value) const;

  std::string fresh(const std::string& wanted) { return index_.fresh_name(wanted); }
  /// Constants that finish() adds, by their names: `wanted`, or one like it.
  std::string add(const std::string& wanted, std::vector<std::int64_t> dims, const std::vector<float>& values);
  std::string add_ints(const std::string& wanted, const std::vector<std::int64_t>& values);
  /// A node at the end of nodes_, in the body of `beside`; its result.
  std::string add(const onnx::Node& beside, const std::string& type, const std::string& name,
                  std::vector<std::string> inputs, const std::string& output,
                  std::vector<onnx::Attribute> attributes = {});
  /// The same with a name of its own, after `beside` and its type.
  std::string put(const onnx::Node& beside, const std::string& type, std::vector<std::string> inputs,
                  std::vector<onnx::Attribute> attributes = {});
  /// Another node in place of one, with its name, its body and its first result.
  static void exchange(onnx::Node& node, const std::string& type, std::vector<std::string> inputs,
                       std::vector<onnx::Attribute> attributes = {}, const std::string& domain = {});

  /// Calls visit(node) for all nodes in their order. What it adds to nodes_ comes before the node, which is gone where
  /// it returns true.
  template <class Visit>
  void rebuild(const Visit& visit) {
    auto given = std::move(model_.graph.nodes);
    model_.graph.nodes.clear();
    for (auto& node : given) {
      if (!visit(node)) nodes_.push_back(std::move(node));
    }
    model_.graph.nodes = std::move(nodes_);
  }
  void move_constants_to_model();
  /// Removes and adds what was noted, and drops initializers that nothing reads any more. Gives back the line for the
  /// user, where `count` is not 0; where it is, nothing may have been noted.
  Notes finish(std::size_t count, std::string line);

  onnx::Model& model_;
  const ValueTypes& types_;
  const Store& store_;
  Index index_;
  std::vector<bool> removed_;        // by node
  std::vector<onnx::Node> nodes_;    // see rebuild()
  std::vector<onnx::Tensor> added_;  // see add()

 private:
  static const ValueTypes& no_types();
};

/// Drops initializers that nothing reads any more. Gives back the line for the user, where `count` is not 0.
Notes finished(onnx::Model& model, std::size_t count, std::string line);

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
