// A model cut into a chain of segments, to be run one after another.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// The nodes [begin, end) of a model in topological order, and what passes their borders. Initializers do not count.
struct Segment {
  int begin = 0;
  int end = 0;
  std::vector<std::string> inputs;   // read here, made before `begin` or inputs of the graph
  std::vector<std::string> outputs;  // made here, read at `end` or later
};

/// Values that are made by one segment and read by the same later segments travel together.
struct Lane {
  std::string name;  // letters, digits and '-'; others for other values
  std::vector<std::string> values;
  int producer = 0;  // segment; inputs of the graph count as made by segment 0
  std::vector<int> readers;
};

struct Chain {
  std::vector<Segment> segments;
  std::vector<Lane> lanes;
};

/// `cuts`: positions between nodes, ascending, in (0, number of nodes); none: one segment that is the whole model.
Chain make_chain(const onnx::Model& model, const Index& index, const std::vector<int>& cuts);

/// Positions at which a cut changes no result: each value that would cross is an input of the graph, is one of
/// `observed` (a tap stands there anyway, which keeps the runtime from merging the nodes around it), or holds no
/// floating-point numbers; and its type is known.
std::vector<int> harmless_cuts(const onnx::Model& model, const Index& index, const ValueTypes& types,
                               const std::unordered_set<std::string>& observed);

/// The segment as a model of its own. Outputs are the segment's and those of the model that are made here; one made
/// node output stands in when there are none. Inputs get the shapes of `types`, but for those in `shapeless` the
/// shape that the model itself states, if it does; those in `ranks_only` get ranks. Shares tensor data with `model`.
onnx::Model segment_model(const onnx::Model& model, const Index& index, const ValueTypes& types, const Segment& segment,
                          const std::unordered_set<std::string>& shapeless = {},
                          const std::unordered_set<std::string>& ranks_only = {});

/// Whether a value of this shape is none of what a model states: models may state wrong shapes, of which the runtime
/// only warns, but not for what it is given.
bool contradicts(const std::vector<std::int64_t>& shape, const std::optional<std::vector<onnx::Dim>>& stated);

}  // namespace detent::graph
