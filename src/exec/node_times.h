// How long each node took, from the profile that ONNX Runtime writes of its runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace detent::exec {

/// A node of the runtime's own graph: fused nodes go by one of their names, and nodes of its making are among them.
struct NodeTime {
  std::string name;
  std::string op_type;
  double start = 0;           // seconds since the session was made
  double seconds = 0;         // of one execution
  std::string provider = {};  // that ran it, as in Device::provider
};

/// Every execution of every node, in the order in which they ended. Lines that are not understood are passed over.
std::vector<NodeTime> read_node_times(const std::filesystem::path& path);

/// The last execution of each node.
std::vector<NodeTime> last_of_each(std::vector<NodeTime> times);

}  // namespace detent::exec
