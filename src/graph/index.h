// Who makes and who reads each value of a graph.
#pragma once

#include <functional>
#include <optional>
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

/// Brings nodes into topological order, keeping the present order where it is free. Throws bad_input on a cycle.
void sort_topologically(onnx::Model& model);

/// Element types and shapes of the values of a graph, as inferred by the runtime.
struct ValueType {
  onnx::DataType type = onnx::DataType::undefined;  // undefined: not a tensor, or not known
  std::optional<std::vector<onnx::Dim>> shape;      // nullopt: rank not known
};
using ValueTypes = std::unordered_map<std::string, ValueType>;

/// Adds types and shapes of the initializers.
void add_initializers(const onnx::Model& model, ValueTypes& types);

/// Element type of a value: from its initializer, else as inferred; undefined when not known.
onnx::DataType type_of(const onnx::Model& model, const ValueTypes& types, const std::string& value);

/// Dimensions of a value whose shape is static, nullopt when it is not or is not known.
std::optional<std::vector<std::int64_t>> static_shape(const ValueTypes& types, const std::string& value);

/// Bytes of a value whose shape is static, nullopt when it is not or is not known.
std::optional<std::uint64_t> static_bytes(const ValueTypes& types, const std::string& value);

/// Rank of a value, nullopt when not known.
std::optional<std::size_t> rank_of(const ValueTypes& types, const std::string& value);

/// Whether the attribute holds one or more graphs.
bool is_body(const onnx::Attribute& attribute) noexcept;
bool has_body(const onnx::Node& node) noexcept;

/// The graphs that the node's attributes hold, parsed; empty for most nodes. Throws bad_input for a damaged one.
std::vector<onnx::Graph> read_bodies(const onnx::Model& model, const onnx::Node& node);

/// For each position before a node, and behind the last: whether a cut there would part the nodes of an unfolded body
/// (onnx/bodies.h) from each other or from the node that holds it.
std::vector<bool> cuts_inside_bodies(const onnx::Model& model);

/// States the ranks of what the unfolded bodies of Scan nodes give, where the model does not: the runtime wants to know
/// them, and does not find them behind an observer. Returns bodies (as in Node::body()) with a rank that `types` lack.
std::vector<int> state_scan_ranks(onnx::Model& model, const ValueTypes& types);

}  // namespace detent::graph
