#include "quantization/emit/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "quantization/emit/block_tensors.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;
using onnx::Tensor;
using onnx::TensorData;

constexpr const char* kMicrosoftDomain = "com.microsoft";
constexpr std::int64_t kOpsetOfAxes = 13;  // of a DequantizeLinear with a scale for each index of an axis

class Emitter {
 public:
  Emitter(onnx::Model model, const BlockPlacement& placement, std::vector<BlockStream> streams,
          const WeightsOnlyConfig& config, BlocksWritten written)
      : model_(std::move(model)),
        config_(config),
        index_(model_),
        placement_(placement),
        stored_(index_, std::move(streams), std::move(written)) {}

  onnx::Model run() {
    for (std::size_t t = 0; t < placement_.tensors.size(); ++t) {
      const auto& tensor = placement_.tensors[t];
      const auto weight = model_.graph.initializers[tensor.initializer].name;
      if (config_.form == WeightForm::matmul_nbits) {
        add_operators(t, weight);
      } else {
        add_dequantizers(t, weight);
      }
      if (tensor.as_experts) add_experts(t, weight);
      if (!tensor.as_experts && !tensor.others.empty()) add_dequantized(t, weight);
    }
    assemble();
    return std::move(model_);
  }

 private:
  void add_operators(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    BlockNames names;
    if (!tensor.products.empty()) {
      names = stored_.product(t, weight, !tensor.tables.empty() && !tensor.shared);
      for (const auto n : tensor.products) replaced_[n] = product(model_.graph.nodes[n], tensor, names);
    }
    if (tensor.tables.empty()) return;
    auto type = tensor.format.bits == 8 ? DataType::uint8 : element_type(tensor.format);
    if (tensor.shared) {
      type = DataType::uint8;
      names.integers = flat_integers(tensor, names.integers);
    } else {
      names = stored_.table(t, weight, type);
    }
    for (const auto n : tensor.tables)
      replaced_[n].push_back(look_up(model_.graph.nodes[n], tensor, names, type == DataType::uint8));
  }

  // What MatMulNBits reads as [columns, blocks, bytes] as a table, whose entries lie as the columns do.
  std::string flat_integers(const BlockTensor& tensor, const std::string& integers) {
    const auto name = index_.fresh_name(integers + "_rows"), shape = index_.fresh_name(integers + "_shape");
    const std::int64_t dims[] = {tensor.columns, tensor.rows * tensor.format.bits / 8};
    stored_.add(shape, DataType::int64, {2}, TensorData::of(std::span<const std::int64_t>(dims)));
    replaced_[tensor.tables.front()].emplace_back("Reshape", index_.fresh_name(integers + "_Reshape"),
                                                  std::vector{integers, shape}, std::vector{name});
    return name;
  }

  void add_dequantizers(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const bool in_blocks = tensor.format.block > 0;
    check_opset(opset_of_blocks(tensor.format), tensor.format.bits);
    BlockNames names;
    if (!tensor.tables.empty()) {
      names = stored_.table(t, weight, element_type(tensor.format));
      for (const auto n : tensor.tables) dequantize_for(n, 0, in_blocks ? 1 : 0, tensor, names);
    }
    // ONNX Runtime fuses what has an axis that is counted from the front, and computes with int8 then.
    constexpr int kInt8 = 4;
    const bool in_float = config_.accuracy_level > 0 && config_.accuracy_level < kInt8;
    const std::int64_t axis = (in_blocks ? 0 : 1) - (in_float ? 2 : 0);
    // A runtime merges what reads the same tensors in one graph, but bodies are graphs of their own.
    std::vector<BlockNames> matrices;
    std::map<int, std::size_t> products;  // of each body
    for (const auto n : tensor.products) {
      const bool turns = tensor.shared && n == tensor.products.front();
      if (turns) {
        dequantize_for(n, 1, axis, tensor, transposed(n, tensor, names));
        continue;
      }
      const auto which = products[model_.graph.nodes[n].body()]++;
      if (which == matrices.size()) matrices.push_back(stored_.matrix(t, weight));
      dequantize_for(n, 1, axis, tensor, matrices[which]);
    }
  }

  // The table that these are of as the matrix of a product. The runtime computes it when it loads the model.
  BlockNames transposed(std::size_t n, const BlockTensor& tensor, BlockNames names) {
    for (auto* name : {&names.integers, &names.scales, &names.zero_points}) {
      if (name->empty() || (name != &names.integers && tensor.format.block == 0)) continue;
      const auto value = index_.fresh_name(*name + "_transposed");
      replaced_[n].emplace_back("Transpose", index_.fresh_name(*name + "_Transpose"), std::vector{*name},
                                std::vector{value}, std::vector{Attribute::of_ints("perm", {1, 0})});
      *name = value;
    }
    return names;
  }

  // QMoE reads the inputs and weights of MoE, each weight with its scales, and zero points behind all of them.
  void add_experts(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto [n, input] = tensor.others.front();
    const auto& node = model_.graph.nodes[n];
    auto& nodes = replaced_[n];
    if (nodes.empty()) {
      std::vector<std::string> inputs{node.inputs()[0], node.inputs()[1]};
      for (std::size_t i = 2; i < node.inputs().size(); i += 2) {
        inputs.insert(inputs.end(), {node.inputs()[i], ""});
        inputs.push_back(i + 1 < node.inputs().size() ? node.inputs()[i + 1] : "");
      }
      auto attributes = node.attributes();
      attributes.push_back(Attribute::of_int("expert_weight_bits", tensor.format.bits));
      attributes.push_back(Attribute::of_int("block_size", tensor.format.block));
      nodes.emplace_back("QMoE", node.name(), std::move(inputs), node.outputs(), std::move(attributes),
                         kMicrosoftDomain);
      nodes.back().set_body(node.body());
    }
    constexpr std::size_t kFirstZeroPoints = 11;
    const std::size_t which = input / 2 - 1, at = 2 + 3 * which;
    const auto names = stored_.experts(t, weight, model_.graph.initializers[tensor.initializer].dims.front());
    set_input(nodes.back(), at, names.integers);
    set_input(nodes.back(), at + 1, names.scales);
    if (!names.zero_points.empty()) set_input(nodes.back(), kFirstZeroPoints + which, names.zero_points);
  }

  // Of a node that may have fewer so far.
  static void set_input(Node& node, std::size_t at, const std::string& name) {
    if (at < node.inputs().size()) return node.set_input(at, name);
    auto inputs = node.inputs();
    inputs.resize(at + 1);
    inputs[at] = name;
    Node longer(node.op_type(), node.name(), std::move(inputs), node.outputs(), node.attributes(), node.domain());
    longer.set_body(node.body());
    node = std::move(longer);
  }

  // In the shape of the weight.
  void add_dequantized(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto& format = tensor.format;
    const bool is_old = format.block == 0 && format.bits == 8 && tensor.type == DataType::float32 && format.is_plain();
    check_opset(is_old ? kOpsetOfAxes : opset_of_blocks(format), format.bits);
    const auto& dims = model_.graph.initializers[tensor.initializer].dims;
    auto scale_dims = dims;
    std::size_t axis = 0;
    if (format.block == 0) {
      scale_dims = {tensor.columns};
    } else {
      const auto& reader = model_.graph.nodes[tensor.others.front().first];
      axis = graph::is_convolution(reader) ? 1 : dims.size() - 1;
      scale_dims[axis] = format.blocks_of(tensor.rows);
    }
    const auto names = stored_.shaped(t, weight, dims, scale_dims);
    for (const auto& [n, input] : tensor.others)
      dequantize_for(n, input, static_cast<std::int64_t>(axis), tensor, names);
  }

  void check_opset(std::int64_t opset, int bits) const {
    if (model_.opset() >= opset) return;
    throw bad_input(
        fmt::format("model '{}' has opset {}, and DequantizeLinear has {} bits in this form from opset {} on",
                    model_.path.string(), model_.opset(), bits, opset),
        "give --set weights-form=matmul-nbits, or convert the model first");
  }

  // The bias of a Gemm becomes one of MatMulNBits where it is a constant for each output, else a sum.
  std::vector<Node> product(const Node& node, const BlockTensor& tensor, const BlockNames& names) {
    std::vector<std::string> inputs{node.inputs()[0], names.integers, names.scales};
    if (!names.zero_points.empty()) inputs.push_back(names.zero_points);
    const bool has_bias = node.is("Gemm") && node.inputs().size() > 2;
    const auto flat = has_bias ? flat_bias(node.inputs()[2], tensor.columns) : std::string();
    if (!flat.empty()) {
      inputs.resize(5);
      inputs.push_back(flat);
    }
    std::vector<Attribute> attributes{Attribute::of_int("K", tensor.rows), Attribute::of_int("N", tensor.columns),
                                      Attribute::of_int("bits", tensor.format.bits),
                                      Attribute::of_int("block_size", tensor.format.block)};
    if (config_.accuracy_level > 0) attributes.push_back(Attribute::of_int("accuracy_level", config_.accuracy_level));
    Node made("MatMulNBits", node.name(), std::move(inputs), node.outputs(), std::move(attributes), kMicrosoftDomain);
    made.set_body(node.body());
    if (!has_bias || node.inputs()[2].empty() || !flat.empty()) return {std::move(made)};
    const auto value = index_.fresh_name(node.outputs()[0] + "_without_bias");
    made.set_output(0, value);
    Node sum("Add", index_.fresh_name(node.id() + "_Add"), {value, node.inputs()[2]}, node.outputs());
    sum.set_body(node.body());
    return {std::move(made), std::move(sum)};
  }

  // The constant of this name as a vector of one number for each output, the form that the runtime takes; "" where it
  // is none.
  std::string flat_bias(const std::string& name, std::int64_t columns) {
    const int at = index_.initializer(name);
    if (at == graph::kNone) return {};
    const auto& bias = model_.graph.initializers[static_cast<std::size_t>(at)];
    if (bias.dims == std::vector{columns}) return name;
    if (bias.dims != std::vector<std::int64_t>{1, columns}) return {};
    const auto [found, is_new] = flat_biases_.try_emplace(name);
    if (is_new) {
      found->second = index_.fresh_name(name + "_flat");
      stored_.add(found->second, bias.type, {columns}, bias.data);
    }
    return found->second;
  }

  // Bytes tell their bits by an attribute that is newer than the operator.
  static Node look_up(const Node& node, const BlockTensor& tensor, const BlockNames& names, bool in_bytes) {
    std::vector<std::string> inputs{names.integers, node.inputs()[1], names.scales};
    if (!names.zero_points.empty()) inputs.push_back(names.zero_points);
    std::vector<Attribute> attributes{Attribute::of_int("block_size", tensor.format.block_of(tensor.rows)),
                                      Attribute::of_int("quantize_axis", 1), Attribute::of_int("gather_axis", 0)};
    if (in_bytes) attributes.push_back(Attribute::of_int("bits", tensor.format.bits));
    Node made("GatherBlockQuantized", node.name(), std::move(inputs), node.outputs(), std::move(attributes),
              kMicrosoftDomain);
    made.set_body(node.body());
    return made;
  }

  // Scales of float8e4m3fn are read through a DequantizeLinear with the scale that they have in common.
  std::string float_scales(std::size_t n, const BlockTensor& tensor, const std::string& scales) {
    if (tensor.format.scales != ScaleType::float8e4m3fn) return scales;
    const auto common = index_.fresh_name(scales + "_scale"), value = index_.fresh_name(scales + "_float");
    const float scale[] = {tensor.format.common_scale};
    stored_.add(common, DataType::float32, {}, TensorData::of(std::span<const float>(scale)));
    replaced_[n].emplace_back("DequantizeLinear", index_.fresh_name(scales + "_DequantizeLinear"),
                              std::vector{scales, common}, std::vector{value});
    return value;
  }

  void dequantize_for(std::size_t n, std::size_t input, std::int64_t axis, const BlockTensor& tensor,
                      const BlockNames& names) {
    // A recurrent net reads two of them.
    auto& nodes = replaced_[n];
    const bool is_there = !nodes.empty() && nodes.back().outputs() == model_.graph.nodes[n].outputs();
    Node node = is_there ? nodes.back() : model_.graph.nodes[n];
    if (is_there) nodes.pop_back();
    const auto weight = node.inputs()[input];
    const auto value = index_.fresh_name(weight + "_DequantizeLinear_Output");
    std::vector<std::string> inputs{names.integers, float_scales(n, tensor, names.scales)};
    if (!names.zero_points.empty()) inputs.push_back(names.zero_points);
    std::vector<Attribute> attributes{Attribute::of_int("axis", axis)};
    const bool tells_type = tensor.format.scales == ScaleType::float8e4m3fn && tensor.type != DataType::float32;
    if (tells_type || tensor.format.scales == ScaleType::float8e8m0)
      attributes.push_back(Attribute::of_int("output_dtype", static_cast<std::int64_t>(tensor.type)));
    if (tensor.format.block > 0) attributes.push_back(Attribute::of_int("block_size", tensor.format.block));
    Node dequantizer("DequantizeLinear", index_.fresh_name(weight + "_DequantizeLinear"), std::move(inputs), {value},
                     std::move(attributes));
    node.set_input(input, value);
    if (node.is("Gemm")) {
      node.set_attribute(Attribute::of_int("transB", 0));
      const auto flat = node.inputs().size() > 2 ? flat_bias(node.inputs()[2], tensor.columns) : std::string();
      if (!flat.empty()) node.set_input(2, flat);
    }
    nodes.push_back(std::move(dequantizer));
    nodes.push_back(std::move(node));
  }

  void assemble() {
    auto& graph = model_.graph;
    std::vector<Node> nodes;
    nodes.reserve(graph.nodes.size() + replaced_.size());
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      if (std::binary_search(placement_.transposes.begin(), placement_.transposes.end(), n)) continue;
      if (const auto found = replaced_.find(n); found != replaced_.end()) {
        std::move(found->second.begin(), found->second.end(), std::back_inserter(nodes));
      } else {
        nodes.push_back(std::move(graph.nodes[n]));
      }
    }
    graph.nodes = std::move(nodes);
    std::vector<bool> gone(graph.initializers.size(), false);
    for (const auto& tensor : placement_.tensors) gone[tensor.initializer] = !tensor.stays;
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < graph.initializers.size(); ++i) {
      if (!gone[i]) tensors.push_back(std::move(graph.initializers[i]));
    }
    for (auto& tensor : stored_.take()) tensors.push_back(std::move(tensor));
    graph.initializers = std::move(tensors);
    if (!flat_biases_.empty()) graph::drop_unused_initializers(model_);
    if (config_.form == WeightForm::matmul_nbits && model_.opset(kMicrosoftDomain) == 0)
      model_.set_opset(kMicrosoftDomain, 1);
    raise_ir_version();
  }

  // Integers of 4 bits came with IR version 10, those of 2 with 13.
  void raise_ir_version() {
    std::int64_t needed = model_.ir_version;
    for (const auto& tensor : model_.graph.initializers) {
      switch (tensor.type) {
        case DataType::float8e4m3fn:
        case DataType::float8e5m2: needed = std::max<std::int64_t>(needed, 9); break;
        case DataType::int4:
        case DataType::uint4: needed = std::max<std::int64_t>(needed, 10); break;
        case DataType::float4e2m1: needed = std::max<std::int64_t>(needed, 11); break;
        case DataType::float8e8m0: needed = std::max<std::int64_t>(needed, 12); break;
        case DataType::int2:
        case DataType::uint2: needed = std::max<std::int64_t>(needed, 13); break;
        default: break;
      }
    }
    if (needed != model_.ir_version) model_.set_ir_version(needed);
  }

  onnx::Model model_;
  const WeightsOnlyConfig& config_;
  graph::Index index_;
  const BlockPlacement& placement_;
  BlockTensors stored_;
  std::unordered_map<std::size_t, std::vector<Node>> replaced_;
  std::unordered_map<std::string, std::string> flat_biases_;
};

}  // namespace

std::int64_t opset_of_blocks(const BlockFormat& format) noexcept {
  constexpr std::int64_t kOf2Bits = 25, kOfPowersOfTwo = 24, kOfOutputTypes = 23, kOfBlocks = 21;
  if (format.scales == ScaleType::float8e8m0) return kOfPowersOfTwo;
  if (format.floats == QuantType::float4e2m1 || format.scales == ScaleType::float8e4m3fn) return kOfOutputTypes;
  return format.bits == 2 && !format.floats ? kOf2Bits : kOfBlocks;
}

onnx::Model emit_blocks(onnx::Model model, const BlockPlacement& placement, std::vector<BlockStream> streams,
                        const WeightsOnlyConfig& config, BlocksWritten written) {
  return Emitter(std::move(model), placement, std::move(streams), config, std::move(written)).run();
}

}  // namespace detent::quantization
