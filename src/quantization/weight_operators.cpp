#include "quantization/weight_operators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "config/presets.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "graph/patterns.h"
#include "graph/traits.h"
#include "quantization/emit/dynamic.h"
#include "quantization/placement/selection.h"

namespace detent::quantization {
namespace {

template <class Wanted>
std::vector<std::string> types_where(const Wanted& wanted) {
  std::vector<std::string> types;
  for (const auto& row : graph::operators()) {
    if (wanted(row.weights)) types.emplace_back(row.type);
  }
  std::sort(types.begin(), types.end());
  return types;
}

}  // namespace

const WeightOperator* weight_operator(const onnx::Node& node) noexcept {
  const auto& row = graph::operator_of(node).weights;
  return row.weights == 0 ? nullptr : &row;
}

std::vector<std::string> types_with_dynamic_weights() {
  return types_where([](const auto& row) { return row.dynamic != DynamicWeights::no; });
}

std::vector<std::string> types_with_block_weights() {
  return types_where([](const auto& row) { return row.blocks != BlockWeights::no; });
}

namespace {

using onnx::Attribute;
using onnx::Node;

// An attribute that the other operator honours: with any value, or with one alone (each number of a list).
struct Honoured {
  std::string_view name;
  std::optional<std::int64_t> only = {};
  bool is_needed = false;
};

std::vector<Honoured> honoured_by(const graph::Exchange& exchange) {
  std::vector<Honoured> all;
  for (auto rest = exchange.attributes; !rest.empty();) {
    const auto word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const auto equals = word.find('=');
    Honoured& one = all.emplace_back(Honoured{word.substr(0, equals)});
    if (equals == std::string_view::npos) continue;
    one.only = word.back() - '0';
    one.is_needed = word.find("==") != std::string_view::npos;
  }
  return all;
}

bool holds_only(const Attribute& attribute, std::int64_t value) {
  switch (attribute.kind()) {
    case Attribute::Kind::i: return attribute.as_int() == value;
    case Attribute::Kind::f: return attribute.as_float() == static_cast<float>(value);
    case Attribute::Kind::ints: {
      const auto all = attribute.as_ints();
      return std::all_of(all.begin(), all.end(), [&](auto v) { return v == value; });
    }
    default: return false;
  }
}

}  // namespace

std::string reason_against_exchange(const Node& node, std::string_view to) {
  const auto& row = graph::operator_of(node);
  const auto all = honoured_by(to == row.weights.exchange.type ? row.weights.exchange : row.integers.operation);
  for (const auto& attribute : node.attributes()) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& h) { return h.name == attribute.name(); });
    if (found == all.end()) return fmt::format("{} has no '{}'", to, attribute.name());
    if (found->only && !holds_only(attribute, *found->only))
      return fmt::format("{} computes as if {} were {}", to, found->name, *found->only);
  }
  for (const auto& one : all) {
    if (one.is_needed && node.attribute(one.name) == nullptr)
      return fmt::format("{} computes as if {} were {}", to, one.name, *one.only);
  }
  return {};
}

namespace {

std::vector<bool> selection(const onnx::Model& model, const QuantConfig& config) {
  const auto known = types_with_dynamic_weights();
  for (const auto& type : config.op_types) {
    if (std::find(known.begin(), known.end(), type) != known.end()) continue;
    throw usage_error(fmt::format("--op-types: {} has no form with dynamic activations", type),
                      fmt::format("choose from: {}", fmt::join(known, ", ")));
  }
  auto selected = select_of_all_types(model, config);
  if (!config.op_types.empty() || !config.nodes.empty()) return selected;
  for (std::size_t n = 0; n < selected.size(); ++n) {
    const auto* row = weight_operator(model.graph.nodes[n]);
    selected[n] = selected[n] && row != nullptr && row->dynamic == DynamicWeights::yes;
  }
  return selected;
}

// What the integer forms of a node do not do.
std::string reason_against(const Node& node) {
  if (node.is("Gemm")) return reason_against_gemm(node);
  if (graph::has_trait(node, graph::Trait::looks_up) && node.int_or("axis", 0) != 0) return "it does not look up rows";
  const auto exchanged_for = weight_operator(node)->exchange.type;
  return exchanged_for.empty() ? std::string() : reason_against_exchange(node, exchanged_for);
}

bool has_rank(const WeightOperator& row, std::size_t rank) { return row.rank == 0 ? rank >= 3 : rank == row.rank; }

Granularity granularity_of(const Node& node, const std::vector<std::int64_t>& dims, const QuantConfig& config) {
  if (graph::has_trait(node, graph::Trait::looks_up)) return Granularity::along(0);
  // [directions, 4 * hidden, inputs]: a scale for each row, or for each direction.
  if (graph::is_recurrent(node))
    return config.per_channel ? Granularity::blocks(2, dims.back()) : Granularity::along(0);
  if (!config.per_channel) return Granularity::tensor();
  return Granularity::along(graph::is_convolution(node) || node.int_or("transB", 0) != 0 ? 0 : 1);
}

std::optional<Summation> summation(const Node& node, const std::vector<std::int64_t>& dims) {
  if (graph::is_recurrent(node)) return Summation{static_cast<std::size_t>(dims.back()), 1, 1};
  return summation_of(node, dims);
}

class Placer {
 public:
  Placer(const onnx::Model& model, const QuantConfig& config, const TransposedConstants& transposed)
      : model_(model),
        config_(config),
        transposed_(transposed),
        index_(model),
        selected_(selection(model, config)),
        before_logarithms_(graph::front_end(model, index_, graph::FrontEnds::logarithms)),
        names_none_(config.op_types.empty() && config.nodes.empty()) {
    if (names_none_) find_storable();
  }

  Placement place() {
    find();
    if (nodes_.empty() && placement_.stored.empty())
      throw bad_input(fmt::format("model '{}' has no weights to quantize", model_.path.string()),
                      placement_.notes.empty() ? hint() : placement_.notes.front());
    placement_.quantized = nodes_.size() + placement_.stored.size();
    return std::move(placement_);
  }

  const std::vector<std::size_t>& find() {
    do look_at_all();
    while (finds_kept_weights());
    placement_.notes = left_.notes();
    return nodes_;
  }

 private:
  void look_at_all() {
    placement_ = {};
    nodes_.clear();
    known_.clear();
    left_ = {};
    placement_.selected.resize(model_.graph.nodes.size(), false);
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const bool placed = selected_[n] && visit(n);
      placement_.selected[n] = placed;
      if (placed) nodes_.push_back(n);
      const auto& node = model_.graph.nodes[n];
      if (placed || !(graph::is_product(node) || graph::is_recurrent(node))) continue;
      if (storable_.contains(node.id())) {
        placement_.stored.insert(node.id());
        continue;
      }
      ++placement_.in_float;
      if (!names_none_) continue;
      if (node.is("GRU")) leave(node, "ONNX Runtime has none on integers");
      if (graph::is_convolution(node) && constant(node, 1) != nullptr)
        leave(node, "dynamic quantization would make convolutions slower; --format int8, with samples, quantizes them");
    }
  }

  void find_storable() {
    const auto& nodes = model_.graph.nodes;
    auto products = products_to_store(model_, config_);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (!graph::is_convolution(nodes[n]) || before_logarithms_.contains(n)) products.erase(nodes[n].id());
    }
    storable_ = products_in_float(model_, products);
    for (const auto n : layers_to_store(model_, config_)) {
      if (!before_logarithms_.contains(n)) storable_.insert(nodes[n].id());
    }
  }

  // Integers would come on top of a weight that stays, but where a table is all that reads it in float.
  bool is_kept(const std::string& weight) const {
    const auto readers = index_.consumers(weight);
    return index_.is_output(weight) || index_.is_captured(weight) ||
           std::any_of(readers.begin(), readers.end(), [&](int reader) {
             const auto n = static_cast<std::size_t>(reader);
             const auto& node = model_.graph.nodes[n];
             const auto own = weight_inputs(node).size();
             const auto& inputs = node.inputs();
             const bool is_placed = std::binary_search(nodes_.begin(), nodes_.end(), n);
             return !graph::has_trait(node, graph::Trait::looks_up) &&
                    !(is_placed && std::cmp_less_equal(std::count(inputs.begin(), inputs.end(), weight), own));
           });
  }

  bool finds_kept_weights() {
    const auto before = beside_kept_.size();
    for (const auto n : nodes_) {
      const auto& node = model_.graph.nodes[n];
      const auto inputs = weight_inputs(node);
      if (std::any_of(inputs.begin(), inputs.end(), [&](std::size_t i) { return is_kept(node.inputs()[i]); }))
        beside_kept_.insert(n);
    }
    if (beside_kept_.size() == before) {
      const auto& placed = placement_.selected;
      for (const auto n : enlarging_nodes(model_, index_, config_.weight_type, transposed_, placed))
        beside_kept_.insert(n);
    }
    return beside_kept_.size() > before;
  }

  std::string hint() const {
    const auto& tensors = model_.graph.initializers;
    const bool low = std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
      return tensor.type == onnx::DataType::float16 || tensor.type == onnx::DataType::bfloat16;
    });
    return low ? "its weights are 16-bit floats: give --float 32"
               : "no selected MatMul, Gemm, LSTM or Gather reads a constant float32 matrix";
  }

  // Whether all weights of the node become integers.
  bool visit(std::size_t n) {
    const auto& node = model_.graph.nodes[n];
    std::vector<Mark> marks;
    for (const auto input : weight_inputs(node)) {
      const auto* weight = constant(node, input);
      if (weight == nullptr) return false;
      if (!has_rank(*weight_operator(node), weight->dims.size())) return leave(node, "its weight is no matrix");
      if (weight->count() == 0) return leave(node, "its weight has no elements");
      Mark mark{.value = weight->name,
                .is_constant = true,
                .is_weight = true,
                .granularity = granularity_of(node, weight->dims, config_),
                .shares = {}};
      const bool paired = config_.weight_range == WeightRange::pairs && config_.weight_type == QuantType::int8;
      if (const auto sums = summation(node, weight->dims);
          paired && !graph::has_trait(node, graph::Trait::looks_up) && sums)
        mark.paired.push_back(*sums);
      marks.push_back(std::move(mark));
    }
    if (marks.empty()) return false;
    if (names_none_ && before_logarithms_.contains(n)) return leave(node, std::string(kBeforeLogarithm));
    if (beside_kept_.contains(n)) return leave(node, std::string(kBesideFloat));
    if (const auto reason = reason_against(node); !reason.empty()) return leave(node, reason);
    for (const auto& mark : marks) {
      const auto known = known_.find(mark.value);
      if (graph::is_recurrent(node) && known != known_.end() &&
          placement_.marks[known->second].granularity != mark.granularity)
        return leave(node, "others read its weight in another direction");
    }
    for (auto& mark : marks) add(std::move(mark));
    return true;
  }

  const onnx::Tensor* constant(const Node& node, std::size_t input) const {
    if (node.inputs().size() <= input) return nullptr;
    const int at = index_.initializer(node.inputs()[input]);
    if (at == graph::kNone) return nullptr;
    const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(at)];
    return tensor.type == onnx::DataType::float32 ? &tensor : nullptr;
  }

  // A weight that is read along several axes has one scale for all of them, and is kept from saturating along each.
  void add(Mark mark) {
    auto& marks = placement_.marks;
    const auto [found, is_new] = known_.try_emplace(mark.value, marks.size());
    if (is_new) return marks.push_back(std::move(mark));
    auto& known = marks[found->second];
    if (known.granularity != mark.granularity) known.granularity = Granularity::tensor();
    for (const auto& summation : mark.paired) {
      if (std::find(known.paired.begin(), known.paired.end(), summation) == known.paired.end())
        known.paired.push_back(summation);
    }
  }

  bool leave(const Node& node, const std::string& reason) {
    left_.add(node, reason);
    return false;
  }

  const onnx::Model& model_;
  const QuantConfig& config_;
  const TransposedConstants& transposed_;
  graph::Index index_;
  std::vector<bool> selected_;
  std::set<std::size_t> before_logarithms_;
  bool names_none_;                 // the user does
  std::set<std::string> storable_;  // see Placement::stored
  Placement placement_;
  std::vector<std::size_t> nodes_;            // on integers, ascending
  std::map<std::string, std::size_t> known_;  // weight -> mark
  std::set<std::size_t> beside_kept_;         // nodes whose weight stays in float
  LeftInFloat left_;
};

}  // namespace

std::vector<std::size_t> weight_inputs(const Node& node) {
  const auto* row = weight_operator(node);
  if (row == nullptr || row->dynamic == DynamicWeights::no) return {};
  std::vector<std::size_t> inputs(row->weights);
  std::iota(inputs.begin(), inputs.end(), row->first_weight);
  return inputs;
}

std::vector<std::size_t> enlarging_nodes(const onnx::Model& model, const graph::Index& index, QuantType type,
                                         const TransposedConstants& transposed, const std::vector<bool>& selected,
                                         OtherReaders others) {
  struct Stored {
    bool in_float = false;         // one of them
    bool source_in_float = false;  // only what the others are transposes of, and because of its readers
    bool turned_in_integers = false;
    double bytes = 0;
    std::vector<std::size_t> readers;  // of integers
  };
  std::map<std::string, Stored> weights;  // by the one that the others are transposes of
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.type != onnx::DataType::float32 || index.consumers(tensor.name).empty()) continue;
    const auto turned = transposed.find(tensor.name);
    auto& weight = weights[turned == transposed.end() ? tensor.name : turned->second];
    weight.bytes = static_cast<double>(tensor.data.size());
    bool any = false, all = !index.is_output(tensor.name) && !index.is_captured(tensor.name);
    for (const int reader : index.consumers(tensor.name)) {
      const auto n = static_cast<std::size_t>(reader);
      const auto& node = model.graph.nodes[n];
      const auto* row = weight_operator(node);
      const bool as_weight = row != nullptr && node.inputs()[row->first_weight] == tensor.name;
      if (selected[n] && as_weight) weight.readers.push_back(n);
      any = any || selected[n];
      all = all && selected[n];
    }
    const bool in_float = !(others == OtherReaders::unrounded ? all : any);
    const bool is_turned = turned != transposed.end();
    const bool may_follow =
        others == OtherReaders::rounded_with_transposes && !is_turned && !index.is_output(tensor.name);
    (may_follow ? weight.source_in_float : weight.in_float) |= in_float;
    weight.turned_in_integers |= is_turned && any;
  }
  const double share = onnx::bits_of(data_type(type)) / 32.0;
  double saved = 0;
  std::vector<std::size_t> beside;
  for (auto& [name, weight] : weights) {
    if (weight.readers.empty()) continue;
    weight.in_float |= weight.source_in_float && !weight.turned_in_integers;
    saved += weight.bytes * ((weight.in_float ? 0 : 1) - share);
    if (weight.in_float) beside.insert(beside.end(), weight.readers.begin(), weight.readers.end());
  }
  return saved < 0 ? beside : std::vector<std::size_t>();
}

Placement place_dynamic(const onnx::Model& model, const QuantConfig& config, const TransposedConstants& transposed) {
  auto placement = Placer(model, config, transposed).place();
  share_transposed(transposed, placement.marks);
  return placement;
}

std::vector<std::size_t> dynamic_nodes(const onnx::Model& model, const QuantConfig& config) {
  return Placer(model, config, {}).find();
}

bool names_recurrent(const QuantConfig& config) {
  const auto& types = config.op_types;
  return std::find(types.begin(), types.end(), "LSTM") != types.end();
}

std::vector<std::size_t> recurrent_layers(const onnx::Model& model, const QuantConfig& config) {
  const auto& nodes = model.graph.nodes;
  if (std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("LSTM"); })) return {};
  if (!names_recurrent(config) && !config::tries_recurrent(config)) return {};
  QuantConfig own = config;
  own.op_types = {"LSTM"};
  return Placer(model, own, {}).find();
}

}  // namespace detent::quantization
