#include "graph/rewrites/rotate_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/orthogonal_rotation.h"
#include "graph/rewrites/rotated_weight.h"
#include "graph/traits.h"

namespace detent::graph {
namespace {

using onnx::Node;

constexpr std::uint64_t kSeed = 0;

// Inputs of a normalization.
struct Norm {
  std::size_t gain = 0, beta = 0;  // beta: 0: it has none
  std::size_t bias = 0;            // added to the stream before; 0: none
  bool joins = false;              // adds two values of the stream
};

std::optional<Norm> norm_of(const Node& node) {
  const auto& type = node.op_type();
  if (node.domain() == "com.microsoft") {
    if (type == "SkipSimplifiedLayerNormalization") return Norm{2, 0, 3, true};
    if (type == "SkipLayerNormalization") return Norm{2, 3, 4, true};
  }
  if (type == "SimplifiedLayerNormalization" || type == "RMSNormalization") return Norm{1, 0, 0, false};
  if (node.is("LayerNormalization")) return Norm{1, 2, 0, false};
  return std::nullopt;
}

// One of the model's constants: what it becomes.
struct RotatedWeight {
  std::size_t axis = 0;
  std::string gain;  // the initializer; empty: none
};

class Stream {
 public:
  Stream(onnx::Model& model, const RotationPlace& place) : model_(model), place_(place), index_(model) {}

  void follow(const std::string& embedding) {
    const auto& nodes = model_.graph.nodes;
    const auto start = std::find_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.id() == embedding; });
    if (start == nodes.end() || !start->is("Gather") || start->int_or("axis", 0) != 0)
      throw bad_input(fmt::format("model '{}' has no table that token ids look up", model_.path.string()),
                      "leave out --set rotation");
    const auto* table = float32_constant(model_, index_, *start, 0);
    if (table == nullptr || table->dims.size() != 2) throw unfit(*start, "its table is no matrix of float32");
    width_ = table->dims[1];
    add_rotated_weight(*start, start->inputs()[0], 1, {});
    stream_.insert(start->outputs()[0]);
    for (const auto& node : nodes) step(node);
    for (const auto& value : stream_) check_inside(value);
    for (const auto& [value, gain] : gains_) check_inside(value);
    if (!tied_ && index_.consumers(start->inputs()[0]).size() != 1)
      throw unfit(*start, "its table is read elsewhere too");
    if (norms_.empty()) throw unfit(*start, "nothing normalizes what it makes");
  }

  std::uint64_t bytes() const {
    const auto bytes_of = [&](const std::string& name) {
      const auto at = static_cast<std::size_t>(index_.initializer(name));
      return sizeof(float) * static_cast<std::uint64_t>(model_.graph.initializers[at].count());
    };
    std::uint64_t sum = tied_ ? bytes_of(tied_->table) : 0;
    for (const auto& [name, weight] : weights_) sum += bytes_of(name);
    return sum;
  }

  Notes rotate() {
    const OrthogonalRotation mix(static_cast<std::size_t>(width_), kSeed);
    for (const auto& [name, weight] : weights_) rotate_weight(name, weight, mix);
    for (const auto& name : vectors_) rotate_vector(name, {}, mix);
    for (const auto& [node, norm] : norms_) rotate_norm(model_.graph.nodes[node], norm, mix);
    if (tied_) untie(mix);
    return std::move(notes_);
  }

 private:
  // A table whose second reader gets a weight of its own.
  struct Tied {
    std::string table, gain;
    std::size_t axis = 0, node = 0, input = 0;
  };

  void check_inside(const std::string& value) const {
    if (index_.is_output(value) || index_.is_captured(value))
      throw bad_input(fmt::format("model '{}': '{}' of the residual stream leaves the model's main graph",
                                  model_.path.string(), value),
                      "leave out --set rotation");
  }

  Error unfit(const Node& node, const std::string& why) const {
    return bad_input(fmt::format("model '{}': the residual stream cannot be rotated at {}: {}", model_.path.string(),
                                 node.label(), why),
                     "leave out --set rotation");
  }

  static const std::string& input(const Node& node, std::size_t at) {
    static const std::string kNothing;
    return at < node.inputs().size() ? node.inputs()[at] : kNothing;
  }

  bool in_stream(const std::string& value) const { return stream_.contains(value); }
  bool is_width(const onnx::Tensor* tensor) const {
    return tensor != nullptr && tensor->count() == width_ && !tensor->dims.empty() && tensor->dims.back() == width_;
  }

  void step(const Node& node) {
    const auto& inputs = node.inputs();
    const bool reads = std::any_of(inputs.begin(), inputs.end(), [&](const auto& v) { return in_stream(v); });
    if (const auto norm = reads ? norm_of(node) : std::nullopt) return normalize(node, *norm);
    if (reads && node.is("Add")) {
      for (const std::size_t at : {0, 1}) {
        if (!in_stream(inputs[at])) follow_writer(node, inputs[at]);
      }
      stream_.insert(node.outputs()[0]);
    } else if (reads && !node.is("Shape")) {
      read(node, {});
    }
    for (const auto& value : inputs) {
      const auto found = gains_.find(value);
      if (found != gains_.end() && !node.is("Shape")) read(node, found->second, value);
    }
  }

  void normalize(const Node& node, const Norm& norm) {
    const auto axis = node.int_or("axis", -1);
    const auto& outputs = node.outputs();
    if (axis != -1 && axis != 2) throw unfit(node, "it is along another axis than the last");
    for (std::size_t at = 1; at < outputs.size() && at < 3; ++at) {
      if (!outputs[at].empty() && !index_.consumers(outputs[at]).empty()) throw unfit(node, "its statistics are read");
    }
    for (std::size_t at = 0; at < (norm.joins ? 2U : 1U); ++at) {
      if (!in_stream(input(node, at))) follow_writer(node, input(node, at));
    }
    if (!is_width(float32_constant(model_, index_, node, norm.gain)))
      throw unfit(node, "its gain is no float32 constant");
    for (const auto at : {norm.beta, norm.bias}) {
      if (at != 0 && !input(node, at).empty() && !is_width(float32_constant(model_, index_, node, at)))
        throw unfit(node, "its bias is no float32 constant");
    }
    if (norm.bias != 0 && !input(node, norm.bias).empty()) add_vector(node, input(node, norm.bias));
    norms_.emplace_back(static_cast<std::size_t>(&node - model_.graph.nodes.data()), norm);
    gains_[outputs[0]] = input(node, norm.gain);
    if (norm.joins && outputs.size() > 3 && !outputs[3].empty()) stream_.insert(outputs[3]);
  }

  void read(const Node& node, const std::string& gain) {
    const auto& value =
        *std::find_if(node.inputs().begin(), node.inputs().end(), [&](const auto& name) { return in_stream(name); });
    read(node, gain, value);
  }

  // A product whose weight is rotated instead of what it reads.
  void read(const Node& node, const std::string& gain, const std::string& value) {
    const bool is_gemm = node.is("Gemm") && node.int_or("transA", 0) == 0;
    if ((!is_gemm && !node.is("MatMul")) || input(node, 0) != value || input(node, 1) == value)
      throw unfit(node, fmt::format("it reads '{}', and is no product with a constant matrix", value));
    const bool is_transposed = is_gemm && node.int_or("transB", 0) != 0;
    add_rotated_weight(node, input(node, 1), is_transposed ? 1 : 0, gain);
  }

  // What is added to the stream: a product, a table's entry or a constant, by way of sums with constant vectors and
  // products with one constant number.
  void follow_writer(const Node& reader, const std::string& value) {
    if (const auto* constant = float32_constant(model_, index_, value)) {
      if (constant->dims.empty() || constant->dims.back() != width_ || index_.consumers(value).size() != 1)
        throw unfit(reader, fmt::format("'{}' holds no vectors of the stream, or is read elsewhere too", value));
      weights_[value] = {1, {}};
      return;
    }
    const int maker = index_.producer(value);
    if (maker == kNone) throw unfit(reader, fmt::format("'{}' comes from outside", value));
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(maker)];
    if (index_.is_output(value) || index_.is_captured(value) || index_.consumers(value).size() != 1)
      throw unfit(node, "what it adds to the stream is read elsewhere too");
    if (is_matrix_product(node)) return written_by_product(node);
    if (node.is("Gather") && node.int_or("axis", 0) == 0) return add_rotated_weight(node, input(node, 0), 1, {});
    if (node.is("Identity") || node.is("Dropout")) return follow_writer(node, input(node, 0));
    if (node.is("Add") || node.is("Mul")) {
      for (const std::size_t at : {0, 1}) {
        const auto* constant = float32_constant(model_, index_, node, at);
        if (constant == nullptr) continue;
        if (node.is("Add") && is_width(constant)) {
          add_vector(node, input(node, at));
          return follow_writer(node, input(node, 1 - at));
        }
        if (node.is("Mul") && constant->count() == 1) return follow_writer(node, input(node, 1 - at));
      }
    }
    throw unfit(node, "it writes to the stream, and is no product with a constant matrix");
  }

  void written_by_product(const Node& node) {
    const bool is_transposed = node.is("Gemm") && node.int_or("transB", 0) != 0;
    add_rotated_weight(node, input(node, 1), is_transposed ? 0 : 1, {});
    const auto& bias = node.is("Gemm") ? input(node, 2) : input(node, 9);
    if (bias.empty()) return;
    if (!is_width(float32_constant(model_, index_, bias))) throw unfit(node, "its bias is no float32 constant");
    add_vector(node, bias);
  }

  void add_vector(const Node& node, const std::string& name) {
    if (index_.consumers(name).size() != 1 || index_.is_output(name))
      throw unfit(node, fmt::format("'{}' is read elsewhere too", name));
    vectors_.insert(name);
  }

  // A constant matrix, to be rotated along an axis; by way of a Transpose, too.
  void add_rotated_weight(const Node& node, const std::string& name, std::size_t axis, const std::string& gain) {
    const int maker = index_.producer(name);
    if (maker != kNone) {
      const auto& transpose = model_.graph.nodes[static_cast<std::size_t>(maker)];
      if (!transpose.is("Transpose") || index_.consumers(name).size() != 1 ||
          index_.initializer(input(transpose, 0)) == kNone)
        throw unfit(node, "its weight is no constant matrix of float32");
      return turn_constant(node, input(transpose, 0), 1 - axis, gain, {static_cast<std::size_t>(maker), 0});
    }
    turn_constant(node, name, axis, gain, {static_cast<std::size_t>(&node - model_.graph.nodes.data()), 1});
  }

  // `reader`: the node, and which of its inputs.
  void turn_constant(const Node& node, const std::string& name, std::size_t axis, const std::string& gain,
                     std::pair<std::size_t, std::size_t> reader) {
    const auto* weight = float32_constant(model_, index_, name);
    if (weight == nullptr || weight->dims.size() != 2 || weight->dims[axis] != width_)
      throw unfit(node, "its weight is no matrix of float32 along the stream");
    const bool is_known = weights_.contains(name);
    const std::size_t readers = index_.consumers(name).size();
    if (is_known && readers == 2 && !tied_ && !node.is("Gather")) {
      tied_ = {name, gain, axis, reader.first, reader.second};
      return;
    }
    const bool may_be_tied = readers == 2 && node.is("Gather");
    if (is_known || index_.is_output(name) || (readers != 1 && !may_be_tied))
      throw unfit(node, fmt::format("its weight '{}' is read elsewhere too", name));
    weights_[name] = {axis, gain};
  }

  onnx::Tensor& initializer(const std::string& name) {
    return model_.graph.initializers[static_cast<std::size_t>(index_.initializer(name))];
  }

  std::vector<float> gains_of(const std::string& name) {
    return name.empty() ? std::vector<float>() : floats_of(initializer(name));
  }

  RotatedPart whole(std::size_t axis) const { return {axis, 0, static_cast<std::size_t>(width_)}; }

  std::filesystem::path next_file() { return place_.directory / fmt::format("rotated-{}.bin", files_++); }

  void rotate_weight(const std::string& name, const RotatedWeight& weight, const OrthogonalRotation& mix) {
    auto& tensor = initializer(name);
    // The table of a tied pair is needed as it was.
    if (tied_ && tied_->table == name) table_ = tensor;
    auto matrix = tensor;
    if (matrix.dims.size() != 2) matrix.dims = {tensor.count() / width_, width_};
    auto data = rotated(matrix, whole(weight.axis), gains_of(weight.gain), mix, next_file(), place_.threads);
    tensor = {tensor.name, tensor.type, tensor.dims, std::move(data), {}, false};
  }

  void rotate_vector(const std::string& name, const std::vector<float>& divisors, const OrthogonalRotation& mix) {
    auto& tensor = initializer(name);
    auto values = floats_of(tensor);
    for (std::size_t i = 0; i < divisors.size(); ++i) values[i] = values[i] == 0 ? 0 : values[i] / divisors[i];
    mix.apply(values, 1);
    tensor = onnx::make_tensor(tensor.name, tensor.type, tensor.dims, std::span<const float>(values));
  }

  // Its gain is in the products now.
  void rotate_norm(Node& node, const Norm& norm, const OrthogonalRotation& mix) {
    const auto gain = floats_of(initializer(input(node, norm.gain)));
    const auto dims = initializer(input(node, norm.gain)).dims;
    if (norm.beta != 0 && !input(node, norm.beta).empty()) {
      const auto beta = floats_of(initializer(input(node, norm.beta)));
      for (std::size_t i = 0; i < gain.size(); ++i) {
        if (gain[i] == 0 && beta[i] != 0) throw unfit(node, "a channel has a bias, and a gain of 0");
      }
      if (index_.consumers(input(node, norm.beta)).size() != 1) throw unfit(node, "its bias is read elsewhere too");
      rotate_vector(input(node, norm.beta), gain, mix);
    }
    const auto ones = index_.fresh_name(input(node, norm.gain) + "_ones");
    const std::vector<float> values(gain.size(), 1.0F);
    model_.graph.initializers.push_back(
        onnx::make_tensor(ones, onnx::DataType::float32, dims, std::span<const float>(values)));
    node.set_input(norm.gain, ones);
  }

  void untie(const OrthogonalRotation& mix) {
    auto data = rotated(*table_, whole(tied_->axis), gains_of(tied_->gain), mix, next_file(), place_.threads);
    const auto name = index_.fresh_name(tied_->table + "_scores");
    model_.graph.initializers.push_back({name, table_->type, table_->dims, std::move(data), {}, false});
    model_.graph.nodes[tied_->node].set_input(tied_->input, name);
    notes_.push_back(
        fmt::format("'{}' is stored twice, as a table and for the last product, since the gain before that product is "
                    "rotated into it",
                    printable(tied_->table)));
  }

  onnx::Model& model_;
  const RotationPlace& place_;
  Index index_;
  std::int64_t width_ = 0;
  std::set<std::string> stream_;              // values
  std::map<std::string, std::string> gains_;  // of normalized values
  std::map<std::string, RotatedWeight> weights_;
  std::set<std::string> vectors_;
  std::vector<std::pair<std::size_t, Norm>> norms_;
  std::optional<Tied> tied_;
  std::optional<onnx::Tensor> table_;
  std::size_t files_ = 0;
  Notes notes_;
};

}  // namespace

Notes rotate_stream(onnx::Model& model, const std::string& embedding, const RotationPlace& place) {
  Stream stream(model, place);
  stream.follow(embedding);
  auto notes = stream.rotate();
  drop_unused_initializers(model);
  return notes;
}

std::uint64_t rotated_bytes(onnx::Model model, const std::string& embedding) {
  const RotationPlace nowhere;
  Stream stream(model, nowhere);
  stream.follow(embedding);
  return stream.bytes() + rotated_bytes_of_heads(model);
}

}  // namespace detent::graph
