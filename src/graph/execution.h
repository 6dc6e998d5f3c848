// How a runtime executes a graph: the order of nodes, how long values live, how much is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

// The order in which ONNX Runtime runs the nodes of a graph.

/// Positions of all nodes in the runtime's default order. It is not that of the file: the runtime walks backwards,
/// depth first, from the nodes that nobody reads, the later producer of two first, and runs each node as soon as its
/// producers are done. What is alive at a time follows from it. `index` is of `model`.
std::vector<int> execution_order(const onnx::Model& model, const Index& index);

// What the runtime tells of shapes: of a value of unknown rank that it has none, as of a number.

/// The shape of a value of which it tells one with axes.
std::optional<std::vector<onnx::Dim>> told_shape(const ValueTypes& types, const std::string& value);
/// How a value is stated as an input or output of a part of the model.
onnx::ValueInfo told_info(const onnx::Model& model, const ValueTypes& types, const std::string& value);

/// Bytes of all constants, and of those that a node reads.
std::uint64_t constant_bytes(const onnx::Model& model);
std::uint64_t constant_bytes(const onnx::Model& model, const Index& index, const onnx::Node& node);

/// Positions in [begin, end) before nodes with which those from the position before would read more than `most` bytes
/// of constants. What is between two positions depends on the inputs, and constants stand beside what reads them turned
/// or converted; bodies stay whole.
std::vector<int> cuts_by_constants(const onnx::Model& model, const Index& index, std::uint64_t most, int begin,
                                   int end);

/// Bytes that a node needs while it runs; `kept` says whether its first input is still needed afterwards.
using Workspace = std::function<std::uint64_t(const onnx::Node& node, bool kept)>;

struct Liveness {
  std::uint64_t peak_bytes = 0;
  std::size_t at_node = 0;  // where the peak is
};

/// The symbol of dimensions whose sizes were seen when a sample ran. The runtime does not know them beforehand, so that
/// nothing is written over.
inline constexpr const char* kMeasured = "measured";

/// Walks the nodes in file order: a value is alive from its producer to its last reader, graph outputs to the end.
/// Values that only rename others (Reshape and the like) take no memory, and an element-wise node writes over an input
/// of equal size that nobody reads afterwards, as runtimes do. Graph inputs count. nullopt when a shape is not static.
std::optional<Liveness> liveness(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                 const Workspace& workspace = {});

/// The memory that each value lives in, by the same rules.
struct Lifetimes {
  static constexpr std::size_t kEnd = static_cast<std::size_t>(-1);
  std::unordered_map<std::string, std::size_t> block_of;
  std::vector<std::uint64_t> bytes;  // of each block
  std::vector<std::size_t> end;      // the last node that uses it, or kEnd
};
std::optional<Lifetimes> lifetimes(const onnx::Model& model, const Index& index, const ValueTypes& types);

/// What one run of a node takes at the least.
struct Work {
  std::uint64_t macs = 0;   // multiply-accumulates of products and convolutions
  std::uint64_t flops = 0;  // 2 per MAC; of all else one per element: see work_of()
  std::uint64_t bytes = 0;  // all inputs read and all outputs written once

  Work& operator+=(const Work& other) noexcept;
};

/// nullopt when a shape that it takes is not static. Counting rules:
///   Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU, RNN   2 per MAC, and 1 per output element where there is a bias
///   pooling                                            1 per window element and output element
///   reductions, Softmax, normalizations                1 per input element (so often more in truth)
///   data movement                                      0; of Reshape and the like no bytes either
///   all else                                           1 per output element
std::optional<Work> work_of(const onnx::Model& model, const Index& index, const ValueTypes& types,
                            const onnx::Node& node);

}  // namespace detent::graph
