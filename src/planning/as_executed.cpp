#include "planning/as_executed.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/cpu.h"
#include "graph/execution_order.h"
#include "graph/traits.h"

namespace detent::planning {
namespace {

constexpr std::int64_t kReordersBy = 4;  // the runtime's changes of layout take this many channels at a time

std::int64_t padded(std::int64_t channels, std::int64_t block) { return (channels + block - 1) / block * block; }

// The runtime's own choice of the convolutions that it runs in blocks.
struct Blocked {
  bool result = false;
  bool input = false;  // a few channels, as of an image, are read as they are
  std::int64_t inputs = 0, outputs = 0;
};

Blocked blocked(const onnx::Node& node, const std::vector<std::int64_t>& weight, std::int64_t block) {
  if (weight.size() != 4) return {};
  const std::int64_t groups = node.int_or("group", 1);
  const std::int64_t outputs = weight[0];
  const std::int64_t inputs = weight[1];
  if (groups == 1) {
    if (inputs < block) return {true, false, inputs, outputs};
    return {inputs % kReordersBy == 0, true, inputs, outputs};
  }
  const bool depthwise = inputs == 1 && outputs == groups;
  const bool whole_blocks = inputs % block == 0 && outputs % groups == 0 && outputs / groups % block == 0;
  return {outputs % kReordersBy == 0 && (depthwise || whole_blocks), true, inputs * groups, outputs};
}

class Rewriter {
 public:
  Rewriter(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
           const std::vector<std::string>& observed, std::int64_t block)
      : index_(index), observed_(observed.begin(), observed.end()), block_(block), result_{model, types} {
    result_.model.graph.nodes.clear();
    for (const auto& node : model.graph.nodes) {
      const int weight = node.is("Conv") && block > 0 ? index.initializer(node.inputs().at(1)) : graph::kNone;
      const auto form = weight == graph::kNone
                            ? Blocked()
                            : blocked(node, model.graph.initializers[static_cast<std::size_t>(weight)].dims, block);
      if (form.result) {
        add_blocked(node, form);
      } else {
        add(node);
      }
    }
  }

  Executed result() && {
    auto& nodes = result_.model.graph.nodes;
    const auto order = graph::execution_order(result_.model, graph::Index(result_.model));
    std::vector<onnx::Node> sorted;
    for (const int n : order) sorted.push_back(std::move(nodes[static_cast<std::size_t>(n)]));
    nodes = std::move(sorted);
    return std::move(result_);
  }

 private:
  void add(onnx::Node node) {
    // Reshapes take no memory; the others have kernels that may write over an input, which is done where the planner of
    // the runtime knows that input and output have one shape: not beyond an observer, of whose output it knows none.
    const auto& traits = graph::traits_of(node);
    const bool overwrites =
        traits.is(graph::Trait::overwrites) && !node.inputs().empty() && !observed_.contains(node.inputs().front());
    const bool known = traits.is(graph::Trait::renames) || node.is("ConvTranspose") || overwrites;
    if (!known) node.set_op_type("computes " + node.op_type());
    result_.model.graph.nodes.push_back(std::move(node));
  }

  // A value beside `original`, with the channels padded to whole blocks.
  std::string add_blocked_value(const std::string& original, std::int64_t channels) {
    std::string name = index_.fresh_name(original + " in blocks");
    const auto found = result_.types.find(original);
    if (found == result_.types.end()) return name;
    auto type = found->second;
    if (type.shape && type.shape->size() > 1) (*type.shape)[1].value = padded(channels, block_);
    result_.types[name] = std::move(type);
    return name;
  }

  void add_blocked(const onnx::Node& node, const Blocked& form) {
    auto& nodes = result_.model.graph.nodes;
    auto inputs = node.inputs();
    if (form.input) {
      auto& reordered = reordered_[inputs.front()];
      if (reordered.empty()) {
        reordered = add_blocked_value(inputs.front(), form.inputs);
        nodes.emplace_back("ReorderInput", "", std::vector{inputs.front()}, std::vector{reordered});
      }
      inputs.front() = reordered;
    }
    const std::string& output = node.outputs().front();
    const std::string result = add_blocked_value(output, form.outputs);
    nodes.emplace_back("BlockedConv", node.name(), inputs, std::vector{result});
    nodes.emplace_back("ReorderOutput", "", std::vector{result}, std::vector{output});
  }

  graph::Index index_;
  std::unordered_set<std::string> observed_;
  std::int64_t block_;
  std::unordered_map<std::string, std::string> reordered_;  // plain value -> the same in blocks
  Executed result_;
};

}  // namespace

std::int64_t channel_block() {
#if defined(__x86_64__)
  return has_avx512() ? 16 : has_avx() ? 8 : 0;
#else
  return 0;
#endif
}

Executed as_executed(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     const std::vector<std::string>& observed, std::int64_t block) {
  return Rewriter(model, index, types, observed, block).result();
}

}  // namespace detent::planning
