#include "quantization/floats/float_casts.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>

#include "quantization/floats/float_rules.h"

namespace detent::quantization {
namespace {

constexpr int kPasses = 3;

// What is between nodes: the float32 values that are no constants.
class CastCounter {
 public:
  CastCounter(const onnx::Model& model, const graph::ValueTypes& types, const graph::Index& index, bool keep_io_types,
              std::vector<bool>& low)
      : low_(low), touched_(low.size()) {
    std::unordered_map<std::string, std::size_t> known;
    const auto value = [&](const std::string& name) -> Value& {
      const auto [it, added] = known.try_emplace(name, values_.size());
      if (added) {
        const bool output = index.is_output(name);
        values_.push_back({-1,
                           false,
                           !keep_io_types,
                           index.is_captured(name) || (output && keep_io_types),
                           output && !keep_io_types,
                           {}});
      }
      return values_[it->second];
    };
    for (std::size_t n = 0; n < low.size(); ++n) {
      const auto& node = model.graph.nodes[n];
      const auto* rule = float_rule(node);
      const auto is_float = [&](const std::string& name) {
        return !name.empty() && index.initializer(name) == graph::kNone &&
               graph::type_of(model, types, name) == onnx::DataType::float32;
      };
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (!is_float(node.inputs()[i])) continue;
        const bool any = rule != nullptr && rule->trait == FloatTrait::reads_any;
        const bool fixed = rule != nullptr && in_mask(rule->float32_inputs, i);
        auto& read = value(node.inputs()[i]);
        if (!any) read.readers.push_back({n, fixed});
        touched_[n].push_back(known.at(node.inputs()[i]));
      }
      for (std::size_t o = 0; o < node.outputs().size(); ++o) {
        if (!is_float(node.outputs()[o])) continue;
        auto& made = value(node.outputs()[o]);
        made.producer = static_cast<int>(n);
        made.fixed = rule != nullptr && in_mask(rule->float32_outputs, o);
        touched_[n].push_back(known.at(node.outputs()[o]));
      }
    }
  }

  // Casts of all values that these nodes read or make.
  std::size_t casts(const std::vector<std::size_t>& nodes) const {
    std::set<std::size_t> around;
    for (const auto n : nodes) around.insert(touched_[n].begin(), touched_[n].end());
    return static_cast<std::size_t>(
        std::count_if(around.begin(), around.end(), [&](std::size_t v) { return is_cast(values_[v]); }));
  }

  // The light nodes in 16 bits that hang together with this one.
  std::vector<std::size_t> piece(std::size_t start, const std::vector<bool>& light, std::vector<bool>& seen) const {
    std::vector<std::size_t> nodes{start};
    seen[start] = true;
    for (std::size_t at = 0; at < nodes.size(); ++at) {
      for (const auto v : touched_[nodes[at]]) {
        const auto visit = [&](std::size_t n) {
          if (seen[n] || !light[n] || !low_[n]) return;
          seen[n] = true;
          nodes.push_back(n);
        };
        if (values_[v].producer >= 0) visit(static_cast<std::size_t>(values_[v].producer));
        for (const auto& [reader, fixed] : values_[v].readers) visit(reader);
      }
    }
    return nodes;
  }

 private:
  struct Reader {
    std::size_t node;
    bool fixed;  // reads float32 whatever its own type
  };
  struct Value {
    int producer;
    bool fixed;         // made as float32 whatever the type of its producer
    bool input_is_low;  // of values without a producer
    bool wanted_high, wanted_low;
    std::vector<Reader> readers;
  };

  bool is_cast(const Value& v) const {
    const bool made_low = v.producer < 0 ? v.input_is_low : low_[static_cast<std::size_t>(v.producer)] && !v.fixed;
    if (made_low ? v.wanted_high : v.wanted_low) return true;
    return std::any_of(v.readers.begin(), v.readers.end(),
                       [&](const Reader& r) { return (low_[r.node] && !r.fixed) != made_low; });
  }

  const std::vector<bool>& low_;
  std::vector<Value> values_;
  std::vector<std::vector<std::size_t>> touched_;  // values of each node
};

}  // namespace

std::vector<std::size_t> merge_islands(const onnx::Model& model, const graph::ValueTypes& types,
                                       const graph::Index& index, bool keep_io_types, const std::vector<bool>& light,
                                       std::vector<bool>& low) {
  const CastCounter borders(model, types, index, keep_io_types, low);
  std::vector<std::size_t> moved;
  const auto move_if_better = [&](const std::vector<std::size_t>& nodes) {
    const auto before = borders.casts(nodes);
    for (const auto n : nodes) low[n] = false;
    const bool better = borders.casts(nodes) < before;
    for (const auto n : nodes) low[n] = !better;
    if (better) moved.insert(moved.end(), nodes.begin(), nodes.end());
    return better;
  };
  for (int pass = 0; pass < kPasses; ++pass) {
    bool any = false;
    std::vector<bool> seen(low.size());
    for (std::size_t n = 0; n < low.size(); ++n) {
      if (!light[n] || !low[n]) continue;
      if (!seen[n]) any = move_if_better(borders.piece(n, light, seen)) || any;
      if (low[n]) any = move_if_better({n}) || any;
    }
    if (!any) break;
  }
  std::sort(moved.begin(), moved.end());
  return moved;
}

}  // namespace detent::quantization
