#include "graph/execution.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph/traits.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

// Nodes that make what the node reads, ascending.
std::set<int> producers_of(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  std::set<int> producers;
  const auto add = [&](const std::string& name) {
    const int producer = index.producer(name);
    if (producer != kNone) producers.insert(producer);
  };
  for (const auto& name : node.inputs()) add(name);
  if (!has_body(node)) return producers;
  for (const auto& name : captured_names(model, node)) add(name);
  return producers;
}

bool is_leaf(const Index& index, const onnx::Node& node) {
  return std::all_of(node.outputs().begin(), node.outputs().end(),
                     [&](const auto& name) { return name.empty() || index.consumers(name).empty(); });
}

struct Step {
  int node = kNone;
  bool producers_are_done = false;
};

}  // namespace

std::vector<int> execution_order(const onnx::Model& model, const Index& index) {
  const auto& nodes = model.graph.nodes;
  std::vector<Step> open;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (is_leaf(index, nodes[n])) open.push_back({static_cast<int>(n), false});
  }
  std::vector<bool> seen(nodes.size(), false);
  std::vector<int> order;
  order.reserve(nodes.size());
  while (!open.empty()) {
    const Step step = open.back();
    open.pop_back();
    if (step.producers_are_done) {
      order.push_back(step.node);
      continue;
    }
    const auto n = static_cast<std::size_t>(step.node);
    if (seen[n]) continue;
    seen[n] = true;
    open.push_back({step.node, true});
    for (const int producer : producers_of(model, index, nodes[n])) open.push_back({producer, false});
  }
  return order;
}

namespace {

// Blocks of memory, each shared by the values that live in it one after another or under several names.
class Blocks {
 public:
  Blocks(const onnx::Model& model, const Index& index, const ValueTypes& types)
      : model_(model), index_(index), types_(types), noted_(model.graph.nodes.size()) {}

  std::optional<Liveness> walk(const Workspace& workspace) {
    for (const auto& input : model_.graph.inputs) {
      if (index_.initializer(input.name) == kNone && !allocate_block(input.name)) return std::nullopt;
    }
    Liveness result;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      for (const auto& name : node.outputs()) {
        if (!name.empty() && !share(node, n, name) && !allocate_block(name)) return std::nullopt;
      }
      const std::uint64_t now = alive_ + (workspace ? workspace(node, keeps_first_input(node, n)) : 0);
      if (now > result.peak_bytes) result = {now, n};
      for (const std::size_t block : dying_at(n)) alive_ -= bytes_[block];
    }
    return result;
  }

  Lifetimes take() { return {std::move(block_of_), std::move(bytes_), std::move(end_)}; }

 private:
  static constexpr std::size_t kEnd = Lifetimes::kEnd;

  std::size_t last_use(const std::string& value, std::size_t made_at) const {
    if (index_.is_output(value)) return kEnd;
    const auto readers = index_.consumers(value);
    return readers.empty() ? made_at : static_cast<std::size_t>(readers.back());
  }

  bool allocate_block(const std::string& value) {
    const auto bytes = static_bytes(types_, value);
    if (!bytes) return false;
    const int producer = index_.producer(value);
    alive_ += *bytes;
    block_of_[value] = bytes_.size();
    bytes_.push_back(*bytes);
    end_.push_back(kEnd);
    set_end(end_.size() - 1, last_use(value, producer == kNone ? 0 : static_cast<std::size_t>(producer)));
    return true;
  }

  // Puts the value into the block of an input where that is what runtimes do.
  bool share(const onnx::Node& node, std::size_t n, const std::string& value) {
    if (&value != &node.outputs().front()) return false;
    const auto bytes = static_bytes(types_, value);
    for (const auto& input : node.inputs()) {
      const auto found = block_of_.find(input);
      if (found == block_of_.end()) continue;
      const std::size_t block = found->second;
      const bool overwrites = has_trait(node, Trait::element_wise) && end_[block] == n && bytes &&
                              *bytes == bytes_[block] && index_.producer(input) != kNone && !is_measured(value);
      if (!has_trait(node, Trait::renames) && !overwrites) continue;
      block_of_[value] = block;
      const std::size_t until = last_use(value, n);
      if (end_[block] != kEnd) set_end(block, until == kEnd ? kEnd : std::max(end_[block], until));
      return true;
    }
    return false;
  }

  bool is_measured(const std::string& value) const {
    const auto& shape = types_.at(value).shape;
    return std::any_of(shape->begin(), shape->end(), [](const auto& d) { return d.symbol == kMeasured; });
  }

  bool keeps_first_input(const onnx::Node& node, std::size_t n) const {
    if (node.inputs().empty()) return false;
    const auto found = block_of_.find(node.inputs().front());
    return found != block_of_.end() && end_[found->second] != n;
  }

  // A block's end may have moved on since it was noted.
  std::vector<std::size_t> dying_at(std::size_t n) const {
    std::vector<std::size_t> dying;
    for (const auto block : noted_[n]) {
      if (end_[block] == n) dying.push_back(block);
    }
    return dying;
  }

  void set_end(std::size_t block, std::size_t end) {
    if (end_[block] == end) return;
    end_[block] = end;
    if (end != kEnd) noted_[end].push_back(block);
  }

  const onnx::Model& model_;
  const Index& index_;
  const ValueTypes& types_;
  std::unordered_map<std::string, std::size_t> block_of_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::size_t> end_;                 // of each block: the last node that uses it
  std::vector<std::vector<std::size_t>> noted_;  // blocks by a node that was their end at some time
  std::uint64_t alive_ = 0;
};

}  // namespace

std::optional<Liveness> liveness(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                 const Workspace& workspace) {
  return Blocks(model, index, types).walk(workspace);
}

std::optional<Lifetimes> lifetimes(const onnx::Model& model, const Index& index, const ValueTypes& types) {
  Blocks blocks(model, index, types);
  if (!blocks.walk({})) return std::nullopt;
  return blocks.take();
}

namespace {

using Shape = std::vector<std::int64_t>;

// Shapes and sizes of a node's values; every look-up fails for the whole node when one is not static.
class Shapes {
 public:
  Shapes(const onnx::Model& model, const Index& index, const ValueTypes& types)
      : model_(model), index_(index), types_(types) {}

  std::optional<Shape> of(const std::string& value) const {
    const int i = index_.initializer(value);
    if (i != kNone) return model_.graph.initializers[static_cast<std::size_t>(i)].dims;
    return static_shape(types_, value);
  }

  std::optional<std::uint64_t> bytes(const std::string& value) const {
    const int i = index_.initializer(value);
    if (i != kNone) return model_.graph.initializers[static_cast<std::size_t>(i)].data.size();
    return static_bytes(types_, value);
  }

 private:
  const onnx::Model& model_;
  const Index& index_;
  const ValueTypes& types_;
};

std::uint64_t elements(const Shape& shape) {
  std::uint64_t n = 1;
  for (const auto d : shape) n *= static_cast<std::uint64_t>(d);
  return n;
}

std::uint64_t window(const onnx::Node& node) {
  const auto* kernel = node.attribute("kernel_shape");
  return kernel == nullptr ? 1 : elements(kernel->as_ints());
}

// The weight of an operator on integers stands behind the scale and zero point of what it is multiplied with.
std::size_t weight_input(const onnx::Node& node) {
  constexpr std::size_t kBehindZeroPoint = 3;
  const bool has_scales = node.op_type().starts_with("QLinear") || node.op_type() == "QGemm";
  return has_scales ? kBehindZeroPoint : 1;
}

// Multiply-accumulates; nullopt for other operators and unknown shapes.
std::optional<std::uint64_t> macs_of(const onnx::Node& node, const Shapes& shapes) {
  const auto& in = node.inputs();
  const auto weight = weight_input(node);
  const auto x = in.empty() ? std::nullopt : shapes.of(in[0]);
  const auto w = in.size() <= weight ? std::nullopt : shapes.of(in[weight]);
  if (!x || !w) return std::nullopt;
  if (is_recurrent(node) && in.size() > 2 && x->size() == 3) {  // a recurrent layer, with weights for its state as well
    const auto r = shapes.of(in[2]);
    if (r) return static_cast<std::uint64_t>((*x)[0] * (*x)[1]) * (elements(*w) + elements(*r));
  }
  const auto y = shapes.of(node.outputs().front());
  if (!y) return std::nullopt;
  // The runtime tells an unknown rank as 0, which only a product of two vectors has.
  const bool is_number = x->size() == 1 && w->size() == 1;
  if (x->empty() || w->empty() || (y->empty() && !is_number)) return std::nullopt;
  // A weight serves one channel of outputs (Conv) or of inputs (ConvTranspose) with an equal share of its elements.
  const auto is = [&](const char* in_float, const char* on_integers) {
    return node.is(in_float) || node.op_type() == on_integers;
  };
  if (is("Conv", "QLinearConv") && !w->empty() && w->front() > 0)
    return elements(*y) * (elements(*w) / static_cast<std::uint64_t>(w->front()));
  if (node.is("ConvTranspose") && !w->empty() && w->front() > 0)
    return elements(*x) * (elements(*w) / static_cast<std::uint64_t>(w->front()));
  if (is("Gemm", "QGemm") && x->size() == 2)
    return elements(*y) * static_cast<std::uint64_t>(node.int_or("transA", 0) != 0 ? x->front() : x->back());
  if (is("MatMul", "QLinearMatMul") && !x->empty()) return elements(*y) * static_cast<std::uint64_t>(x->back());
  return std::nullopt;
}

bool has_bias(const onnx::Node& node, const OperatorTraits& traits) {
  if (traits.bias == OperatorTraits::kNoInput) return false;
  const auto bias = static_cast<std::size_t>(traits.bias);
  return node.inputs().size() > bias && !node.inputs()[bias].empty();
}

}  // namespace

Work& Work::operator+=(const Work& other) noexcept {
  macs += other.macs;
  flops += other.flops;
  bytes += other.bytes;
  return *this;
}

std::optional<Work> work_of(const onnx::Model& model, const Index& index, const ValueTypes& types,
                            const onnx::Node& node) {
  Work work;
  const auto& traits = traits_of(node);
  if (traits.counting == Counting::free) return work;
  const Shapes shapes(model, index, types);
  std::uint64_t elements_in = 0;
  std::uint64_t elements_out = 0;
  for (const auto* names : {&node.inputs(), &node.outputs()}) {
    for (const auto& name : *names) {
      if (name.empty()) continue;
      const auto shape = shapes.of(name);
      const auto bytes = shapes.bytes(name);
      if (!shape || !bytes) return std::nullopt;
      work.bytes += *bytes;
      if (names == &node.outputs()) elements_out += elements(*shape);
      if (&name == &node.inputs().front()) elements_in = elements(*shape);
    }
  }
  switch (traits.counting) {
    case Counting::macs: {
      const auto macs = macs_of(node, shapes);
      if (!macs) return std::nullopt;
      work.macs = *macs;
      work.flops = 2 * *macs + (has_bias(node, traits) ? elements_out : 0);
      break;
    }
    case Counting::per_input: work.flops = elements_in; break;
    case Counting::per_window: work.flops = elements_out * window(node); break;
    case Counting::per_output: work.flops = elements_out; break;
    case Counting::moves:
    case Counting::free: break;
  }
  return work;
}

std::uint64_t constant_bytes(const onnx::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) bytes += tensor.data.size();
  return bytes;
}

std::uint64_t constant_bytes(const onnx::Model& model, const Index& index, const onnx::Node& node) {
  std::uint64_t bytes = 0;
  for (const auto& input : node.inputs()) {
    const int constant = index.initializer(input);
    if (constant != kNone) bytes += model.graph.initializers[static_cast<std::size_t>(constant)].data.size();
  }
  return bytes;
}

std::vector<int> cuts_by_constants(const onnx::Model& model, const Index& index, std::uint64_t most, int begin,
                                   int end) {
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 20;  // smaller ones may wait with the samples
  const auto inside = cuts_inside_bodies(model);
  const auto depends = depends_on_input(model, index);
  std::vector<int> cuts;
  std::set<std::string> turned;
  int read_until = 0;
  std::uint64_t bytes = 0;
  bool any = false;  // that depends on the inputs, since the last cut
  for (int n = begin; n < end; ++n) {
    const auto at = static_cast<std::size_t>(n);
    const auto& node = model.graph.nodes[at];
    const auto more = constant_bytes(model, index, node);
    if (bytes > 0 && bytes + more > most && any && depends[at] && !inside[at] && read_until < n) {
      cuts.push_back(n);
      bytes = 0;
      any = false;
    }
    bytes += more;
    any = any || depends[at];
    const auto& inputs = node.inputs();
    const auto is_turned = [&](const auto& input) { return turned.contains(input); };
    if (depends[at] || (more < kLarge && std::none_of(inputs.begin(), inputs.end(), is_turned))) continue;
    for (const auto& output : node.outputs()) {
      turned.insert(output);
      for (const int reader : index.consumers(output)) read_until = std::max(read_until, reader);
    }
  }
  return cuts;
}

std::optional<std::vector<onnx::Dim>> told_shape(const ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  const bool is_told = found != types.end() && found->second.shape && !found->second.shape->empty();
  return is_told ? found->second.shape : std::nullopt;
}

onnx::ValueInfo told_info(const onnx::Model& model, const ValueTypes& types, const std::string& value) {
  return onnx::make_value_info(value, type_of(model, types, value), told_shape(types, value));
}

}  // namespace detent::graph
