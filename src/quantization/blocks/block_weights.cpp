#include "quantization/blocks/block_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "graph/front_end.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "quantization/blocks/block_faults.h"
#include "quantization/exchange.h"
#include "quantization/formats.h"
#include "quantization/placement/infinite_values.h"
#include "quantization/placement/left_in_float.h"
#include "quantization/placement/selection.h"
#include "quantization/weight_operators.h"

namespace detent::quantization {
namespace {

using onnx::Node;

bool is_real(onnx::DataType type) {
  return type == onnx::DataType::float32 || type == onnx::DataType::float16 || type == onnx::DataType::bfloat16;
}

constexpr std::array<std::size_t, 3> kExperts{2, 4, 6};  // weights among the inputs of MoE; the last may be left out

// How a node reads a constant matrix.
struct Reading {
  std::size_t initializer = 0;
  bool by_columns = false;
  bool is_table = false;
};

class Placer {
 public:
  Placer(const onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
         std::span<const int> planned)
      : model_(model),
        blocks_(blocks),
        index_(model),
        depends_(graph::depends_on_input(model, index_)),
        selected_(selection(model, config, blocks)),
        named_(named_bits(model, blocks)),
        planned_(planned) {
    format_.bits = static_cast<int>(blocks.bits);
    format_.block = static_cast<std::int64_t>(blocks.block_size);
    format_.scales = blocks.scale_type;
    if (is_float(config.weight_type)) {
      format_.floats = config.weight_type;
      format_.bits = onnx::bits_of(data_type(config.weight_type));
    }
    format_.symmetric = config.weight_symmetric.value_or(!format_.is_plain());
    names_experts_ = std::find(config.op_types.begin(), config.op_types.end(), "MoE") != config.op_types.end();
    names_none_ = config.op_types.empty() && config.nodes.empty();
    names_products_ = std::find(config.op_types.begin(), config.op_types.end(), "MatMul") != config.op_types.end();
  }

  BlockPlacement place() {
    const auto front = graph::front_end(model_, index_, graph::FrontEnds::logarithms);
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      if (selected_[n] && names_none_ && !named_[n] && front.contains(n)) {
        if (reading_of(model_.graph.nodes[n])) leave(model_.graph.nodes[n], std::string(kBeforeLogarithm));
      } else if (selected_[n]) {
        visit(n, named_[n].value_or(planned_.empty() ? format_.bits : planned_[n]));
      } else if (names_none_) {
        leave_filter(model_.graph.nodes[n]);
      }
    }
    leave_infinite_tables();
    do find_bypassed();
    while (leave_kept_weights(true));
    // Beside a table that is most of the file, blocks for a product make that larger, however fast they are.
    while (grows() && leave_kept_weights(false)) find_bypassed();
    for (auto& tensor : placement_.tensors) {
      tensor.stays = has_other_readers(tensor);
      tensor.shared = shares(tensor);
      for (auto& note : notes_of_copies(model_, tensor, blocks_.form)) placement_.notes.push_back(std::move(note));
    }
    placement_.in_float = left_.count();
    for (auto& note : left_.notes()) placement_.notes.push_back(std::move(note));
    return std::move(placement_);
  }

 private:
  // Tables are read by GatherBlockQuantized. After a DequantizeLinear a runtime would make all of a table float at each
  // run, so there they stay as they are unless they are named.
  static std::vector<bool> selection(const onnx::Model& model, QuantConfig config, const WeightsOnlyConfig& blocks) {
    if (config.op_types.empty()) {
      config.op_types = {"MatMul", "Gemm"};
      if (blocks.form == WeightForm::matmul_nbits) {
        config.op_types.emplace_back("Gather");
        const auto& nodes = model.graph.nodes;
        if (std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.op_type() == "MoE"; }))
          config.op_types.emplace_back("MoE");
      }
    } else {
      const auto known = types_with_block_weights();
      for (const auto& type : config.op_types) {
        if (std::find(known.begin(), known.end(), type) == known.end())
          throw usage_error(fmt::format("--op-types: weights of {} cannot be stored in blocks", type),
                            fmt::format("choose from: {}", fmt::join(known, ", ")));
      }
    }
    return select_nodes(model, config);
  }

  void visit(std::size_t n, int bits) {
    const auto& node = model_.graph.nodes[n];
    const auto* row = weight_operator(node);
    switch (row == nullptr ? BlockWeights::no : row->blocks) {
      case BlockWeights::filter: return visit_other(n, row->first_weight, bits, true);
      case BlockWeights::recurrent:
        for (std::size_t i = 0; i < row->weights; ++i) visit_other(n, row->first_weight + i, bits, false);
        return;
      case BlockWeights::experts: return visit_experts(n, bits);
      default: return visit_matrix(n, bits);
    }
  }

  void visit_matrix(std::size_t n, int bits) {
    const auto& node = model_.graph.nodes[n];
    if (node.is("MatMul") && is_stack(node)) {
      if (names_products_) return visit_other(n, 1, bits, false);
      return leave(node,
                   "its weight is a stack of matrices, which runtimes would make float at each run; --op-types "
                   "MatMul stores it in blocks all the same");
    }
    const auto reading = reading_of(node);
    if (!reading) return leave_computed(node);
    const auto& weight = model_.graph.initializers[reading->initializer];
    if (bits == 0) return leave(node, why_float(n));
    if (auto reason = reason_against(node, weight, *reading, bits); !reason.empty()) return leave(node, reason);
    auto& tensor = tensor_for(*reading, bits);
    (reading->is_table ? tensor.tables : tensor.products).push_back(n);
  }

  void leave_filter(const Node& node) {
    if (graph::is_convolution(node) && index_.initializer(node.inputs()[1]) != graph::kNone)
      leave(node,
            "filters are stored in blocks where --op-types names Conv and ConvTranspose, which saves size and no time");
  }

  // Weights that nodes make which were not computed, or that are no matrices then.
  void leave_computed(const Node& node) {
    if (node.inputs().size() < 2 || node.is("Gather")) return;
    const int maker = index_.producer(node.inputs()[1]);
    if (maker != graph::kNone && !depends_[static_cast<std::size_t>(maker)])
      leave(node, fmt::format("its weight is made by {}", model_.graph.nodes[static_cast<std::size_t>(maker)].label()));
  }

  void visit_experts(std::size_t n, int bits) {
    const auto& node = model_.graph.nodes[n];
    const auto reason = bits == 0 ? std::string() : reason_against_qmoe(node, bits);
    const bool fits = reason.empty();
    if (!fits && !names_experts_)
      return leave(node, reason +
                             "; --op-types MoE stores such weights in blocks too, which the runtime makes float at "
                             "each run");
    for (const std::size_t input : kExperts) {
      const auto before = placement_.tensors.size();
      visit_other(n, input, bits, false);
      if (fits && placement_.tensors.size() > before) placement_.tensors.back().as_experts = true;
    }
  }

  // QMoE reads all of its weights as integers of 4 or 8 bits, in blocks that divide their rows. ONNX Runtime 1.28 takes
  // wrong zero points where those of a row do not fill bytes.
  std::string reason_against_qmoe(const Node& node, int bits) const {
    if (auto reason = reason_against_exchange(node, "QMoE"); !reason.empty()) return reason;
    for (const std::size_t input : kExperts) {
      if (input < node.inputs().size() && is_read_elsewhere(node, input)) return "QMoE reads weights of its own";
    }
    if (has_blocks_of_qmoe(node, bits)) return {};
    return "QMoE reads 4 or 8 bits in blocks that divide the weights' rows, with zero points that fill bytes (else "
           "--set weight-symmetric)";
  }

  bool is_read_elsewhere(const Node& node, std::size_t input) const {
    const auto& inputs = node.inputs();
    return !inputs[input].empty() && (index_.consumers(inputs[input]).size() != 1 || index_.is_output(inputs[input]) ||
                                      std::count(inputs.begin(), inputs.end(), inputs[input]) != 1);
  }

  bool has_blocks_of_qmoe(const Node& node, int bits) const {
    constexpr std::int64_t kShortest = 16;
    const auto block = format_.block;
    const bool is_power = block >= kShortest && (block & (block - 1)) == 0;
    if (blocks_.form != WeightForm::matmul_nbits || !format_.is_plain() || !is_power || (bits != 4 && bits != 8))
      return false;
    const auto format = with_bits(bits);
    return std::all_of(kExperts.begin(), kExperts.end(), [&](std::size_t input) {
      if (node.inputs().size() <= input || node.inputs()[input].empty()) return input == kExperts.back();
      const int at = index_.initializer(node.inputs()[input]);
      if (at == graph::kNone) return false;
      const auto& weight = model_.graph.initializers[static_cast<std::size_t>(at)];
      if (weight.dims.size() != 3 || !is_real(weight.type) || weight.count() == 0) return false;
      const auto rows = weight.dims.back(), columns = weight.count() / rows;
      const bool is_whole = format.symmetric || rows / block * bits % 8 == 0;
      return rows % block == 0 && is_whole && makes_much_smaller(weight, rows, columns, format);
    });
  }

  std::string why_float(std::size_t n) const {
    return named_[n] ? "--set node-bits says so" : "--max-size has room for it";
  }

  bool is_stack(const Node& node) const {
    const int at = node.inputs().size() > 1 ? index_.initializer(node.inputs()[1]) : graph::kNone;
    if (at == graph::kNone) return false;
    const auto& weight = model_.graph.initializers[static_cast<std::size_t>(at)];
    return weight.dims.size() > 2 && is_real(weight.type) && weight.count() > 0;
  }

  // All of a filter's weights for its first axis follow one another; blocks of other weights lie along the last axis.
  void visit_other(std::size_t n, std::size_t input, int bits, bool is_filter) {
    const auto& node = model_.graph.nodes[n];
    const int at = node.inputs().size() > input ? index_.initializer(node.inputs()[input]) : graph::kNone;
    if (at == graph::kNone) return;
    const auto& weight = model_.graph.initializers[static_cast<std::size_t>(at)];
    if (weight.dims.size() < 3 || !is_real(weight.type) || weight.count() == 0) return;
    if (bits == 0) return leave(node, why_float(n));
    auto format = with_bits(bits);
    const auto columns = is_filter ? weight.dims.front() : weight.count() / weight.dims.back();
    const auto rows = weight.count() / columns;
    // Channels of a filter of one pixel follow one another.
    const bool in_blocks = !is_filter || (rows == weight.dims[1] && format.block > 0 &&
                                          rows % std::max(format.block, std::int64_t{1}) == 0);
    if (!in_blocks) format.block = 0;
    if (in_blocks && format.block == 0) format.block = rows;
    if (rows % format.block_of(rows) != 0 || rows * bits % 8 != 0)
      return leave(node, "its weights for an output do not fill whole blocks and bytes");
    if (!makes_much_smaller(weight, rows, columns, format)) return leave(node, "blocks would not make it much smaller");
    const auto [found, is_new] = known_.try_emplace({static_cast<std::size_t>(at), true}, placement_.tensors.size());
    if (is_new) {
      add_tensor({static_cast<std::size_t>(at), true, false}, {rows, columns}, format);
    }
    auto& tensor = placement_.tensors[found->second];
    if (tensor.rows == rows && tensor.format.block == format.block) tensor.others.emplace_back(n, input);
  }

  // A constant matrix that the node could read in blocks.
  std::optional<Reading> reading_of(const Node& node) const {
    const bool table = node.is("Gather");
    if (node.inputs().size() < 2) return std::nullopt;
    const auto& value = node.inputs()[table ? 0 : 1];
    const auto* transpose = table ? nullptr : transpose_of(value);
    const int at = index_.initializer(transpose != nullptr ? transpose->inputs()[0] : value);
    if (at == graph::kNone) return std::nullopt;
    const auto& weight = model_.graph.initializers[static_cast<std::size_t>(at)];
    if (weight.dims.size() != 2 || !is_real(weight.type)) return std::nullopt;
    if (table && node.int_or("axis", 0) != 0) return std::nullopt;
    const bool transposed = (transpose != nullptr) != (node.is("Gemm") && node.int_or("transB", 0) != 0);
    return Reading{static_cast<std::size_t>(at), table || transposed, table};
  }

  // The node that makes the value of a constant matrix, as where a table is also the weight of the last product.
  const Node* transpose_of(const std::string& value) const {
    const int producer = index_.producer(value);
    if (producer == graph::kNone) return nullptr;
    const auto& node = model_.graph.nodes[static_cast<std::size_t>(producer)];
    if (!node.is("Transpose") || node.inputs().empty()) return nullptr;
    if (index_.initializer(node.inputs().front()) == graph::kNone) return nullptr;
    const auto* order = node.attribute("perm");
    return order == nullptr || order->as_ints() == std::vector<std::int64_t>{1, 0} ? &node : nullptr;
  }

  // Whether the node reads the value in blocks, and as nothing else.
  bool reads_in_blocks(int reader, const std::string& value) const {
    const auto n = static_cast<std::size_t>(reader);
    const auto& node = model_.graph.nodes[n];
    const auto& inputs = node.inputs();
    if (std::count(inputs.begin(), inputs.end(), value) != 1) return false;
    const bool as_weight = inputs[node.is("Gather") ? 0 : 1] == value;
    return std::any_of(placement_.tensors.begin(), placement_.tensors.end(), [&](const BlockTensor& t) {
      return (as_weight && (std::binary_search(t.products.begin(), t.products.end(), n) ||
                            std::binary_search(t.tables.begin(), t.tables.end(), n))) ||
             std::any_of(t.others.begin(), t.others.end(),
                         [&](const auto& other) { return other.first == n && inputs[other.second] == value; });
    });
  }

  void find_bypassed() {
    placement_.transposes.clear();
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& output = model_.graph.nodes[n].outputs().empty() ? std::string() : model_.graph.nodes[n].outputs()[0];
      if (output.empty() || transpose_of(output) == nullptr) continue;
      const auto readers = index_.consumers(output);
      const bool free = !index_.is_output(output) && !index_.is_captured(output);
      if (free && !readers.empty() &&
          std::all_of(readers.begin(), readers.end(), [&](int r) { return reads_in_blocks(r, output); }))
        placement_.transposes.push_back(n);
    }
  }

  // Rows with such values may be meant so, or never read; products with them are refused when they are written.
  void leave_infinite_tables() {
    std::erase_if(placement_.tensors, [&](const BlockTensor& tensor) {
      const bool is_table = tensor.products.empty() && tensor.others.empty();
      if (!is_table || all_finite(model_.graph.initializers[tensor.initializer])) return false;
      for (const auto n : tensor.tables) leave(model_.graph.nodes[n], "its table holds NaN or infinite values");
      return true;
    });
  }

  // Blocks would come on top of a weight that stays, but where a table is all that reads it in float.
  bool leave_kept_weights(bool but_tables) {
    return 0 < std::erase_if(placement_.tensors, [&](const BlockTensor& tensor) {
             if (!has_other_readers(tensor, but_tables)) return false;
             std::set<std::size_t> nodes(tensor.products.begin(), tensor.products.end());
             nodes.insert(tensor.tables.begin(), tensor.tables.end());
             for (const auto& [node, input] : tensor.others) nodes.insert(node);
             for (const auto n : nodes)
               leave(model_.graph.nodes[n], "what else reads its weight, or is an output, keeps that in float");
             return true;
           });
  }

  // Whether what is stored beside weights that stay is more than what the other weights save.
  bool grows() const {
    double saved = 0;
    for (const auto& tensor : placement_.tensors) {
      const auto& weight = model_.graph.initializers[tensor.initializer];
      const auto stored = static_cast<double>(bytes_in_blocks(weight, tensor.rows, tensor.columns, tensor.format));
      saved -= stored * (!tensor.products.empty() && !tensor.tables.empty() && !shares(tensor) ? 2 : 1);
      if (!has_other_readers(tensor)) saved += static_cast<double>(weight.data.size());
    }
    return saved < 0;
  }

  std::string reason_against(const Node& node, const onnx::Tensor& weight, const Reading& reading, int bits) const {
    if (auto reason = node.is("Gemm") ? reason_against_gemm(node) : std::string(); !reason.empty()) return reason;
    const auto [rows, columns] = shape_of(weight, reading.by_columns);
    if (rows == 0 || columns == 0) return "its weight has no elements";
    const auto format = with_bits(bits);
    if (reading.is_table && rows % format.block_of(rows) != 0) return "blocks do not divide the entries of its table";
    if (auto reason = reason_against_blocks(node, blocks_.form, bits, columns); !reason.empty()) return reason;
    if (!makes_much_smaller(weight, rows, columns, format)) return "blocks would not make it much smaller";
    return {};
  }

  BlockFormat with_bits(int bits) const {
    auto format = format_;
    format.bits = bits;
    return format;
  }

  static std::pair<std::int64_t, std::int64_t> shape_of(const onnx::Tensor& weight, bool by_columns) {
    return by_columns ? std::pair(weight.dims[1], weight.dims[0]) : std::pair(weight.dims[0], weight.dims[1]);
  }

  void add_tensor(const Reading& reading, std::pair<std::int64_t, std::int64_t> shape, const BlockFormat& format) {
    placement_.tensors.push_back({.initializer = reading.initializer,
                                  .rows = shape.first,
                                  .columns = shape.second,
                                  .by_columns = reading.by_columns,
                                  .format = format,
                                  .type = model_.graph.initializers[reading.initializer].type,
                                  .products = {},
                                  .tables = {},
                                  .others = {}});
  }

  BlockTensor& tensor_for(const Reading& reading, int bits) {
    const auto key = std::pair(reading.initializer, reading.by_columns);
    const auto [found, is_new] = known_.try_emplace(key, placement_.tensors.size());
    if (is_new) {
      const auto& weight = model_.graph.initializers[reading.initializer];
      add_tensor(reading, shape_of(weight, reading.by_columns), with_bits(bits));
    }
    auto& tensor = placement_.tensors[found->second];
    if (bits != format_.bits) tensor.format.bits = bits;
    return tensor;
  }

  bool has_other_readers(const BlockTensor& tensor, bool but_tables = false) const {
    const auto& name = model_.graph.initializers[tensor.initializer].name;
    if (index_.is_output(name) || index_.is_captured(name)) return true;
    const auto readers = index_.consumers(name);
    return !std::all_of(readers.begin(), readers.end(), [&](int reader) {
      const auto& gone = placement_.transposes;
      const auto n = static_cast<std::size_t>(reader);
      return reads_in_blocks(reader, name) || std::binary_search(gone.begin(), gone.end(), n) ||
             (but_tables && model_.graph.nodes[n].is("Gather"));
    });
  }

  // A table's entries lie as the columns of a product do. ONNX Runtime 1.24 looks up wrong values where the zero points
  // of an entry do not fill bytes, and no version fuses a product that shares scales of whole channels.
  bool shares(const BlockTensor& tensor) const {
    constexpr std::int64_t kOpsetOfShapes = 5;  // of a Reshape that reads them
    if (tensor.products.empty() || tensor.tables.empty() || !tensor.format.is_plain()) return false;
    if (blocks_.form == WeightForm::qdq) return tensor.format.block > 0;
    const bool is_whole = tensor.format.symmetric || tensor.format.blocks_of(tensor.rows) * tensor.format.bits % 8 == 0;
    return is_whole && model_.opset() >= kOpsetOfShapes;
  }

  void leave(const Node& node, const std::string& reason) { left_.add(node, reason); }

  const onnx::Model& model_;
  const WeightsOnlyConfig& blocks_;
  graph::Index index_;
  std::vector<bool> depends_;  // on inputs, each node
  std::vector<bool> selected_;
  std::vector<std::optional<int>> named_;
  std::span<const int> planned_;
  BlockFormat format_;
  bool names_none_ = false, names_products_ = false, names_experts_ = false;  // the user does
  BlockPlacement placement_;
  std::map<std::pair<std::size_t, bool>, std::size_t> known_;  // initializer and order -> tensor
  LeftInFloat left_;
};

}  // namespace

BlockPlacement place_blocks(const onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                            std::span<const int> planned) {
  return Placer(model, config, blocks, planned).place();
}

std::size_t node_count(const BlockPlacement& placement) {
  std::set<std::size_t> nodes;
  for (const auto& tensor : placement.tensors) {
    nodes.insert(tensor.products.begin(), tensor.products.end());
    nodes.insert(tensor.tables.begin(), tensor.tables.end());
    for (const auto& [node, input] : tensor.others) nodes.insert(node);
  }
  return nodes.size();
}

void move_to_float32(BlockPlacement& placement, std::size_t nodes_before) {
  for (auto& node : placement.transposes) node += nodes_before;
  for (auto& tensor : placement.tensors) {
    tensor.type = onnx::DataType::float32;
    for (auto* nodes : {&tensor.products, &tensor.tables}) {
      for (auto& node : *nodes) node += nodes_before;
    }
    for (auto& [node, input] : tensor.others) node += nodes_before;
  }
}

}  // namespace detent::quantization
