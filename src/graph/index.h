// Who makes and who reads each value of a graph.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "onnx/model.h"

namespace detent::graph {

inline constexpr int kNone = -1;

/// Names that the bodies of an If, Loop or Scan node read from the graph around it.
std::vector<std::string> captured_names(const onnx::Model& model, const onnx::Node& node);

/// Lookup tables over a model's main graph, as it is when they are built.
/// Construction throws bad_input for names defined twice and for names read but never defined.
class Index {
 public:
  explicit Index(const onnx::Model& model);

  /// The node that makes the value, or kNone for graph inputs, initializers and unknown names.
  int producer(std::string_view value) const;
  /// Nodes that read the value, ascending, each once; captures by bodies count as reads of the node that holds the
  /// body.
  std::span<const int> consumers(std::string_view value) const;
  /// Whether any body of an If, Loop or Scan reads the value.
  bool is_captured(std::string_view value) const;
  /// The initializer's position, or kNone.
  int initializer(std::string_view value) const;
  bool is_input(std::string_view value) const;
  bool is_output(std::string_view value) const;
  bool knows(std::string_view value) const { return values_.contains(value); }
  /// `wanted`, or `wanted` with the smallest number added that no value and no node is named; it is taken from then on.
  std::string fresh_name(const std::string& wanted);

 private:
  struct Value {
    int producer = kNone;
    int initializer = kNone;
    bool input = false;
    bool sparse = false;
    bool output = false;
    bool captured = false;
    std::vector<int> consumers;
    bool defined() const { return producer != kNone || initializer != kNone || input || sparse; }
  };
  const Value* find(std::string_view value) const;
  void define_outputs(const onnx::Model& model);
  void add_reads(const onnx::Model& model);

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, Value, Hash, std::equal_to<>> values_;
  std::unordered_set<std::string> node_names_;
};

/// Per node: does its result depend on a graph input, or on chance (random generators)? All others are constant.
std::vector<bool> depends_on_input(const onnx::Model& model, const Index& index);

/// Values that are made (or are graph inputs) before node `cut` and read by it or later, or are graph outputs made
/// before it. Initializers do not count. 0 <= cut <= number of nodes; nodes must be in topological order.
std::vector<std::string> values_crossing_cut(const onnx::Model& model, const Index& index, int cut);

/// Brings nodes into topological order, keeping the present order where it is free. Throws bad_input on a cycle.
void sort_topologically(onnx::Model& model);

}  // namespace detent::graph
