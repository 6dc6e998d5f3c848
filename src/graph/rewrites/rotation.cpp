#include "graph/rewrites/rotation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <optional>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/text.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "graph/traits.h"
#include "onnx/tensor.h"

namespace detent::graph {

// A weight times an orthogonal matrix, made stripe by stripe in a file: it is never in memory as a whole.

/// Where along an axis of a matrix a rotation acts: rows are axis 0, columns axis 1.
struct RotatedPart {
  std::size_t axis = 0;
  /// From the first element to before the last: groups of as many as the rotation has, each by itself.
  std::size_t first = 0, last = 0;
};

/// A matrix of float32 multiplied along an axis: rows from the left, columns from the right. `gains`, where there are
/// any, are multiplied with the elements along the axis before. The elements of the result lie in a new file at `path`,
/// which is mapped. Does not depend on `threads`. Throws resource where the file cannot be written.
onnx::TensorData rotated(const onnx::Tensor& weight, const RotatedPart& part, std::span<const float> gains,
                         const OrthogonalRotation& mix, const std::filesystem::path& path, std::size_t threads);

namespace {

using onnx::Node;

constexpr std::uint64_t kSeedOfStream = 0;

// One of the model's constants: what it becomes.
struct RotatedWeight {
  std::size_t axis = 0;
  std::string gain;  // the initializer; empty: none
};

// Empty where the node lacks it.
std::string input(const Node& node, std::size_t at) {
  return at < node.inputs().size() ? node.inputs()[at] : std::string();
}

class Stream : Rewriter {
 public:
  Stream(onnx::Model& model, const RotationPlace& place) : Rewriter(model), place_(place) {}

  void follow(const std::string& embedding) {
    const auto& nodes = model_.graph.nodes;
    const auto start = std::find_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.id() == embedding; });
    if (start == nodes.end() || !has_trait(*start, Trait::looks_up) || start->int_or("axis", 0) != 0)
      throw bad_input(fmt::format("model '{}' has no table that token ids look up", model_.path.string()),
                      "leave out --set rotation");
    const auto* table = floats(*start, 0);
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
      return sizeof(float) * static_cast<std::uint64_t>(constant(name)->count());
    };
    std::uint64_t sum = tied_ ? bytes_of(tied_->table) : 0;
    for (const auto& [name, weight] : weights_) sum += bytes_of(name);
    return sum;
  }

  Notes rotate() {
    const OrthogonalRotation mix(static_cast<std::size_t>(width_), kSeedOfStream);
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

  bool in_stream(const std::string& value) const { return stream_.contains(value); }
  bool is_width(const onnx::Tensor* tensor) const {
    return tensor != nullptr && tensor->count() == width_ && !tensor->dims.empty() && tensor->dims.back() == width_;
  }

  void step(const Node& node) {
    const auto& inputs = node.inputs();
    const bool reads = std::any_of(inputs.begin(), inputs.end(), [&](const auto& v) { return in_stream(v); });
    if (const auto& norm = operator_of(node).norm; reads && norm.gain != 0) return normalize(node, norm);
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

  void normalize(const Node& node, const NormInputs& norm) {
    const auto axis = node.int_or("axis", -1);
    const auto& outputs = node.outputs();
    if (axis != -1 && axis != 2) throw unfit(node, "it is along another axis than the last");
    for (std::size_t at = 1; at < outputs.size() && at < 3; ++at) {
      if (!outputs[at].empty() && !index_.consumers(outputs[at]).empty()) throw unfit(node, "its statistics are read");
    }
    for (std::size_t at = 0; at < (norm.bias != 0 ? 2U : 1U); ++at) {
      if (!in_stream(input(node, at))) follow_writer(node, input(node, at));
    }
    if (!is_width(floats(node, norm.gain))) throw unfit(node, "its gain is no float32 constant");
    for (const auto at : {norm.beta, norm.bias}) {
      if (at != 0 && !input(node, at).empty() && !is_width(floats(node, at)))
        throw unfit(node, "its bias is no float32 constant");
    }
    if (norm.bias != 0 && !input(node, norm.bias).empty()) add_vector(node, input(node, norm.bias));
    norms_.emplace_back(static_cast<std::size_t>(&node - model_.graph.nodes.data()), norm);
    gains_[outputs[0]] = input(node, norm.gain);
    if (norm.bias != 0 && outputs.size() > 3 && !outputs[3].empty()) stream_.insert(outputs[3]);
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
    const auto& node = node_at(maker);
    if (index_.is_output(value) || index_.is_captured(value) || index_.consumers(value).size() != 1)
      throw unfit(node, "what it adds to the stream is read elsewhere too");
    if (is_matrix_product(node)) return written_by_product(node);
    if (has_trait(node, Trait::looks_up) && node.int_or("axis", 0) == 0)
      return add_rotated_weight(node, input(node, 0), 1, {});
    if (node.is("Identity") || node.is("Dropout")) return follow_writer(node, input(node, 0));
    if (node.is("Add") || node.is("Mul")) {
      for (const std::size_t at : {0, 1}) {
        const auto* constant = floats(node, at);
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
    const bool is_transposed = node.int_or("transB", 0) != 0;
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
      const auto& transpose = node_at(maker);
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
    if (is_known && readers == 2 && !tied_ && !has_trait(node, Trait::looks_up)) {
      tied_ = {name, gain, axis, reader.first, reader.second};
      return;
    }
    const bool may_be_tied = readers == 2 && has_trait(node, Trait::looks_up);
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
  void rotate_norm(Node& node, const NormInputs& norm, const OrthogonalRotation& mix) {
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
    const auto ones = fresh(input(node, norm.gain) + "_ones");
    const std::vector<float> values(gain.size(), 1.0F);
    model_.graph.initializers.push_back(
        onnx::make_tensor(ones, onnx::DataType::float32, dims, std::span<const float>(values)));
    node.set_input(norm.gain, ones);
  }

  void untie(const OrthogonalRotation& mix) {
    auto data = rotated(*table_, whole(tied_->axis), gains_of(tied_->gain), mix, next_file(), place_.threads);
    const auto name = fresh(tied_->table + "_scores");
    model_.graph.initializers.push_back({name, table_->type, table_->dims, std::move(data), {}, false});
    model_.graph.nodes[tied_->node].set_input(tied_->input, name);
    notes_.push_back(fmt::format(
        "'{}' is stored twice, as a table and for the last layer, since only the latter includes the gain before it",
        printable(tied_->table)));
  }

  const RotationPlace& place_;
  std::int64_t width_ = 0;
  std::set<std::string> stream_;              // values
  std::map<std::string, std::string> gains_;  // of normalized values
  std::map<std::string, RotatedWeight> weights_;
  std::set<std::string> vectors_;
  std::vector<std::pair<std::size_t, NormInputs>> norms_;
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

// Values of attention heads, rotated; see rotation.h.

namespace {

constexpr std::uint64_t kSeedOfHeads = 1;

// A constant that heads lie in, one after another along an axis.
struct Part {
  std::string constant;
  RotatedPart where;
};

class Heads : Rewriter {
 public:
  Heads(onnx::Model& model, const RotationPlace& place) : Rewriter(model), place_(place) {}

  std::size_t rotate() {
    std::size_t attentions = 0;
    for (const auto& node : model_.graph.nodes) {
      const auto around = parts_around(node);
      if (around.parts.empty()) continue;
      const OrthogonalRotation mix(static_cast<std::size_t>(around.size), kSeedOfHeads);
      for (const auto& part : around.parts) turn(part, mix);
      ++attentions;
    }
    return attentions;
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& node : model_.graph.nodes) {
      for (const auto& part : parts_around(node).parts) {
        const auto& tensor = *constant(part.constant);
        if (tensor.dims.size() > 1) sum += sizeof(float) * static_cast<std::uint64_t>(tensor.count());
      }
    }
    return sum;
  }

 private:
  struct Parts {
    std::vector<Part> parts;
    std::int64_t size = 0;  // of a head
  };

  // What is rotated together; none where the node is no such attention.
  Parts parts_around(const Node& attention) const {
    if (attention.op_type() != "GroupQueryAttention") return {};
    const auto heads = attention.int_or("num_heads", 0), kv_heads = attention.int_or("kv_num_heads", 0);
    if (heads <= 0 || kv_heads <= 0 || attention.outputs().empty()) return {};
    const bool packed = input(attention, 2).empty();
    auto made = parts_made(input(attention, packed ? 0 : 2), packed ? heads + 2 * kv_heads : kv_heads);
    if (!made) return {};
    const auto size = made->size;
    const auto read = part_read(attention.outputs()[0], heads * size);
    if (!read) return {};
    const auto first = packed ? (heads + kv_heads) * size : 0;
    for (auto& part : made->parts) {
      part.where.first = static_cast<std::size_t>(first);
      part.where.last = static_cast<std::size_t>(first + kv_heads * size);
    }
    made->parts.push_back(*read);
    return *made;
  }

  // The product that makes values, with a constant vector added at most: the weight, and a bias.
  std::optional<Parts> parts_made(const std::string& value, std::int64_t heads) const {
    Parts made;
    std::string name = value;
    for (int step = 0; step < 2; ++step) {
      const int maker = index_.producer(name);
      if (maker == kNone || only_reader(name) == kNone) return std::nullopt;
      const auto& node = node_at(maker);
      if (node.is("Add") && step == 0) {
        const std::size_t constant = is_own(input(node, 0)) ? 0 : 1;
        const auto* bias = floats(node, constant);
        if (bias == nullptr || bias->dims.size() != 1 || !is_own(input(node, constant))) return std::nullopt;
        made.parts.push_back({input(node, constant), {0, 0, 0}});
        name = input(node, 1 - constant);
        continue;
      }
      const auto* weight = node.is("MatMul") ? floats(node, 1) : nullptr;
      if (weight == nullptr || weight->dims.size() != 2 || weight->dims[1] % heads != 0 || !is_own(input(node, 1)))
        return std::nullopt;
      made.size = weight->dims[1] / heads;
      made.parts.push_back({input(node, 1), {1, 0, 0}});
      return made;
    }
    return std::nullopt;
  }

  std::optional<Part> part_read(const std::string& value, std::int64_t rows) const {
    const int reader = only_reader(value);
    if (reader == kNone) return std::nullopt;
    const auto& node = node_at(reader);
    const auto* weight = node.is("MatMul") ? floats(node, 1) : nullptr;
    if (weight == nullptr || weight->dims.size() != 2 || weight->dims[0] != rows || !is_own(input(node, 1)))
      return std::nullopt;
    return Part{input(node, 1), {0, 0, static_cast<std::size_t>(rows)}};
  }

  bool is_own(const std::string& constant) const {
    return index_.initializer(constant) != kNone && index_.consumers(constant).size() == 1 &&
           !index_.is_output(constant) && !index_.is_captured(constant);
  }

  void turn(const Part& part, const OrthogonalRotation& mix) {
    auto& tensor = model_.graph.initializers[static_cast<std::size_t>(index_.initializer(part.constant))];
    if (tensor.dims.size() == 1) {
      auto values = floats_of(tensor);
      for (auto at = part.where.first; at < part.where.last; at += mix.size())
        mix.apply(std::span(values).subspan(at, mix.size()), 1);
      tensor = onnx::make_tensor(tensor.name, tensor.type, tensor.dims, std::span<const float>(values));
      return;
    }
    auto data =
        rotated(tensor, part.where, {}, mix, place_.directory / fmt::format("heads-{}.bin", files_++), place_.threads);
    tensor = {tensor.name, tensor.type, tensor.dims, std::move(data), {}, false};
  }

  const RotationPlace& place_;
  std::size_t files_ = 0;
};

constexpr std::size_t kStripe = std::size_t{1} << 18;  // values

class Rotating {
 public:
  Rotating(const onnx::Tensor& weight, const RotatedPart& part, std::span<const float> gains,
           const OrthogonalRotation& mix, const std::filesystem::path& path)
      : weight_(weight),
        rows_(static_cast<std::size_t>(weight.dims[0])),
        columns_(static_cast<std::size_t>(weight.dims[1])),
        part_(part),
        length_(part.axis == 0 ? rows_ : columns_),
        gains_(gains),
        mix_(mix),
        path_(path),
        fd_(create_working_file(path)) {}

  void run(std::size_t threads) {
    const auto others = part_.axis == 0 ? columns_ : rows_;
    const auto width = std::clamp<std::size_t>(kStripe / length_, 1, others);
    parallel_for((others + width - 1) / width, threads, [&](std::size_t stripe) {
      const auto first = stripe * width;
      turn(first, std::min(width, others - first));
    });
    if (const auto& file = weight_.data.file()) file->release(weight_.data.bytes());
  }

 private:
  // Columns, or rows that become columns for as long as it takes.
  void turn(std::size_t first, std::size_t count) const {
    std::vector<float> values(length_ * count), line;
    if (part_.axis == 0) {
      for (std::size_t r = 0; r < rows_; ++r) read(r * columns_ + first, std::span(values).subspan(r * count, count));
    } else {
      line.resize(columns_);
      for (std::size_t r = 0; r < count; ++r) {
        read((first + r) * columns_, line);
        for (std::size_t c = 0; c < columns_; ++c) values[c * count + r] = line[c];
      }
    }
    for (std::size_t at = 0; at < gains_.size(); ++at) {
      for (std::size_t c = 0; c < count; ++c) values[at * count + c] *= gains_[at];
    }
    for (auto at = part_.first; at < part_.last; at += mix_.size())
      mix_.apply(std::span(values).subspan(at * count, mix_.size() * count), count);
    if (part_.axis == 0) {
      for (std::size_t r = 0; r < rows_; ++r) write(r * columns_ + first, std::span(values).subspan(r * count, count));
      return;
    }
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t c = 0; c < columns_; ++c) line[c] = values[c * count + r];
      write((first + r) * columns_, line);
    }
  }

  void read(std::size_t at, std::span<float> values) const {
    std::memcpy(values.data(), weight_.data.bytes().data() + at * sizeof(float), values.size_bytes());
  }

  void write(std::size_t at, std::span<const float> values) const {
    write_at(fd_.get(), std::as_bytes(values), at * sizeof(float), path_);
  }

  const onnx::Tensor& weight_;
  std::size_t rows_, columns_;
  RotatedPart part_;
  std::size_t length_;  // along the axis
  std::span<const float> gains_;
  const OrthogonalRotation& mix_;
  const std::filesystem::path& path_;
  UniqueFd fd_;
};

}  // namespace

std::size_t rotate_heads(onnx::Model& model, const RotationPlace& place) { return Heads(model, place).rotate(); }

std::uint64_t rotated_bytes_of_heads(onnx::Model& model) {
  const RotationPlace nowhere;
  return Heads(model, nowhere).bytes();
}

onnx::TensorData rotated(const onnx::Tensor& weight, const RotatedPart& part, std::span<const float> gains,
                         const OrthogonalRotation& mix, const std::filesystem::path& path, std::size_t threads) {
  Rotating(weight, part, gains, mix, path).run(threads);
  const auto file = MappedFile::open(path, "working file");
  return onnx::TensorData::mapped(file, file->bytes());
}

OrthogonalRotation::OrthogonalRotation(std::size_t size, std::uint64_t seed) : odd_(size), signs_(size, 1.0F) {
  while (odd_ > 1 && odd_ % 2 == 0) odd_ /= 2;
  const auto n = static_cast<double>(odd_);
  for (std::size_t at = 0; at < odd_; ++at) {
    for (std::size_t wave = 0; wave < odd_; ++wave) {
      const double angle = std::numbers::pi * static_cast<double>(wave) * (static_cast<double>(at) + 0.5) / n;
      cosines_.push_back(static_cast<float>(std::cos(angle) * std::sqrt((wave == 0 ? 1 : 2) / n)));
    }
  }
  std::mt19937_64 random(seed);
  for (std::size_t i = 1; i < size; ++i) signs_[i] = (random() & 1U) != 0 ? 1.0F : -1.0F;
}

// Of neighbours that lie `odd_` rows apart, twice as many, and so on. Without the factor that makes it orthonormal.
void OrthogonalRotation::hadamard(std::span<float> rows, std::size_t columns) const {
  for (std::size_t step = odd_; step < size(); step *= 2) {
    for (std::size_t first = 0; first < size(); first += 2 * step) {
      float* a = rows.data() + first * columns;
      float* b = a + step * columns;
      for (std::size_t i = 0; i < step * columns; ++i) {
        const float sum = a[i] + b[i];
        b[i] = a[i] - b[i];
        a[i] = sum;
      }
    }
  }
}

void OrthogonalRotation::cosines(std::span<float> rows, std::size_t columns, bool inverse) const {
  if (odd_ == 1) return;
  std::vector<float> group(odd_ * columns);
  for (std::size_t first = 0; first < size(); first += odd_) {
    float* values = rows.data() + first * columns;
    std::fill(group.begin(), group.end(), 0.0F);
    for (std::size_t to = 0; to < odd_; ++to) {
      for (std::size_t from = 0; from < odd_; ++from) {
        const float factor = inverse ? cosines_[to * odd_ + from] : cosines_[from * odd_ + to];
        for (std::size_t c = 0; c < columns; ++c) group[to * columns + c] += factor * values[from * columns + c];
      }
    }
    std::copy(group.begin(), group.end(), values);
  }
}

void OrthogonalRotation::apply(std::span<float> rows, std::size_t columns) const {
  cosines(rows, columns, false);
  hadamard(rows, columns);
  const float share = static_cast<float>(odd_) / static_cast<float>(size());  // of both transforms
  for (std::size_t r = 0; r < size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) rows[r * columns + c] *= signs_[r] * share;
  }
  hadamard(rows, columns);
  cosines(rows, columns, true);
}

}  // namespace detent::graph
