#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::graph {
namespace {

constexpr std::uint64_t kWorthIt = 1024;  // bytes; smaller tensors are stored as often as they are

// A sum over all bytes, each mixed with its place: of the tensor as it is, and of the same matrix transposed.
struct Fingerprint {
  std::uint64_t as_is = 0, transposed = 0;
};

std::uint64_t mixed(std::uint64_t place, std::byte value) {
  std::uint64_t x = (place << 8 | static_cast<std::uint64_t>(value)) + 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

// Runtimes turn integers and floats of 16 and 32 bits, no smaller floats.
bool is_turned(onnx::DataType type, bool turns_integers) {
  return onnx::bits_of(type) > 8 || (turns_integers && (type == onnx::DataType::int8 || type == onnx::DataType::uint8));
}

bool is_matrix(const onnx::Tensor& tensor) { return tensor.dims.size() == 2 && onnx::bits_of(tensor.type) >= 8; }

Fingerprint fingerprint_of(const onnx::Tensor& tensor) {
  Fingerprint print;
  const bool turns = is_matrix(tensor);
  const auto size = turns ? static_cast<std::uint64_t>(onnx::bits_of(tensor.type) / 8) : 1;
  const auto rows = turns ? static_cast<std::uint64_t>(tensor.dims[0]) : 1;
  const auto columns = turns ? static_cast<std::uint64_t>(tensor.dims[1]) : tensor.data.size();
  std::uint64_t row = 0, column = 0, part = 0;  // of the next byte
  tensor.data.write_to([&](std::span<const std::byte> bytes) {
    for (const auto value : bytes) {
      print.as_is += mixed((row * columns + column) * size + part, value);
      if (turns) print.transposed += mixed((column * rows + row) * size + part, value);
      if (++part < size) continue;
      part = 0;
      if (++column < columns) continue;
      column = 0;
      ++row;
    }
  });
  return print;
}

class Storing {
 public:
  Storing(onnx::Model& model, bool turns_integers) : model_(model), turns_integers_(turns_integers), index_(model) {}

  void run(const std::set<std::vector<std::int64_t>>& shapes) {
    std::map<std::pair<onnx::DataType, std::vector<std::int64_t>>, std::vector<std::size_t>> alike;
    auto& tensors = model_.graph.initializers;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto dims = tensors[i].dims;
      std::sort(dims.begin(), dims.end());
      if (shapes.contains(dims) && tensors[i].data.size() >= kWorthIt) alike[{tensors[i].type, dims}].push_back(i);
    }
    for (const auto& [kind, members] : alike) compare(members);
    if (gone_.empty()) return;
    for (auto& node : model_.graph.nodes) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (const auto found = same_.find(node.inputs()[i]); found != same_.end()) node.set_input(i, found->second);
      }
    }
    model_.graph.nodes.insert(model_.graph.nodes.begin(), turns_.begin(), turns_.end());
    std::erase_if(tensors, [&](const auto& tensor) { return gone_.contains(tensor.name); });
  }

 private:
  void compare(const std::vector<std::size_t>& members) {
    if (members.size() < 2) return;
    std::vector<std::pair<std::size_t, Fingerprint>> kept;
    for (const auto i : members) {
      const auto& tensor = model_.graph.initializers[i];
      const auto print = fingerprint_of(tensor);
      if (!replaced(tensor, print, kept)) kept.emplace_back(i, print);
    }
  }

  bool replaced(const onnx::Tensor& tensor, const Fingerprint& print,
                const std::vector<std::pair<std::size_t, Fingerprint>>& kept) {
    if (index_.is_output(tensor.name)) return false;
    for (const auto& [k, other] : kept) {
      const auto& stored = model_.graph.initializers[k];
      if (stored.dims == tensor.dims && other.as_is == print.as_is && !index_.is_captured(tensor.name)) {
        same_[tensor.name] = stored.name;
        gone_.insert(tensor.name);
        return true;
      }
      const bool may_turn = is_matrix(tensor) && is_turned(tensor.type, turns_integers_);
      if (may_turn && stored.dims[0] == tensor.dims[1] && other.transposed == print.as_is) {
        turns_.emplace_back("Transpose", index_.fresh_name(tensor.name + "_Transpose"), std::vector{stored.name},
                            std::vector{tensor.name}, std::vector{onnx::Attribute::of_ints("perm", {1, 0})});
        gone_.insert(tensor.name);
        return true;
      }
    }
    return false;
  }

  onnx::Model& model_;
  bool turns_integers_;
  Index index_;
  std::unordered_map<std::string, std::string> same_;
  std::set<std::string> gone_;
  std::vector<onnx::Node> turns_;
};

}  // namespace

void deduplicate_constants(onnx::Model& model, const std::set<std::vector<std::int64_t>>& shapes, bool turns_integers) {
  if (!shapes.empty()) Storing(model, turns_integers).run(shapes);
}

}  // namespace detent::graph
