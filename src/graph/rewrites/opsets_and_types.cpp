// Changes of meaning between opset 7 and 25, from the ONNX operator changelog (docs/Changelog.md of the ONNX project).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/packed_numbers.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;

// The model under change: rewritten nodes and new constants are collected beside it.
class Upgrade : Rewriter {
 public:
  Upgrade(onnx::Model& model, const ValueTypes& types, std::int64_t to)
      : Rewriter(model, types), from_(model.opset()), to_(to) {}

  void run();
  std::size_t changed() const { return changed_; }
  Notes take_notes() { return std::move(notes_); }

  // Rewrites call these.
  [[noreturn]] void refuse(const Node& node, const std::string& why) const {
    throw bad_input(fmt::format("model '{}', node {}: cannot raise opset {} to {}: {}", model_.path.string(),
                                node.label(), from_, to_, why),
                    "convert the model first, for example with onnx.version_converter");
  }
  bool is_read(const std::string& value) const {
    return !value.empty() && (!index_.consumers(value).empty() || index_.is_output(value));
  }
  std::optional<std::size_t> rank(const std::string& value) const { return rank_of(types_, value); }
  using Rewriter::fresh;
  std::string add_list(const Node& node, const std::string& what, const std::vector<std::int64_t>& values) {
    return add_ints(node.id() + "_" + what, values);
  }
  std::string add_list(const Node& node, const std::string& what, const std::vector<float>& values) {
    return add(node.id() + "_" + what, {static_cast<std::int64_t>(values.size())}, values);
  }
  std::string add_scalar(const Node& node, const std::string& what, float value) {
    return add(node.id() + "_" + what, {}, {value});
  }
  void emit(Node node) { nodes_.push_back(std::move(node)); }
  void note(std::string line) { notes_.push_back(std::move(line)); }
  // The elements of a float constant; none when the value is computed.
  std::vector<double> constant_floats(const std::string& value) const {
    for (const std::vector<onnx::Tensor>* tensors : {&std::as_const(model_.graph.initializers), &added_}) {
      for (const auto& tensor : *tensors) {
        if (tensor.name == value) return onnx::to_doubles(tensor);
      }
    }
    return {};
  }

 private:
  void check_bodies(const Node& node) const;

  std::int64_t from_;
  std::int64_t to_;
  std::size_t changed_ = 0;
  Notes notes_;
};

using Rewrite = std::function<void(Upgrade&, Node)>;
struct Change {
  std::int64_t before;  // applies to models whose opset is below this
  Rewrite rewrite;
};

// An integer-list attribute that became an input (Squeeze, Unsqueeze, Split, ReduceSum at 13).
Rewrite attribute_to_input(const std::string& name) {
  return [name](Upgrade& up, Node node) {
    if (const auto* a = node.attribute(name)) {
      auto inputs = node.inputs();
      inputs.push_back(up.add_list(node, name, a->as_ints()));
      node.set_inputs(std::move(inputs));
      node.remove_attribute(name);
    }
    up.emit(std::move(node));
  };
}

void upgrade_clip(Upgrade& up, Node node) {
  std::vector<std::string> inputs{node.inputs().at(0), "", ""};
  if (const auto* a = node.attribute("min")) inputs[1] = up.add_scalar(node, "min", a->as_float());
  if (const auto* a = node.attribute("max")) inputs[2] = up.add_scalar(node, "max", a->as_float());
  while (inputs.back().empty()) inputs.pop_back();
  node.set_inputs(std::move(inputs));
  node.remove_attribute("min");
  node.remove_attribute("max");
  up.emit(std::move(node));
}

void upgrade_pad(Upgrade& up, Node node) {
  const auto* pads = node.attribute("pads");
  if (pads == nullptr) up.refuse(node, "the attribute 'pads' is missing");
  std::vector<std::string> inputs{node.inputs().at(0), up.add_list(node, "pads", pads->as_ints())};
  if (const float value = node.float_or("value", 0); value != 0) inputs.push_back(up.add_scalar(node, "value", value));
  node.set_inputs(std::move(inputs));
  node.remove_attribute("pads");
  node.remove_attribute("value");
  up.emit(std::move(node));
}

void upgrade_slice(Upgrade& up, Node node) {
  const auto* starts = node.attribute("starts");
  const auto* ends = node.attribute("ends");
  if (starts == nullptr || ends == nullptr) up.refuse(node, "the attributes 'starts' and 'ends' are missing");
  std::vector<std::string> inputs{node.inputs().at(0), up.add_list(node, "starts", starts->as_ints()),
                                  up.add_list(node, "ends", ends->as_ints())};
  if (const auto* axes = node.attribute("axes")) inputs.push_back(up.add_list(node, "axes", axes->as_ints()));
  node.set_inputs(std::move(inputs));
  for (const auto* name : {"starts", "ends", "axes"}) node.remove_attribute(name);
  up.emit(std::move(node));
}

void upgrade_top_k(Upgrade& up, Node node) {
  const auto* k = node.attribute("k");
  if (k == nullptr) up.refuse(node, "the attribute 'k' is missing");
  node.set_inputs({node.inputs().at(0), up.add_list(node, "k", std::vector{k->as_int()})});
  node.remove_attribute("k");
  up.emit(std::move(node));
}

void upgrade_dropout(Upgrade& up, Node node) {
  if (node.outputs().size() > 1 && up.is_read(node.outputs()[1]))
    up.refuse(node, "its mask is used and changed its type");
  node.remove_attribute("ratio");
  up.emit(std::move(node));
}

void upgrade_batch_norm(Upgrade& up, Node node) {
  if (node.int_or("spatial", 1) != 1) up.refuse(node, "spatial=0 was removed from the operator");
  node.remove_attribute("spatial");
  up.emit(std::move(node));
}

// The rounding of Resize-10's nearest mode, as ONNX Runtime has it: down where an axis grows, up where it shrinks.
std::string nearest_mode(Upgrade& up, const Node& node, const std::string& scales) {
  const auto values = up.constant_floats(scales);
  if (values.empty()) {
    up.note(fmt::format("{}: its scales are computed at run time, and taken to be 1 or more", node.label()));
    return "floor";
  }
  const bool grows = std::any_of(values.begin(), values.end(), [](double s) { return s > 1; });
  const bool shrinks = std::any_of(values.begin(), values.end(), [](double s) { return s < 1; });
  if (grows && shrinks) up.refuse(node, "it enlarges one axis and shrinks another");
  return shrinks ? "ceil" : "floor";
}

// Upsample and Resize-10 sample at x_out / scale, which later versions call "asymmetric".
void upgrade_resize(Upgrade& up, Node node) {
  std::string scales = node.inputs().size() > 1 ? node.inputs()[1] : "";
  if (const auto* a = node.attribute("scales")) scales = up.add_list(node, "scales", a->as_floats());
  if (scales.empty()) up.refuse(node, "it has no scales");
  node.set_inputs({node.inputs().at(0), "", scales});
  node.remove_attribute("scales");
  node.set_op_type("Resize");
  node.set_attribute(Attribute::of_string("coordinate_transformation_mode", "asymmetric"));
  const auto* mode = node.attribute("mode");
  if (mode == nullptr || mode->as_string() == "nearest") {
    node.set_attribute(Attribute::of_string("nearest_mode", nearest_mode(up, node, scales)));
  }
  up.emit(std::move(node));
}

void upgrade_scatter(Upgrade& up, Node node) {
  node.set_op_type("ScatterElements");
  up.emit(std::move(node));
}

// Before 13 the input was seen as a matrix split at `axis`; since then the operator works along one axis. They agree
// for the last axis; otherwise the matrix is made and unmade around it.
void upgrade_softmax(Upgrade& up, Node node) {
  const auto rank = up.rank(node.inputs().at(0));
  std::int64_t axis = node.int_or("axis", 1);
  if (rank && axis < 0) axis += static_cast<std::int64_t>(*rank);
  if (axis == -1 || (rank && axis == static_cast<std::int64_t>(*rank) - 1)) {
    node.set_attribute(Attribute::of_int("axis", -1));
    up.emit(std::move(node));
    return;
  }
  const std::string input = node.inputs()[0];
  const std::string output = node.outputs().at(0);
  const auto shape = up.fresh(node.id() + "_shape");
  const auto matrix = up.fresh(node.id() + "_matrix");
  const auto result = up.fresh(node.id() + "_result");
  up.emit(Node("Shape", up.fresh(node.id() + "_Shape"), {input}, {shape}));
  up.emit(Node("Flatten", up.fresh(node.id() + "_Flatten"), {input}, {matrix}, {Attribute::of_int("axis", axis)}));
  node.set_inputs({matrix});
  node.set_output(0, result);
  node.set_attribute(Attribute::of_int("axis", -1));
  const auto reshape = up.fresh(node.id() + "_Reshape");
  up.emit(std::move(node));
  up.emit(Node("Reshape", reshape, {result, shape}, {output}));
}

void refuse_scan(Upgrade& up, Node node) { up.refuse(node, "Scan changed its inputs at opset 9"); }

// From 18 on the number of parts is told where their sizes are not.
void upgrade_split(Upgrade& up, Node node) {
  if (node.inputs().size() < 2 || node.inputs()[1].empty())
    node.set_attribute(Attribute::of_int("num_outputs", static_cast<std::int64_t>(node.outputs().size())));
  up.emit(std::move(node));
}

void upgrade_grid_sample(Upgrade& up, Node node) {
  const auto* mode = node.attribute("mode");
  const std::string old = mode == nullptr ? "bilinear" : mode->as_string();
  if (old.starts_with("bi")) node.set_attribute(Attribute::of_string("mode", old.substr(2)));
  up.emit(std::move(node));
}

void upgrade_trained_batch_norm(Upgrade& up, Node node) {
  if (node.outputs().size() > 1) up.refuse(node, "its outputs for training were removed from the operator");
  up.emit(std::move(node));
}

void refuse_group_norm(Upgrade& up, Node node) { up.refuse(node, "its scale and bias changed their shape"); }
void refuse_dft(Upgrade& up, Node node) { up.refuse(node, "its axis changed its default"); }

using Changes = std::multimap<std::string, Change>;

// Those after opset 13.
const Changes& later_changes() {
  static const Changes kChanges{
      {"BatchNormalization", {14, upgrade_trained_batch_norm}},
      {"ReduceL1", {18, attribute_to_input("axes")}},
      {"ReduceL2", {18, attribute_to_input("axes")}},
      {"ReduceLogSum", {18, attribute_to_input("axes")}},
      {"ReduceLogSumExp", {18, attribute_to_input("axes")}},
      {"ReduceMax", {18, attribute_to_input("axes")}},
      {"ReduceMean", {18, attribute_to_input("axes")}},
      {"ReduceMin", {18, attribute_to_input("axes")}},
      {"ReduceProd", {18, attribute_to_input("axes")}},
      {"ReduceSumSquare", {18, attribute_to_input("axes")}},
      {"Split", {18, upgrade_split}},
      {"GridSample", {20, upgrade_grid_sample}},
      {"DFT", {20, refuse_dft}},
      {"GroupNormalization", {21, refuse_group_norm}},
  };
  return kChanges;
}

const Changes& changes() {
  static const Changes kChanges{
      {"BatchNormalization", {9, upgrade_batch_norm}},
      {"Upsample", {13, upgrade_resize}},
      {"Resize", {11, upgrade_resize}},
      {"Slice", {10, upgrade_slice}},
      {"TopK", {10, upgrade_top_k}},
      {"Clip", {11, upgrade_clip}},
      {"Pad", {11, upgrade_pad}},
      {"Scatter", {13, upgrade_scatter}},
      {"Scan", {9, refuse_scan}},
      {"Dropout", {12, upgrade_dropout}},
      {"Softmax", {13, upgrade_softmax}},
      {"LogSoftmax", {13, upgrade_softmax}},
      {"Hardmax", {13, upgrade_softmax}},
      {"Squeeze", {13, attribute_to_input("axes")}},
      {"Unsqueeze", {13, attribute_to_input("axes")}},
      {"ReduceSum", {13, attribute_to_input("axes")}},
      {"Split", {13, attribute_to_input("split")}},
  };
  return kChanges;
}

// To opset 13 at most, or from there on.
const Change* change_for(const Node& node, std::int64_t from, std::int64_t to) {
  if (!node.domain().empty()) return nullptr;
  const auto& all = to <= kUpgradedOpset ? changes() : later_changes();
  const auto found = all.find(node.op_type());
  const bool is_meant = found != all.end() && from < found->second.before && found->second.before <= to;
  return is_meant ? &found->second : nullptr;
}

// Bodies of control flow are carried through untouched, so what they hold must mean the same in the new opset.
void Upgrade::check_bodies(const Node& node) const {
  for (const auto& body : read_bodies(model_, node)) {
    for (const auto& inner : body.nodes) {
      if (change_for(inner, from_, to_) != nullptr)
        refuse(node, fmt::format("its body holds {}, whose meaning changed", inner.label()));
      check_bodies(inner);
    }
  }
}

void Upgrade::run() {
  rebuild([&](Node& node) {
    check_bodies(node);
    const Change* change = change_for(node, from_, to_);
    if (change == nullptr) return false;
    ++changed_;
    change->rewrite(*this, std::move(node));
    return true;
  });
  move_constants_to_model();
  model_.set_opset("", to_);
  // IR versions that ONNX released together with these opsets: 1.8, 1.16, 1.18, 1.19, 1.20.
  const std::int64_t ir_version = to_ > 24 ? 13 : to_ > 23 ? 12 : to_ > 21 ? 11 : to_ > kUpgradedOpset ? 10 : 7;
  if (model_.ir_version < ir_version) model_.set_ir_version(ir_version);
}

}  // namespace

Notes upgrade_opset(onnx::Model& model, const ValueTypes& types, std::int64_t to) {
  const std::int64_t from = model.opset();
  if (from >= to) return {};
  if (from < kOldestOpset) {
    throw bad_input(fmt::format("model '{}' has opset {}; the oldest that detent reads is {}", model.path.string(),
                                from, kOldestOpset),
                    "export the model again with a newer opset");
  }
  std::size_t changed = 0;
  Notes details;
  for (const auto step : {kUpgradedOpset, to}) {
    if (model.opset() >= step) continue;
    Upgrade upgrade(model, types, step);
    upgrade.run();
    changed += upgrade.changed();
    for (auto& line : upgrade.take_notes()) details.push_back(std::move(line));
  }
  Notes notes{fmt::format("opset {} was raised to {}{}", from, to,
                          changed > 0 ? ": " + count_with_noun(changed, "node") + " rewritten" : "")};
  notes.insert(notes.end(), details.begin(), details.end());
  return notes;
}

namespace {

// Attributes that name an element type.
bool names_a_type(const Attribute& attribute) {
  static constexpr std::string_view kNames[] = {"to",           "dtype",      "output_datatype",
                                                "output_dtype", "stash_type", "precision"};
  return attribute.kind() == Attribute::Kind::i &&
         std::find(std::begin(kNames), std::end(kNames), attribute.name()) != std::end(kNames);
}

onnx::TensorData as_float32(const onnx::Tensor& tensor, const Store& store) {
  std::vector<std::byte> bytes;
  bytes.reserve(tensor.data.size() * 2);
  const auto convert = tensor.type == DataType::float16 ? onnx::from_float16 : onnx::from_bfloat16;
  tensor.data.write_to([&](std::span<const std::byte> piece) {
    for (std::size_t at = 0; at + 1 < piece.size(); at += 2) {
      std::uint16_t low = 0;
      std::memcpy(&low, piece.data() + at, sizeof low);
      const float value = convert(low);
      const auto* raw = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), raw, raw + sizeof value);
    }
  });
  return store(std::move(bytes));
}

using Names = std::unordered_map<std::string, std::string>;

class Raising {
 public:
  enum class From { both, bfloat16 };
  Raising(onnx::Model& model, const Store& store, From from = From::both, DataType to = DataType::float32)
      : model_(model), store_(store), from_(from), to_(to) {}

  Notes run(bool keep_io_types) {
    std::vector<onnx::ValueInfo> kept;
    Names names;
    Index index(model_);
    if (keep_io_types) {
      for (const auto* infos : {&model_.graph.inputs, &model_.graph.outputs}) {
        for (const auto& info : *infos) {
          if (is_low(info.type)) names.try_emplace(info.name, index.fresh_name(info.name + "_float32"));
        }
      }
    }
    raise(model_.graph, names, store_, keep_io_types);
    for (auto& body : model_.bodies) {
      raise(body.inputs);
      raise(body.outputs);
    }
    if (keep_io_types) add_casts(names, index);
    if (count_ == 0) return {};
    Notes notes{count_with_noun(count_, "tensor") + " of 16-bit floats became float32"};
    if (!model_.functions.empty()) notes.emplace_back("types in model-local functions are not changed");
    return notes;
  }

 private:
  bool is_low(DataType type) const noexcept {
    return type == DataType::bfloat16 || (type == DataType::float16 && from_ == From::both);
  }

  // As float16 the bits of a bfloat16 stay as they are.
  onnx::Tensor raised(const onnx::Tensor& tensor, const Store& store) const {
    return {tensor.name, to_,  tensor.dims, to_ == DataType::float32 ? as_float32(tensor, store) : tensor.data,
            {},          false};
  }

  // Names are of values that go by another name inside of the graph.
  void raise(onnx::Graph& graph, const Names& names, const Store& store, bool keep_io_types) {
    for (auto& tensor : graph.initializers) {
      if (!is_low(tensor.type)) continue;
      tensor = raised(tensor, store);
      ++count_;
    }
    for (auto* infos : {&graph.inputs, &graph.outputs, &graph.value_infos})
      raise(*infos, keep_io_types && infos != &graph.value_infos);
    for (auto& node : graph.nodes) raise(node, names);
  }

  void raise(std::vector<onnx::ValueInfo>& infos, bool stays = false) {
    for (auto& info : infos) {
      if (!is_low(info.type)) continue;
      ++count_;
      if (!stays) info = onnx::retyped(info, to_, info.shape);
    }
  }

  void raise(Node& node, const Names& names) {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (const auto found = names.find(node.inputs()[i]); found != names.end()) node.set_input(i, found->second);
    }
    for (std::size_t o = 0; o < node.outputs().size(); ++o) {
      if (const auto found = names.find(node.outputs()[o]); found != names.end()) node.set_output(o, found->second);
    }
    const auto attributes = node.attributes();
    for (const auto& attribute : attributes) {
      if (names_a_type(attribute) && is_low(static_cast<DataType>(attribute.as_int()))) {
        node.set_attribute(Attribute::of_int(attribute.name(), static_cast<std::int64_t>(to_)));
        ++count_;
      } else if (attribute.kind() == Attribute::Kind::t) {
        const auto tensor = onnx::read_attribute_tensor(model_, node, attribute);
        if (!is_low(tensor.type)) continue;
        node.set_attribute(Attribute::of_messages(attribute.name(), Attribute::Kind::t,
                                                  {onnx::encode_tensor(raised(tensor, in_memory()))}));
        ++count_;
      }
    }
    if (has_body(node)) raise_bodies(node, names);
  }

  void raise_bodies(Node& node, const Names& names) {
    auto bodies = read_bodies(model_, node);
    std::size_t next = 0;
    const auto attributes = node.attributes();
    for (const auto& attribute : attributes) {
      if (!is_body(attribute)) continue;
      std::vector<std::string> messages;
      for (std::size_t i = 0; i < attribute.as_graphs().size(); ++i) {
        auto& body = bodies.at(next++);
        raise(body, names, in_memory(), false);
        for (auto& output : body.outputs) {
          if (const auto found = names.find(output.name); found != names.end())
            output = onnx::make_value_info(found->second, output.type, std::move(output.shape));
        }
        messages.push_back(onnx::encode_graph(body));
      }
      node.set_attribute(Attribute::of_messages(attribute.name(), attribute.kind(), messages));
    }
  }

  void add_casts(const Names& names, Index& index) {
    const auto cast = [&](const std::string& from, const std::string& to, DataType type) {
      return Node("Cast", index.fresh_name(to + "_Cast"), {from}, {to},
                  {Attribute::of_int("to", static_cast<std::int64_t>(type))});
    };
    std::vector<Node> nodes;
    for (const auto& input : model_.graph.inputs) {
      if (names.contains(input.name)) nodes.push_back(cast(input.name, names.at(input.name), DataType::float32));
    }
    for (auto& node : model_.graph.nodes) nodes.push_back(std::move(node));
    for (const auto& output : model_.graph.outputs) {
      if (names.contains(output.name) && !index.is_input(output.name))
        nodes.push_back(cast(names.at(output.name), output.name, output.type));
    }
    model_.graph.nodes = std::move(nodes);
    for (auto& tensor : model_.graph.initializers) {
      const auto found = names.find(tensor.name);  // that is a graph output as well
      if (found != names.end()) tensor.name = found->second;
    }
  }

  onnx::Model& model_;
  const Store& store_;
  const From from_;
  const DataType to_;
  std::size_t count_ = 0;
};

}  // namespace

Notes half_floats_to_float32(onnx::Model& model, const Store& store, bool keep_io_types) {
  return Raising(model, store).run(keep_io_types);
}

void relabel_bfloat16_as_float16(onnx::Model& model) {
  Raising(model, in_memory(), Raising::From::bfloat16, DataType::float16).run(false);
}

void bfloat16_to_float32(onnx::Model& model, const Store& store) {
  Raising(model, store, Raising::From::bfloat16).run(false);
}

void idle_casts_to_identities(onnx::Model& model, const ValueTypes& types) {
  for (auto& node : model.graph.nodes) {
    if (!node.is("Cast")) continue;
    const auto to = static_cast<DataType>(node.int_or("to", 0));
    if (type_of(model, types, node.inputs().at(0)) != to) continue;
    node = Node("Identity", node.name(), node.inputs(), node.outputs());
  }
}

namespace {

class ScalarRanges : Rewriter {
 public:
  using Rewriter::Rewriter;

  Notes run() {
    std::size_t changed = 0;
    rebuild([&](Node& node) {
      if (!node.is("Range")) return false;
      auto inputs = node.inputs();
      for (auto& input : inputs) {
        if (!is_number(input)) input = put(node, "Reshape", {input, add_ints(node.id() + "_no_axes", {})});
      }
      if (inputs == node.inputs()) return false;
      node.set_inputs(std::move(inputs));
      ++changed;
      return false;
    });
    return finish(changed, fmt::format("numbers in place of lists of one number: inputs of {}",
                                       count_with_noun(changed, "Range node")));
  }

 private:
  bool is_number(const std::string& value) const {
    if (const auto* given = constant(value)) return given->dims.empty();
    return rank_of(types_, value) == 0U;
  }
};

}  // namespace

Notes give_ranges_scalars(onnx::Model& model, const ValueTypes& types) { return ScalarRanges(model, types).run(); }

}  // namespace detent::graph
