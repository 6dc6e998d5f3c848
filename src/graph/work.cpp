#include "graph/work.h"

#include <string>
#include <vector>

#include "graph/traits.h"

namespace detent::graph {
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
  for (const auto& name : node.inputs()) {
    if (name.empty()) continue;
    const auto shape = shapes.of(name);
    const auto bytes = shapes.bytes(name);
    if (!shape || !bytes) return std::nullopt;
    work.bytes += *bytes;
    if (&name == &node.inputs().front()) elements_in = elements(*shape);
  }
  for (const auto& name : node.outputs()) {
    if (name.empty()) continue;
    const auto shape = shapes.of(name);
    const auto bytes = shapes.bytes(name);
    if (!shape || !bytes) return std::nullopt;
    work.bytes += *bytes;
    elements_out += elements(*shape);
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

}  // namespace detent::graph
