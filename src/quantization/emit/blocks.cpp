#include "quantization/emit/emitters.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/packed_numbers.h"
#include "quantization/blocks/blocks.h"
#include "quantization/formats.h"

namespace detent::quantization {

namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;
using onnx::Tensor;
using onnx::TensorData;

constexpr const char* kMicrosoftDomain = "com.microsoft";
constexpr std::int64_t kOpsetOfAxes = 13;  // of a DequantizeLinear with a scale for each index of an axis

DataType element_type(const BlockFormat& format) {
  if (format.floats) return data_type(*format.floats);
  const bool sign = format.symmetric;
  if (format.bits == 2) return sign ? DataType::int2 : DataType::uint2;
  if (format.bits == 4) return sign ? DataType::int4 : DataType::uint4;
  return sign ? DataType::int8 : DataType::uint8;
}

DataType scale_type(const BlockTensor& tensor) {
  switch (tensor.format.scales) {
    case ScaleType::float8e8m0: return DataType::float8e8m0;
    case ScaleType::float8e4m3fn: return DataType::float8e4m3fn;
    case ScaleType::as_weight: return tensor.on_grids ? DataType::float16 : tensor.type;
  }
  return tensor.type;
}

// Scales of one byte.
std::vector<std::byte> codes_of(std::span<const float> scales, const BlockFormat& format) {
  std::vector<std::byte> codes;
  codes.reserve(scales.size());
  for (const float scale : scales) codes.push_back(std::byte{scale_code(scale, format)});
  return codes;
}

std::vector<std::byte> bytes_of(std::span<const float> values, const BlockTensor& tensor) {
  if (tensor.format.scales != ScaleType::as_weight) return codes_of(values, tensor.format);
  const auto type = scale_type(tensor);
  if (type == DataType::float32) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint16_t> low(values.size());
  std::transform(values.begin(), values.end(), low.begin(),
                 type == DataType::float16 ? onnx::to_float16 : onnx::to_bfloat16);
  const auto bytes = std::as_bytes(std::span<const std::uint16_t>(low));
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

std::vector<std::byte> packed(const std::vector<std::uint8_t>& integers, int bits) {
  std::vector<std::byte> out(packed_bytes(integers.size(), bits));
  pack(integers, bits, out.data());
  return out;
}

// Of packed integers: the highest bit of each changes.
void subtract_middle(std::vector<std::byte>& packed, int bits) {
  const auto mask = std::byte{static_cast<unsigned char>(bits == 8 ? 0x80 : bits == 4 ? 0x88 : 0xAA)};
  for (auto& byte : packed) byte ^= mask;
}

std::size_t count_of(const std::vector<std::int64_t>& dims) {
  return static_cast<std::size_t>(*onnx::element_count(dims));
}

// [columns, blocks], or [columns] where blocks are whole columns.
std::vector<std::int64_t> scale_dims_of(const BlockTensor& tensor) {
  if (tensor.format.block == 0) return {tensor.columns};
  return {tensor.columns, tensor.format.blocks_of(tensor.rows)};
}

// What is known of a weight once its integers have been found. Scales follow the integers into the file, so they are
// kept until they are written.
class FoundBlocks {
 public:
  FoundBlocks(BlockStream stream, std::function<void(const BlockErrors&)> written)
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

// The initializers of weights in blocks, in the layouts that MatMulNBits, GatherBlockQuantized and DequantizeLinear
// read.

// Names of the initializers of a weight.
struct BlockNames {
  std::string integers, scales, zero_points;  // the last empty where there are none
};

// Makes initializers whose bytes are found when they are written: the integers of a weight while they go to the file,
// its scales and zero points, which follow them there, in the same pass. Names are those of the weight with what they
// are. Scales have the type of the weight.
class BlockTensors {
 public:
  // `index` gives new names; `written` is told when the integers of weight t have been written.
  BlockTensors(graph::Index& index, const std::vector<BlockStream>& streams, const BlocksWritten& written)
      : index_(index) {
    for (std::size_t t = 0; t < streams.size(); ++t) {
      const auto tell = [written, t](const BlockErrors& errors) {
        if (written) written(t, errors);
      };
      found_.push_back(std::make_shared<FoundBlocks>(streams[t], tell));
    }
  }

  // Of MatMulNBits: integers uint8 [columns, blocks, bytes of a block], scales [columns, blocks], zero points uint8
  // [columns, bytes], those of a column from a byte of their own on. `again`: table() is made of the weight as well.
  BlockNames product(std::size_t t, const std::string& weight, bool again) {
    const auto& tensor = found_[t]->shape();
    const auto& format = tensor.format;
    const auto bytes = static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(format.block), format.bits));
    return product_as(t, weight, {tensor.columns}, {format.blocks_of(tensor.stored_rows()), bytes}, again);
  }

  // Of QMoE, for a weight [experts, outputs, rows]: the same bytes, the first axis of each tensor divided in two.
  BlockNames experts(std::size_t t, const std::string& weight, std::int64_t experts) {
    const auto& tensor = found_[t]->shape();
    return product_as(t, weight, {experts, tensor.columns / experts}, {tensor.rows * tensor.format.bits / 8}, false);
  }

  // Of GatherBlockQuantized and of a DequantizeLinear along the last axis: a table [columns, whole_rows], scales and
  // zero points [columns, blocks], or [columns] for blocks of whole columns. `type` is that of integers and zero
  // points.
  BlockNames table(std::size_t t, const std::string& weight, DataType type) {
    const auto& tensor = found_[t]->shape();
    return shaped_as(t, weight, type, {tensor.columns, tensor.whole_rows()}, scale_dims_of(tensor));
  }

  // In the weight's own shape, scales and zero points in `scale_dims`.
  BlockNames shaped(std::size_t t, const std::string& weight, const std::vector<std::int64_t>& dims,
                    const std::vector<std::int64_t>& scale_dims) {
    return shaped_as(t, weight, element_type(found_[t]->shape().format), dims, scale_dims);
  }

  // Of a DequantizeLinear along the first axis: [rows, columns], scales and zero points [blocks, columns] or
  // [columns]. Further ones of a weight have names of their own and share its data.
  BlockNames matrix(std::size_t t, const std::string& weight) {
    const auto& tensor = found_[t]->shape();
    const auto& format = tensor.format;
    const auto [found, is_new] = matrices_.try_emplace(t);
    if (is_new) found->second = matrix_data(t);
    const auto& data = found->second;
    std::vector<std::int64_t> scale_dims{tensor.columns};
    if (format.block > 0) scale_dims.insert(scale_dims.begin(), format.blocks_of(tensor.rows));
    auto names = names_of(weight, format);
    add(names.integers, element_type(format), {tensor.rows, tensor.columns}, data.integers);
    add(names.scales, scale_type(tensor), scale_dims, data.scales);
    if (!names.zero_points.empty()) add(names.zero_points, element_type(format), scale_dims, data.zero_points);
    return names;
  }

  void add(const std::string& name, DataType type, std::vector<std::int64_t> dims, TensorData data) {
    tensors_.push_back({name, type, std::move(dims), std::move(data), {}, false});
  }

  // All initializers so far, in the order that they have to be written in.
  std::vector<Tensor> take() { return std::move(tensors_); }

 private:
  struct MatrixData {
    TensorData integers, scales, zero_points;
  };

  // Shapes begin with `outputs`; that of the integers goes on with `integers`.
  BlockNames product_as(std::size_t t, const std::string& weight, const std::vector<std::int64_t>& outputs,
                        const std::vector<std::int64_t>& integers, bool again) {
    const auto& format = found_[t]->shape().format;
    const auto blocks = format.blocks_of(found_[t]->shape().stored_rows());
    auto names = names_of(weight, format);
    const auto shape = [&](std::vector<std::int64_t> rest) {
      rest.insert(rest.begin(), outputs.begin(), outputs.end());
      return rest;
    };
    add_integers(names.integers, DataType::uint8, shape(integers), t);
    add_scales(names.scales, shape({blocks}), t, !names.zero_points.empty() || again);
    if (names.zero_points.empty()) return names;
    const auto bytes = static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(blocks), format.bits));
    const auto dims = shape({bytes});
    // Those of a column begin at a byte of their own.
    add(names.zero_points, DataType::uint8, dims,
        TensorData::produced(count_of(dims), [found = found_[t], again](const onnx::Sink& sink) {
          sink(packed_zero_points(found->take_scales(!again)));
        }));
    return names;
  }

  // Zero points as elements of the type of the integers, packed throughout.
  BlockNames shaped_as(std::size_t t, const std::string& weight, DataType type, const std::vector<std::int64_t>& dims,
                       const std::vector<std::int64_t>& scale_dims) {
    const auto& format = found_[t]->shape().format;
    auto names = names_of(weight, format);
    add_integers(names.integers, type, dims, t);
    add_scales(names.scales, scale_dims, t, !names.zero_points.empty());
    if (names.zero_points.empty()) return names;
    add(names.zero_points, type, scale_dims,
        TensorData::produced(packed_bytes(count_of(scale_dims), format.bits),
                             [found = found_[t]](const onnx::Sink& sink) {
                               const auto all = found->take_scales(true);
                               sink(packed(all.zero_points, all.format.bits));
                             }));
    return names;
  }

  // As ONNX Runtime fuses it. Several tensors may have these data, so scales stay.
  MatrixData matrix_data(std::size_t t) const {
    const auto found = found_[t];
    const auto& tensor = found->shape();
    const auto& format = tensor.format;
    const auto columns = static_cast<std::size_t>(tensor.columns);
    const auto blocks = static_cast<std::size_t>(format.blocks_of(tensor.rows));
    const bool is_shared = tensor.products.size() > 1;
    const bool again = !format.symmetric || is_shared;
    MatrixData data;
    data.integers = TensorData::produced(
        packed_bytes(static_cast<std::size_t>(tensor.rows) * columns, format.bits), [found](const onnx::Sink& sink) {
          const auto& shape = found->shape();
          const int offset = shape.format.symmetric ? shape.format.zero() : 0;
          PackedRows rows(shape.rows, shape.columns, shape.format.bits);
          found->write_integers(
              [&](std::int64_t first, const BlockWeight& stripe) { rows.put(first, stripe.integers, offset); });
          sink(rows.bytes());
        });
    data.scales =
        TensorData::produced(*onnx::byte_count(scale_type(tensor), static_cast<std::int64_t>(columns * blocks)),
                             [found, columns, blocks, again](const onnx::Sink& sink) {
                               const auto all = found->take_scales(!again);
                               sink(bytes_of(transposed(all.scales, columns, blocks), found->shape()));
                             });
    if (!format.symmetric)
      data.zero_points =
          TensorData::produced(packed_bytes(columns * blocks, format.bits), [found, is_shared](const onnx::Sink& sink) {
            const auto all = found->take_scales(!is_shared);
            const auto width = static_cast<std::size_t>(all.columns);
            sink(packed(transposed(all.zero_points, width, all.zero_points.size() / width), all.format.bits));
          });
    return data;
  }

  void add_integers(const std::string& name, DataType type, std::vector<std::int64_t> dims, std::size_t t) {
    const auto found = found_[t];
    const auto& shape = found->shape();
    const auto block = static_cast<std::size_t>(shape.format.block_of(shape.rows));
    const auto blocks = static_cast<std::size_t>(shape.columns * shape.format.blocks_of(shape.stored_rows()));
    const bool has_sign = type == DataType::int8 || type == DataType::int4 || type == DataType::int2;
    add(name, type, std::move(dims),
        TensorData::produced(blocks * packed_bytes(block, shape.format.bits),
                             [found, has_sign](const onnx::Sink& sink) {
                               found->write_integers([&](std::int64_t, const BlockWeight& stripe) {
                                 auto integers = packed_columns(stripe);
                                 if (has_sign) subtract_middle(integers, stripe.format.bits);
                                 sink(integers);
                               });
                             }));
  }

  void add_scales(const std::string& name, std::vector<std::int64_t> dims, std::size_t t, bool again) {
    const auto found = found_[t];
    const auto type = scale_type(found->shape());
    const auto size = *onnx::byte_count(type, static_cast<std::int64_t>(count_of(dims)));
    add(name, type, std::move(dims), TensorData::produced(size, [found, again](const onnx::Sink& sink) {
          sink(bytes_of(found->take_scales(!again).scales, found->shape()));
        }));
  }

  BlockNames names_of(const std::string& weight, const BlockFormat& format) {
    return {index_.fresh_name(fmt::format("{}_{}{}", weight, format.floats ? 'F' : 'Q', format.bits)),
            index_.fresh_name(weight + "_scales"),
            format.symmetric ? std::string() : index_.fresh_name(weight + "_zero_points")};
  }

  graph::Index& index_;
  std::vector<std::shared_ptr<FoundBlocks>> found_;
  std::unordered_map<std::size_t, MatrixData> matrices_;
  std::vector<Tensor> tensors_;
};

class Emitter {
 public:
  Emitter(onnx::Model model, const Assignment& assignment)
      : model_(std::move(model)),
        blocks_(assignment.blocks),
        transposes_(assignment.placement.transposes),
        index_(model_),
        stored_(index_, blocks_.weights, blocks_.written) {}

  onnx::Model run() {
    for (std::size_t t = 0; t < blocks_.weights.size(); ++t) {
      const auto& tensor = blocks_.weights[t].shape();
      const auto weight = model_.graph.initializers[tensor.initializer].name;
      if (blocks_.form == WeightForm::matmul_nbits) {
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
    const auto& tensor = blocks_.weights[t].shape();
    BlockNames names;
    if (!tensor.products.empty()) {
      names = stored_.product(t, weight, !tensor.tables.empty() && !tensor.shared);
      for (const auto n : tensor.products) {
        replaced_[n] = product(model_.graph.nodes[n], tensor, tensor.on_grids ? made_at_load(n, names) : names);
        if (tensor.on_grids) replaced_[n].front().set_input(0, with_sums(n, tensor));
      }
    }
    if (tensor.tables.empty()) return;
    auto type = tensor.format.bits == 8 ? DataType::uint8 : element_type(tensor.format);
    if (tensor.shared) {
      type = DataType::uint8;
      names.integers = flat_integers(tensor, names.integers);
    } else {
      names = stored_.table(t, weight, type);
    }
    for (const auto n : tensor.tables) {
      replaced_[n].push_back(look_up(model_.graph.nodes[n], tensor, names, type == DataType::uint8));
      cut_entries(n, tensor);
    }
  }

  // Entries of a table are stored in whole blocks: what fills the last one up is cut off behind the node that reads
  // them.
  void cut_entries(std::size_t n, const BlockTensor& tensor) {
    if (tensor.whole_rows() == tensor.rows) return;
    auto& reader = replaced_[n].back();
    const auto output = reader.outputs()[0];
    const auto whole = index_.fresh_name(output + "_whole");
    std::vector<std::string> inputs{whole};
    for (const auto& [name, value] : {std::pair("start", std::int64_t{0}), {"end", tensor.rows}, {"axis", -1}}) {
      inputs.push_back(index_.fresh_name(fmt::format("{}_{}", output, name)));
      stored_.add(inputs.back(), DataType::int64, {1}, TensorData::of(std::span<const std::int64_t>(&value, 1)));
    }
    reader.set_output(0, whole);
    Node cut("Slice", index_.fresh_name(output + "_Slice"), std::move(inputs), {output});
    cut.set_body(reader.body());
    replaced_[n].push_back(std::move(cut));
  }

  // The runtime widens scales when it loads the model. Without its optimizations the kernel would take integers that
  // are a constant beside scales that are none, and compute wrongly (ONNX Runtime 1.31): both are made by nodes.
  BlockNames made_at_load(std::size_t n, BlockNames names) {
    const auto add = [&](const char* type, std::string& name, std::vector<Attribute> attributes) {
      Node node(type, index_.fresh_name(name + "_" + type), {name}, {index_.fresh_name(name + "_read")},
                std::move(attributes));
      node.set_body(model_.graph.nodes[n].body());
      name = before_[n].emplace_back(std::move(node)).outputs()[0];
    };
    add("Cast", names.scales, {Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32))});
    add("Identity", names.integers, {});
    return names;
  }

  // The product's input with the sums of its blocks behind it, made where the first product reads them.
  std::string with_sums(std::size_t n, const BlockTensor& tensor) {
    const auto& node = model_.graph.nodes[n];
    const auto& input = node.inputs()[0];
    const auto block = tensor.format.block;
    const auto [found, is_new] = with_sums_.try_emplace({node.body(), input, block});
    if (!is_new) return found->second;
    const auto blocks = tensor.format.blocks_of(tensor.rows);
    auto& ones = block_sums_[{tensor.rows, block}];
    if (ones.empty()) {
      std::vector<float> values(static_cast<std::size_t>(tensor.rows * blocks));
      for (std::int64_t k = 0; k < tensor.rows; ++k) values[static_cast<std::size_t>(k * blocks + k / block)] = 1;
      ones = index_.fresh_name(fmt::format("sums_of_{}_in_{}", tensor.rows, block));
      stored_.add(ones, DataType::float32, {tensor.rows, blocks}, TensorData::of(std::span<const float>(values)));
    }
    const auto sums = index_.fresh_name(input + "_sums");
    found->second = index_.fresh_name(input + "_and_sums");
    auto first = n;
    for (const int reader : index_.consumers(input)) {
      if (model_.graph.nodes[static_cast<std::size_t>(reader)].body() == node.body())
        first = std::min(first, static_cast<std::size_t>(reader));
    }
    Node made[] = {{"MatMul", index_.fresh_name(input + "_sums_MatMul"), {input, ones}, {sums}},
                   {"Concat",
                    index_.fresh_name(input + "_sums_Concat"),
                    {input, sums},
                    {found->second},
                    {Attribute::of_int("axis", -1)}}};
    for (auto& one : made) {
      one.set_body(node.body());
      before_[first].push_back(std::move(one));
    }
    return found->second;
  }

  // What MatMulNBits reads as [columns, blocks, bytes] as a table, whose entries lie as the columns do.
  std::string flat_integers(const BlockTensor& tensor, const std::string& integers) {
    const auto name = index_.fresh_name(integers + "_rows"), shape = index_.fresh_name(integers + "_shape");
    const std::int64_t dims[] = {tensor.columns, tensor.whole_rows() * tensor.format.bits / 8};
    stored_.add(shape, DataType::int64, {2}, TensorData::of(std::span<const std::int64_t>(dims)));
    replaced_[tensor.tables.front()].emplace_back("Reshape", index_.fresh_name(integers + "_Reshape"),
                                                  std::vector{integers, shape}, std::vector{name});
    return name;
  }

  void add_dequantizers(std::size_t t, const std::string& weight) {
    const auto& tensor = blocks_.weights[t].shape();
    const bool in_blocks = tensor.format.block > 0;
    check_opset(opset_of_blocks(tensor.format), tensor.format.bits);
    BlockNames names;
    if (!tensor.tables.empty()) {
      names = stored_.table(t, weight, element_type(tensor.format));
      for (const auto n : tensor.tables) {
        dequantize_for(n, 0, in_blocks ? 1 : 0, tensor, names);
        cut_entries(n, tensor);
      }
    }
    // ONNX Runtime fuses what has an axis that is counted from the front, and computes with int8 then.
    constexpr int kInt8 = 4;
    const bool in_float = blocks_.accuracy_level > 0 && blocks_.accuracy_level < kInt8;
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
    const auto& tensor = blocks_.weights[t].shape();
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
    const auto& tensor = blocks_.weights[t].shape();
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
    std::vector<Attribute> attributes{
        Attribute::of_int("K", tensor.stored_rows()), Attribute::of_int("N", tensor.columns),
        Attribute::of_int("bits", tensor.format.bits), Attribute::of_int("block_size", tensor.format.block)};
    if (blocks_.accuracy_level > 0) attributes.push_back(Attribute::of_int("accuracy_level", blocks_.accuracy_level));
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
      if (std::binary_search(transposes_.begin(), transposes_.end(), n)) continue;
      if (const auto found = before_.find(n); found != before_.end())
        std::move(found->second.begin(), found->second.end(), std::back_inserter(nodes));
      if (const auto found = replaced_.find(n); found != replaced_.end()) {
        std::move(found->second.begin(), found->second.end(), std::back_inserter(nodes));
      } else {
        nodes.push_back(std::move(graph.nodes[n]));
      }
    }
    graph.nodes = std::move(nodes);
    std::vector<bool> gone(graph.initializers.size(), false);
    for (const auto& weight : blocks_.weights) gone[weight.shape().initializer] = !weight.shape().stays;
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < graph.initializers.size(); ++i) {
      if (!gone[i]) tensors.push_back(std::move(graph.initializers[i]));
    }
    for (auto& tensor : stored_.take()) tensors.push_back(std::move(tensor));
    graph.initializers = std::move(tensors);
    if (!flat_biases_.empty()) graph::drop_unused_initializers(model_);
    if (blocks_.form == WeightForm::matmul_nbits && model_.opset(kMicrosoftDomain) == 0)
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
  const BlockAssignment& blocks_;
  const std::vector<std::size_t>& transposes_;
  graph::Index index_;
  BlockTensors stored_;
  std::unordered_map<std::size_t, std::vector<Node>> replaced_;
  std::unordered_map<std::string, std::string> flat_biases_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> block_sums_;      // by rows and block
  std::map<std::tuple<int, std::string, std::int64_t>, std::string> with_sums_;  // by body, input and block
  std::unordered_map<std::size_t, std::vector<Node>> before_;                    // nodes to be put before others
};

}  // namespace

std::int64_t opset_of_blocks(const BlockFormat& format) noexcept {
  constexpr std::int64_t kOf2Bits = 25, kOfPowersOfTwo = 24, kOfOutputTypes = 23, kOfBlocks = 21;
  if (format.scales == ScaleType::float8e8m0) return kOfPowersOfTwo;
  if (format.floats == QuantType::float4e2m1 || format.scales == ScaleType::float8e4m3fn) return kOfOutputTypes;
  return format.bits == 2 && !format.floats ? kOf2Bits : kOfBlocks;
}

Emitted emit_blocks(FloatModel model, const Assignment& assignment) {
  return {Emitter(std::move(model.model), assignment).run(), {}, {}};
}

}  // namespace detent::quantization
