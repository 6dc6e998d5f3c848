// Where values of a model decide how many values others have, or which: boxes that are left, durations of sounds, the
// best of many. Behind such a place two forms of a model can be compared only if both decide alike.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// An input of a node that decides, read by others too or not.
struct Operand {
  int node = kNone;
  std::size_t input = 0;
};

struct Decisions {
  /// Values from which the same decisions follow: rounded durations, conditions, counts.
  std::vector<std::string> held;
  /// The same where a node decides by what it reads, as NonMaxSuppression by boxes and scores.
  std::vector<Operand> operands;
  /// Float values that decisions are made from. How near two forms are in them tells how alike they decide.
  std::vector<std::string> judged;
  /// Labels of nodes whose results have as many elements as values say.
  std::vector<std::string> sizing;
  /// What nodes that draw random numbers make. It is among `held`.
  std::vector<std::string> drawn;
  /// Values within the model whose number of elements depends on decisions that no output's size follows from, and
  /// which are not held: each form takes them by itself, and these values cannot be compared.
  std::unordered_set<std::string> apart;

  bool empty() const noexcept { return held.empty() && operands.empty(); }
};

enum class DecisionKind {
  sizes,  // how many elements there are, and random draws
  all,    // which of them are the best (TopK, ArgMax) as well
};

/// Whether the node draws random numbers: generators, and Dropout in training mode.
bool draws_numbers(const onnx::Model& model, const Index& index, const onnx::Node& node);
/// Whether any node does.
bool draws_numbers(const onnx::Model& model);

/// Of the main graph, whose nodes must be in topological order. Without types (an empty map), more may be found than
/// there is.
Decisions find_decisions(const onnx::Model& model, const ValueTypes& types, DecisionKind kind);

/// The name of the copy of an operand that only its node reads: the same in every form of a model.
std::string operand_copy_name(const onnx::Model& model, const Operand& operand);
/// The node that makes it.
onnx::Node copy_node(const onnx::Model& model, const Operand& operand);

/// A flag for each node. Products, and nodes with bodies, are never among them.
struct IndexArithmetic {
  std::vector<bool> from_shapes;   // what it makes follows from the shapes of the inputs, not from what they hold
  std::vector<bool> into_indices;  // what it makes ends in sizes, indices and other integers only
};

/// The nodes must be in topological order.
IndexArithmetic index_arithmetic(const onnx::Model& model, const Index& index, const ValueTypes& types);

}  // namespace detent::graph
