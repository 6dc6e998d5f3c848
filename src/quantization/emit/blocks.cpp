#include "quantization/emit/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "graph/index.h"
#include "graph/rewrite.h"
#include "quantization/block_layout.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;
using onnx::Tensor;
using onnx::TensorData;

constexpr const char* kMicrosoftDomain = "com.microsoft";
constexpr std::int64_t kOpsetOfAxes = 13;  // of a DequantizeLinear with a scale for each index of an axis

// What is known of a weight once its integers have been found. Scales follow the integers into the file, so they are
// kept until they are written.
class Found {
 public:
  Found(BlockStream stream, std::function<void(const BlockErrors&)> written)
      : stream_(std::move(stream)), written_(std::move(written)) {}

  const BlockTensor& shape() const { return stream_.shape(); }

  // Passes all stripes on and keeps their scales and zero points.
  void write_integers(const std::function<void(std::int64_t, const BlockWeight&)>& fn) {
    const auto& format = shape().format;
    scales_ = make_blocks(0, 0, format);
    const auto errors = stream_.for_each([&](std::int64_t first, const BlockWeight& stripe) {
      if (first == 0) scales_.rows = stripe.rows;
      scales_.columns += stripe.columns;
      scales_.scales.insert(scales_.scales.end(), stripe.scales.begin(), stripe.scales.end());
      if (!format.symmetric)
        scales_.zero_points.insert(scales_.zero_points.end(), stripe.zero_points.begin(), stripe.zero_points.end());
      fn(first, stripe);
    });
    if (written_) written_(errors);
  }

  // Without integers. Gone after the last reading.
  BlockWeight take_scales(bool last) {
    if (scales_.columns == 0) write_integers([](std::int64_t, const BlockWeight&) {});
    return last ? std::exchange(scales_, {}) : scales_;
  }

 private:
  BlockStream stream_;
  std::function<void(const BlockErrors&)> written_;
  BlockWeight scales_;
};

std::vector<std::byte> bytes_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

// [columns, blocks] to [blocks, columns].
template <class T>
std::vector<T> transposed(const std::vector<T>& values, std::size_t columns, std::size_t blocks) {
  std::vector<T> out(values.size());
  for (std::size_t n = 0; n < columns; ++n) {
    for (std::size_t b = 0; b < blocks; ++b) out[b * columns + n] = values[n * blocks + b];
  }
  return out;
}

// Names of the initializers of a weight.
struct Stored {
  std::string integers, scales, zero_points;  // the last empty where there are none
};

class Emitter {
 public:
  Emitter(onnx::Model model, const BlockPlacement& placement, std::vector<BlockStream> streams,
          const WeightsOnlyConfig& config, BlocksWritten written)
      : model_(std::move(model)), config_(config), index_(model_), placement_(placement) {
    for (std::size_t t = 0; t < streams.size(); ++t) {
      const auto tell = [written, t](const BlockErrors& errors) {
        if (written) written(t, errors);
      };
      found_.push_back(std::make_shared<Found>(std::move(streams[t]), tell));
    }
  }

  onnx::Model run() {
    for (std::size_t t = 0; t < placement_.tensors.size(); ++t) {
      const auto& tensor = placement_.tensors[t];
      const auto weight = model_.graph.initializers[tensor.initializer].name;
      if (config_.form == WeightForm::matmul_nbits) {
        add_operators(t, weight);
      } else {
        add_dequantizers(t, weight);
      }
      if (!tensor.others.empty()) add_dequantized(t, weight);
    }
    assemble();
    return std::move(model_);
  }

 private:
  void add_operators(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    if (!tensor.products.empty()) {
      const auto stored = add_product_weight(t, weight);
      for (const auto n : tensor.products) replaced_[n] = product(model_.graph.nodes[n], tensor, stored);
    }
    if (!tensor.tables.empty()) {
      const auto stored = add_table(t, weight);
      for (const auto n : tensor.tables) replaced_[n] = {look_up(model_.graph.nodes[n], tensor, stored)};
    }
  }

  void add_dequantizers(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto opset = opset_of_blocks(tensor.format.bits);
    if (model_.opset() < opset)
      throw bad_input(
          fmt::format("model '{}' has opset {}, and DequantizeLinear has blocks of {} bits from opset {} on",
                      model_.path.string(), model_.opset(), tensor.format.bits, opset),
          "give --form matmul-nbits, or convert the model first");
    for (const auto n : tensor.products)
      dequantize_for(n, 1, tensor.format.block > 0 ? 0 : 1, tensor, add_matrix(t, weight));
    if (!tensor.tables.empty()) {
      const auto stored = add_table(t, weight);
      for (const auto n : tensor.tables) dequantize_for(n, 0, tensor.format.block > 0 ? 1 : 0, tensor, stored);
    }
  }

  // In the shape of the weight.
  void add_dequantized(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto& format = tensor.format;
    check_opset(format.block == 0 && format.bits == 8 ? kOpsetOfAxes : opset_of_blocks(format.bits), format.bits);
    auto dims = model_.graph.initializers[tensor.initializer].dims;
    Stored stored = names_of(weight, format);
    add_integers(stored.integers, type_of(format), dims, t);
    const bool is_filter = format.block == 0;
    const auto axis = is_filter ? 0 : static_cast<std::int64_t>(dims.size()) - 1;
    if (is_filter) {
      dims = {tensor.columns};
    } else {
      dims.back() = format.blocks_of(tensor.rows);
    }
    add_scales(stored.scales, dims, t, !stored.zero_points.empty());
    if (!stored.zero_points.empty()) add_packed_zero_points(stored.zero_points, dims, t, false);
    for (const auto& [n, input] : tensor.others) dequantize_for(n, input, axis, tensor, stored);
  }

  void check_opset(std::int64_t opset, int bits) const {
    if (model_.opset() >= opset) return;
    throw bad_input(
        fmt::format("model '{}' has opset {}, and DequantizeLinear has {} bits in this form from opset {} on",
                    model_.path.string(), model_.opset(), bits, opset),
        "give --form matmul-nbits, or convert the model first");
  }

  // B [N, blocks, bytes], scales [N, blocks], zero points [N, bytes] of MatMulNBits.
  Stored add_product_weight(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto& format = tensor.format;
    const auto blocks = format.blocks_of(tensor.rows);
    const auto block_bytes =
        static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(format.block), format.bits));
    const bool again = !tensor.tables.empty();
    Stored stored = names_of(weight, format);
    add_integers(stored.integers, DataType::uint8, {tensor.columns, blocks, block_bytes}, t);
    add_scales(stored.scales, {tensor.columns, blocks}, t, !stored.zero_points.empty() || again);
    if (!stored.zero_points.empty()) {
      const auto bytes = packed_bytes(static_cast<std::size_t>(blocks), format.bits);
      add_zero_points(stored.zero_points, DataType::uint8, {tensor.columns, static_cast<std::int64_t>(bytes)}, t,
                      again);
    }
    return stored;
  }

  // A table [entries, columns] with blocks along its last axis. Types of 4 bits are read by all runtimes; without zero
  // points they have a sign.
  Stored add_table(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto& format = tensor.format;
    const bool operators = config_.form == WeightForm::matmul_nbits;
    const auto type = operators && format.bits == 8 ? DataType::uint8 : type_of(format);
    const auto blocks = format.blocks_of(tensor.rows);
    const std::vector<std::int64_t> scale_dims =
        format.block > 0 ? std::vector{tensor.columns, blocks} : std::vector{tensor.columns};
    Stored stored = names_of(weight, format);
    add_integers(stored.integers, type, {tensor.columns, tensor.rows}, t);
    add_scales(stored.scales, scale_dims, t, !stored.zero_points.empty());
    if (stored.zero_points.empty()) return stored;
    if (operators && format.bits == 8) {
      add_zero_points(stored.zero_points, type, scale_dims, t, false);
    } else {
      add_packed_zero_points(stored.zero_points, scale_dims, t, false);
    }
    return stored;
  }

  // A matrix [rows, columns] with blocks along its first axis, as ONNX Runtime fuses it.
  Stored add_matrix(std::size_t t, const std::string& weight) {
    const auto& tensor = placement_.tensors[t];
    const auto& format = tensor.format;
    const auto blocks = format.blocks_of(tensor.rows);
    Stored stored = names_of(weight, format);
    const auto found = found_[t];
    const int offset = format.symmetric ? format.middle() : 0;
    const auto count = static_cast<std::size_t>(tensor.rows * tensor.columns);
    add(stored.integers, type_of(format), {tensor.rows, tensor.columns},
        TensorData::produced(packed_bytes(count, format.bits), [found, offset](const onnx::Sink& sink) {
          const auto& shape = found->shape();
          PackedRows rows(shape.rows, shape.columns, shape.format.bits);
          found->write_integers(
              [&](std::int64_t first, const BlockWeight& stripe) { rows.put(first, stripe.integers, offset); });
          sink(rows.bytes());
        }));
    const std::vector<std::int64_t> scale_dims =
        format.block > 0 ? std::vector{blocks, tensor.columns} : std::vector{tensor.columns};
    const bool again = !stored.zero_points.empty();
    const auto columns = static_cast<std::size_t>(tensor.columns);
    add(stored.scales, DataType::float32, scale_dims,
        TensorData::produced(columns * static_cast<std::size_t>(blocks) * sizeof(float),
                             [found, columns, blocks, again](const onnx::Sink& sink) {
                               const auto all = found->take_scales(!again);
                               sink(bytes_of(transposed(all.scales, columns, static_cast<std::size_t>(blocks))));
                             }));
    if (!stored.zero_points.empty()) add_packed_zero_points(stored.zero_points, scale_dims, t, true);
    return stored;
  }

  void add_integers(const std::string& name, DataType type, std::vector<std::int64_t> dims, std::size_t t) {
    const auto found = found_[t];
    const auto& shape = found->shape();
    const auto block = static_cast<std::size_t>(shape.format.block_of(shape.rows));
    const auto blocks = static_cast<std::size_t>(shape.columns * shape.format.blocks_of(shape.rows));
    const bool has_sign = type == DataType::int8 || type == DataType::int4 || type == DataType::int2;
    add(name, type, std::move(dims),
        TensorData::produced(blocks * packed_bytes(block, shape.format.bits),
                             [found, has_sign](const onnx::Sink& sink) {
                               found->write_integers([&](std::int64_t, const BlockWeight& stripe) {
                                 auto packed = packed_columns(stripe);
                                 if (has_sign) subtract_middle(packed, stripe.format.bits);
                                 sink(packed);
                               });
                             }));
  }

  // Of packed integers: the highest bit of each changes.
  static void subtract_middle(std::vector<std::byte>& packed, int bits) {
    const auto mask = std::byte{static_cast<unsigned char>(bits == 8 ? 0x80 : bits == 4 ? 0x88 : 0xAA)};
    for (auto& byte : packed) byte ^= mask;
  }

  void add_scales(const std::string& name, std::vector<std::int64_t> dims, std::size_t t, bool again) {
    const auto found = found_[t];
    add(name, DataType::float32, dims,
        TensorData::produced(sizeof(float) * static_cast<std::size_t>(*onnx::element_count(dims)),
                             [found, again](const onnx::Sink& sink) {
                               const auto all = found->take_scales(!again);
                               sink(std::as_bytes(std::span(all.scales)));
                             }));
  }

  // Those of a column begin at a byte of their own.
  void add_zero_points(const std::string& name, DataType type, std::vector<std::int64_t> dims, std::size_t t,
                       bool again) {
    const auto found = found_[t];
    add(name, type, dims,
        TensorData::produced(static_cast<std::size_t>(*onnx::element_count(dims)), [found, again](const auto& sink) {
          sink(packed_zero_points(found->take_scales(!again)));
        }));
  }

  // As elements of the type of the integers, packed throughout.
  void add_packed_zero_points(const std::string& name, std::vector<std::int64_t> dims, std::size_t t, bool transpose) {
    const auto found = found_[t];
    const auto count = static_cast<std::size_t>(*onnx::element_count(dims));
    const auto& format = found->shape().format;
    add(name, type_of(format), std::move(dims),
        TensorData::produced(packed_bytes(count, format.bits), [found, transpose](const onnx::Sink& sink) {
          auto all = found->take_scales(true);
          const auto columns = static_cast<std::size_t>(all.columns);
          if (transpose) all.zero_points = transposed(all.zero_points, columns, all.zero_points.size() / columns);
          std::vector<std::byte> packed(packed_bytes(all.zero_points.size(), all.format.bits));
          pack(all.zero_points, all.format.bits, packed.data());
          sink(packed);
        }));
  }

  static DataType type_of(const BlockFormat& format) {
    const bool sign = format.symmetric;
    if (format.bits == 2) return sign ? DataType::int2 : DataType::uint2;
    if (format.bits == 4) return sign ? DataType::int4 : DataType::uint4;
    return sign ? DataType::int8 : DataType::uint8;
  }

  Stored names_of(const std::string& weight, const BlockFormat& format) {
    return {index_.fresh_name(fmt::format("{}_Q{}", weight, format.bits)), index_.fresh_name(weight + "_scales"),
            format.symmetric ? std::string() : index_.fresh_name(weight + "_zero_points")};
  }

  void add(const std::string& name, DataType type, std::vector<std::int64_t> dims, TensorData data) {
    new_tensors_.push_back({name, type, std::move(dims), std::move(data), {}, false});
  }

  // The bias of a Gemm becomes one of MatMulNBits where it is a constant for each output, else a sum.
  std::vector<Node> product(const Node& node, const BlockTensor& tensor, const Stored& stored) {
    std::vector<std::string> inputs{node.inputs()[0], stored.integers, stored.scales};
    if (!stored.zero_points.empty()) inputs.push_back(stored.zero_points);
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
    if (!has_bias || node.inputs()[2].empty() || !flat.empty()) return {std::move(made)};
    const auto value = index_.fresh_name(node.outputs()[0] + "_without_bias");
    made.set_output(0, value);
    Node sum("Add", index_.fresh_name(node.id() + "_Add"), {value, node.inputs()[2]}, node.outputs());
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
      add(found->second, bias.type, {columns}, bias.data);
    }
    return found->second;
  }

  static Node look_up(const Node& node, const BlockTensor& tensor, const Stored& stored) {
    std::vector<std::string> inputs{stored.integers, node.inputs()[1], stored.scales};
    if (!stored.zero_points.empty()) inputs.push_back(stored.zero_points);
    std::vector<Attribute> attributes{Attribute::of_int("block_size", tensor.format.block_of(tensor.rows)),
                                      Attribute::of_int("quantize_axis", 1), Attribute::of_int("gather_axis", 0)};
    // The attribute is newer than the operator, and only integers of 8 bits need it.
    if (tensor.format.bits == 8) attributes.push_back(Attribute::of_int("bits", 8));
    return {"GatherBlockQuantized", node.name(),           std::move(inputs),
            node.outputs(),         std::move(attributes), kMicrosoftDomain};
  }

  void dequantize_for(std::size_t n, std::size_t input, std::int64_t axis, const BlockTensor& tensor,
                      const Stored& stored) {
    // A recurrent net reads two of them.
    auto& nodes = replaced_[n];
    Node node = nodes.empty() ? model_.graph.nodes[n] : nodes.back();
    if (!nodes.empty()) nodes.pop_back();
    const auto weight = node.inputs()[input];
    const auto value = index_.fresh_name(weight + "_DequantizeLinear_Output");
    std::vector<std::string> inputs{stored.integers, stored.scales};
    if (!stored.zero_points.empty()) inputs.push_back(stored.zero_points);
    std::vector<Attribute> attributes{Attribute::of_int("axis", axis)};
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
    for (auto& tensor : new_tensors_) tensors.push_back(std::move(tensor));
    graph.initializers = std::move(tensors);
    if (!flat_biases_.empty()) graph::drop_unused_initializers(model_);
    if (config_.form == WeightForm::matmul_nbits && model_.opset(kMicrosoftDomain) == 0)
      model_.set_opset(kMicrosoftDomain, 1);
    raise_ir_version();
  }

  // Types of 4 bits came with IR version 10, those of 2 with 13.
  void raise_ir_version() {
    std::int64_t needed = model_.ir_version;
    for (const auto& tensor : model_.graph.initializers) {
      const int bits = onnx::bits_of(tensor.type);
      if (bits == 2 || bits == 4) needed = std::max<std::int64_t>(needed, bits == 4 ? 10 : 13);
    }
    if (needed != model_.ir_version) model_.set_ir_version(needed);
  }

  onnx::Model model_;
  const WeightsOnlyConfig& config_;
  graph::Index index_;
  const BlockPlacement& placement_;
  std::vector<std::shared_ptr<Found>> found_;
  std::unordered_map<std::size_t, std::vector<Node>> replaced_;
  std::unordered_map<std::string, std::string> flat_biases_;
  std::vector<Tensor> new_tensors_;
};

}  // namespace

std::int64_t opset_of_blocks(int bits) noexcept {
  constexpr std::int64_t kOf2Bits = 25, kOfBlocks = 21;
  return bits == 2 ? kOf2Bits : kOfBlocks;
}

onnx::Model emit_blocks(onnx::Model model, const BlockPlacement& placement, std::vector<BlockStream> streams,
                        const WeightsOnlyConfig& config, BlocksWritten written) {
  return Emitter(std::move(model), placement, std::move(streams), config, std::move(written)).run();
}

}  // namespace detent::quantization
