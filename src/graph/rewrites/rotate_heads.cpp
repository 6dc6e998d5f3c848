// Values of attention heads, rotated; see rotate_stream.h.
#include <fmt/format.h>

#include <map>
#include <optional>

#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/orthogonal_rotation.h"
#include "graph/rewrites/rotate_stream.h"
#include "graph/rewrites/rotated_weight.h"

namespace detent::graph {
namespace {

using onnx::Node;

constexpr std::uint64_t kSeed = 1;

// A constant that heads lie in, one after another along an axis.
struct Part {
  std::string constant;
  RotatedPart where;
};

class Heads {
 public:
  Heads(onnx::Model& model, const RotationPlace& place) : model_(model), place_(place), index_(model) {}

  std::size_t rotate() {
    std::size_t attentions = 0;
    for (const auto& node : model_.graph.nodes) {
      const auto around = parts_around(node);
      if (around.parts.empty()) continue;
      const OrthogonalRotation mix(static_cast<std::size_t>(around.size), kSeed);
      for (const auto& part : around.parts) turn(part, mix);
      ++attentions;
    }
    return attentions;
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& node : model_.graph.nodes) {
      for (const auto& part : parts_around(node).parts) {
        const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(index_.initializer(part.constant))];
        if (tensor.dims.size() > 1) sum += sizeof(float) * static_cast<std::uint64_t>(tensor.count());
      }
    }
    return sum;
  }

 private:
  static std::string input(const Node& node, std::size_t at) {
    return at < node.inputs().size() ? node.inputs()[at] : std::string();
  }

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
      if (maker == kNone || only_reader(index_, name) == kNone) return std::nullopt;
      const auto& node = model_.graph.nodes[static_cast<std::size_t>(maker)];
      if (node.is("Add") && step == 0) {
        const std::size_t constant = is_own(input(node, 0)) ? 0 : 1;
        const auto* bias = float32_constant(model_, index_, node, constant);
        if (bias == nullptr || bias->dims.size() != 1 || !is_own(input(node, constant))) return std::nullopt;
        made.parts.push_back({input(node, constant), {0, 0, 0}});
        name = input(node, 1 - constant);
        continue;
      }
      const auto* weight = node.is("MatMul") ? float32_constant(model_, index_, node, 1) : nullptr;
      if (weight == nullptr || weight->dims.size() != 2 || weight->dims[1] % heads != 0 || !is_own(input(node, 1)))
        return std::nullopt;
      made.size = weight->dims[1] / heads;
      made.parts.push_back({input(node, 1), {1, 0, 0}});
      return made;
    }
    return std::nullopt;
  }

  std::optional<Part> part_read(const std::string& value, std::int64_t rows) const {
    const int reader = only_reader(index_, value);
    if (reader == kNone) return std::nullopt;
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(reader)];
    const auto* weight = node.is("MatMul") ? float32_constant(model_, index_, node, 1) : nullptr;
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

  onnx::Model& model_;
  const RotationPlace& place_;
  Index index_;
  std::size_t files_ = 0;
};

}  // namespace

std::size_t rotate_heads(onnx::Model& model, const RotationPlace& place) { return Heads(model, place).rotate(); }

std::uint64_t rotated_bytes_of_heads(onnx::Model& model) {
  const RotationPlace nowhere;
  return Heads(model, nowhere).bytes();
}

}  // namespace detent::graph
