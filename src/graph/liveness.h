// How many bytes of activations are alive at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"

namespace detent::graph {

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

}  // namespace detent::graph
