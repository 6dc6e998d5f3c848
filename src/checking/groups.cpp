#include "checking/groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/traits.h"
#include "onnx/write.h"

namespace detent::checking {
namespace {

using graph::kNone;

const onnx::Node& at(const onnx::Model& model, int n) { return model.graph.nodes[static_cast<std::size_t>(n)]; }

std::vector<std::string> reads_of(const onnx::Model& model, const onnx::Node& node) {
  std::vector<std::string> names;
  for (const auto& name : node.inputs()) {
    if (!name.empty()) names.push_back(name);
  }
  for (auto& name : graph::captured_names(model, node)) names.push_back(std::move(name));
  return names;
}

class Grouping {
 public:
  Grouping(const onnx::Model& model, const graph::Index& index)
      : model_(model), index_(index), depends_(graph::depends_on_input(model, index)) {}

  std::vector<Group> run() {
    std::vector<int> last_of(model_.graph.nodes.size(), kNone);  // the last node of the group that a node is in
    std::map<int, std::vector<int>> members;
    for (int n = static_cast<int>(last_of.size()) - 1; n >= 0; --n) {
      if (is_carried(n) && !makes_output(n)) continue;
      const int last = is_last(n, last_of) ? n : last_of[static_cast<std::size_t>(only_reader(n))];
      last_of[static_cast<std::size_t>(n)] = last;
      members[last].push_back(n);
    }
    std::vector<Group> groups;
    for (auto& [last, nodes] : members) {
      Group group = complete(last, nodes, last_of);
      if (!group.outputs.empty()) groups.push_back(std::move(group));
    }
    return groups;
  }

 private:
  // Constant, or a DequantizeLinear: each reader has its own.
  bool is_carried(int n) const {
    return !depends_[static_cast<std::size_t>(n)] || graph::is_dequantize_linear(at(model_, n));
  }
  bool makes_output(int n) const {
    const auto& outputs = at(model_, n).outputs();
    return std::any_of(outputs.begin(), outputs.end(), [&](const auto& o) { return index_.is_output(o); });
  }
  int only_reader(int n) const {
    for (const auto& output : at(model_, n).outputs()) {
      if (!output.empty() && !index_.consumers(output).empty()) return index_.consumers(output).front();
    }
    return kNone;
  }
  bool is_last(int n, const std::vector<int>& last_of) const {
    const int reader = only_reader(n);
    if (reader == kNone || makes_output(n) || graph::is_quantize_linear(at(model_, n))) return true;
    const int last = last_of[static_cast<std::size_t>(reader)];
    for (const auto& output : at(model_, n).outputs()) {
      if (output.empty()) continue;
      for (const int other : index_.consumers(output)) {
        if (is_carried(other) || last_of[static_cast<std::size_t>(other)] != last) return true;
      }
    }
    return false;
  }

  Group complete(int last, const std::vector<int>& members, const std::vector<int>& last_of) const {
    std::set<int> nodes(members.begin(), members.end());
    std::vector<int> open(members);
    while (!open.empty()) {
      const int n = open.back();
      open.pop_back();
      for (const auto& name : reads_of(model_, at(model_, n))) {
        const int producer = index_.producer(name);
        if (producer != kNone && is_carried(producer) && nodes.insert(producer).second) open.push_back(producer);
      }
    }
    Group group{{nodes.begin(), nodes.end()}, {}, {}, last};
    std::set<std::string> made, seen;
    for (const int n : nodes) made.insert(at(model_, n).outputs().begin(), at(model_, n).outputs().end());
    for (const int n : nodes) {
      for (const auto& name : reads_of(model_, at(model_, n))) {
        // Sparse constants stay with the frame of each group's model.
        const bool is_value = index_.producer(name) != kNone || index_.is_input(name);
        if (made.contains(name) || index_.initializer(name) != kNone || !is_value) continue;
        if (seen.insert(name).second) group.inputs.push_back(name);
      }
    }
    for (const auto& name : at(model_, last).outputs()) {
      if (!name.empty() && is_read_outside(name, last, last_of)) group.outputs.push_back(name);
    }
    return group;
  }

  bool is_read_outside(const std::string& name, int last, const std::vector<int>& last_of) const {
    if (index_.is_output(name)) return true;
    if (graph::is_dequantize_linear(at(model_, last))) return false;
    const auto readers = index_.consumers(name);
    return std::any_of(readers.begin(), readers.end(),
                       [&](int n) { return is_carried(n) || last_of[static_cast<std::size_t>(n)] != last; });
  }

  const onnx::Model& model_;
  const graph::Index& index_;
  std::vector<bool> depends_;
};

}  // namespace

std::vector<Group> groups_of(const onnx::Model& model, const graph::Index& index) {
  return Grouping(model, index).run();
}

GroupModels::GroupModels(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types)
    : model_(model), index_(index), types_(types), frame_(model) {
  frame_.graph.nodes.clear();
  frame_.graph.initializers.clear();
  frame_.graph.inputs.clear();
  frame_.graph.outputs.clear();
  frame_.graph.value_infos.clear();
}

onnx::ValueInfo GroupModels::info_of(const std::string& name) const {
  const auto found = types_.find(name);
  // The runtime tells an unknown rank as 0.
  const bool known = found != types_.end() && found->second.shape && !found->second.shape->empty();
  return onnx::make_value_info(name, graph::type_of(model_, types_, name), known ? found->second.shape : std::nullopt);
}

onnx::Model GroupModels::model(const Group& group) const {
  onnx::Model part = frame_;
  std::set<std::string> taken;
  for (const int n : group.nodes) {
    part.graph.nodes.push_back(at(model_, n));
    for (const auto& name : reads_of(model_, at(model_, n))) {
      const int i = index_.initializer(name);
      if (i == kNone || !taken.insert(name).second) continue;
      part.graph.initializers.push_back(model_.graph.initializers[static_cast<std::size_t>(i)]);
    }
  }
  for (const auto& name : group.inputs) part.graph.inputs.push_back(info_of(name));
  for (const auto& name : group.outputs) part.graph.outputs.push_back(info_of(name));
  return part;
}

}  // namespace detent::checking
