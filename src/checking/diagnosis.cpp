#include "checking/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/numbers.h"
#include "base/text.h"
#include "checking/signature.h"
#include "graph/execution.h"
#include "graph/traits.h"

namespace detent::checking {
namespace {

// Between 8-bit integers ONNX Runtime looks their results up.
constexpr std::array<std::string_view, 4> kCurves{"LeakyRelu", "LogSoftmax", "Sigmoid", "Softmax"};
constexpr std::array<std::string_view, 2> kPools{"AveragePool", "GlobalAveragePool"};

// The nodes of a group that compute.
std::vector<const onnx::Node*> computing(const onnx::Model& model, const Group& group) {
  std::vector<const onnx::Node*> nodes;
  for (const int n : group.nodes) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(n)];
    if (!graph::is_q_or_dq(node)) nodes.push_back(&node);
  }
  return nodes;
}

bool saturates(const Signature& forms) {
  return forms.first.text.starts_with("u8") && forms.second.text.starts_with("s8") && forms.second.is_constant;
}

std::string of_float_kernel(const onnx::Node& node, const Signature& forms, const config::Target& target) {
  const auto* table = table_of(target.is_ort_cpu ? "ort-cpu" : target.name);
  const auto* row = table == nullptr ? nullptr : table->find(node.op_type(), forms);
  if (row == nullptr || on_integers(*row) || forms.first.text == "f32") return "";
  if (row->kernel == "none") return "";
  return fmt::format("{} is computed in {}", node.op_type(), row->kernel);
}

}  // namespace

std::string cause_of(const onnx::Model& model, const graph::Index& index, const Group& group,
                     const Differences& differences, const config::Target& target) {
  if (differences.differ == 0) return "";
  const auto nodes = computing(model, group);
  const bool on_cpu = target.is_ort_cpu || target.name == "openvino";
  for (const auto* node : nodes) {
    const auto forms = signature_of(model, index, *node, target);
    if (graph::is_product(*node) && differences.over_one > 0 && on_cpu && saturates(forms) &&
        !sums_8_bit_products_exactly())
      return "pairs of uint8 x int8 products saturate in 16 bits on this CPU, which has no VNNI; quantize with "
             "--set weight-range=pairs";
  }
  for (const auto* node : nodes) {
    if (auto cause = of_float_kernel(*node, signature_of(model, index, *node, target), target); !cause.empty())
      return cause;
  }
  if (differences.max_steps > 1 || nodes.empty()) return "";
  const auto is_one_of = [&](const auto& names) {
    return nodes.size() == 1 && std::find(names.begin(), names.end(), nodes.front()->op_type()) != names.end();
  };
  if (is_one_of(kCurves)) return fmt::format("{} from a table that was made in float32", nodes.front()->op_type());
  if (is_one_of(kPools)) return "the mean is rounded in float32";
  return nodes.size() > 1 ? "one kernel for several operators, which scales in float32"
                          : "scales are applied in float32: values near the middle between two integers";
}

namespace {

using onnx::DataType;

template <class T>
void add_integers(const data::Array& a, const data::Array& b, Differences& to) {
  const auto *x = reinterpret_cast<const T*>(a.bytes.data()), *y = reinterpret_cast<const T*>(b.bytes.data());
  const std::size_t count = a.bytes.size() / sizeof(T);
  int most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int steps = std::abs(static_cast<int>(x[i]) - static_cast<int>(y[i]));
    to.differ += steps > 0 ? 1 : 0;
    to.over_one += steps > 1 ? 1 : 0;
    most = std::max(most, steps);
  }
  to.elements += count;
  to.max_steps = std::max(to.max_steps, static_cast<double>(most));
}

void add_floats(const data::Array& a, const data::Array& b, double step, Differences& to) {
  const auto x = data::to_floats(a), y = data::to_floats(b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    double steps = same ? 0 : std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])) / step;
    if (std::isnan(steps)) steps = std::numeric_limits<double>::infinity();
    to.differ += steps >= 1 ? 1 : 0;
    to.over_one += steps > 1 ? 1 : 0;
    to.max_steps = std::max(to.max_steps, steps);
  }
  to.elements += x.size();
}

}  // namespace

bool is_quantized(DataType type) noexcept {
  return type == DataType::uint8 || type == DataType::int8 || type == DataType::uint16 || type == DataType::int16;
}

bool is_comparable(DataType type) noexcept { return is_quantized(type) || data::holds_floats(type); }

void Differences::add(const data::Array& reference, const data::Array& found, double step, const std::string& name) {
  if (reference.type != found.type || reference.shape != found.shape)
    throw bad_input(fmt::format("'{}' has another type or shape where the model is deployed", name));
  switch (reference.type) {
    case DataType::uint8: return add_integers<std::uint8_t>(reference, found, *this);
    case DataType::int8: return add_integers<std::int8_t>(reference, found, *this);
    case DataType::uint16: return add_integers<std::uint16_t>(reference, found, *this);
    case DataType::int16: return add_integers<std::int16_t>(reference, found, *this);
    default: return add_floats(reference, found, step, *this);
  }
}

double magnitude_of(const data::Array& array) {
  double most = 0;
  for (const float x : data::to_floats(array)) {
    if (std::isfinite(x)) most = std::max(most, static_cast<double>(std::abs(x)));
  }
  return most;
}

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
  for (const auto& name : group.inputs) part.graph.inputs.push_back(graph::told_info(model_, types_, name));
  for (const auto& name : group.outputs) part.graph.outputs.push_back(graph::told_info(model_, types_, name));
  return part;
}

std::string headline(const CheckResult& r) {
  auto text = fmt::format("{}: {} accepted, {} fall back, {} refused", r.target, count_with_noun(r.accepted, "node"),
                          r.falls_back, r.refused);
  const auto leave = std::count_if(r.nodes.begin(), r.nodes.end(), [](const auto& node) { return node.on_cpu; });
  text += leave > 0 ? fmt::format("; {} left to the CPU, ", leave) : "; ";
  text += count_with_noun(r.partitions, "part") + " of the graph";
  if (r.macs && *r.macs > 0)
    text +=
        fmt::format("; {:.1f} % of {} multiplications in integers",
                    100 * static_cast<double>(*r.integer_macs) / static_cast<double>(*r.macs), format_count(*r.macs));
  return text;
}

}  // namespace detent::checking
