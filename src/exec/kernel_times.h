// What each kernel of a model takes in a session as a user's program would make it, by ONNX Runtime's own profile.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::exec {

/// A node of the graph that the runtime makes of the model, with all its optimizations.
struct Kernel {
  std::string name;
  std::string op_type;               // "QLinearConv"; what the runtime fused goes by the operator it made
  std::vector<std::string> outputs;  // values of the model that it makes; empty if it makes none, as changes of layout
  double seconds = 0;                // in one run of the model, without the nodes of its bodies
};

struct KernelTimesOptions {
  int threads = 0;                       // 0: one per core
  std::size_t runs = 20;                 // at most, and
  double seconds = 1;                    // about so long, but three runs at the least
  bool fastest = false;                  // the shortest of each kernel's times, not the median
  std::filesystem::path directory = {};  // for working files, which do not stay; empty: a directory of its own
  std::stop_token stop = {};
};

/// Runs the model on the samples in turn and takes the median of each kernel's times, or the shortest; nodes in bodies
/// are listed with the others, by how often they run. In the order in which they first ran. Of what is fused, `outputs`
/// names the last value. Throws what Session throws.
std::vector<Kernel> kernel_times(const Runtime& runtime, const onnx::Model& model,
                                 std::span<const std::vector<data::Array>> samples, const KernelTimesOptions& options);

}  // namespace detent::exec
