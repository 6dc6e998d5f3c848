#include "quantization/blocks/block_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "detent/config.h"
#include "graph/index.h"
#include "graph/operators.h"
#include "graph/patterns.h"
#include "graph/traits.h"
#include "onnx/model.h"
#include "quantization/blocks/blocks.h"
#include "quantization/formats.h"
#include "quantization/placement/selection.h"
#include "quantization/weight_operators.h"

namespace detent::quantization {

namespace {

using onnx::Node;

// Four integers of 2 bits fill a byte: the runtime packs a product's weight as if each row of it began with one. Of
// bodies it folds no constants of 2 bits, which a product takes from its own graph alone.
std::string reason_against_blocks(const onnx::Node& node, WeightForm form, int bits, std::int64_t columns) {
  constexpr std::int64_t kInByte = 4;
  if (bits != 2) return {};
  if (graph::has_trait(node, graph::Trait::looks_up)) return "most versions of ONNX Runtime look up no 2 bits";
  if (form != WeightForm::qdq || !graph::is_product(node)) return {};
  if (columns % kInByte != 0)
    return "ONNX Runtime computes a DequantizeLinear of 2 bits wrongly where the outputs of its layer are no "
           "multiple of 4; --set weights-form=matmul-nbits stores it";
  if (node.body() != 0)
    return "ONNX Runtime loads no DequantizeLinear of 2 bits in a body; --set weights-form=matmul-nbits stores it";
  return {};
}

std::uint64_t bytes_in_blocks(const onnx::Tensor& weight, std::int64_t rows, std::int64_t columns,
                              const BlockFormat& format) {
  const auto blocks = static_cast<std::size_t>(format.blocks_of(rows));
  const std::size_t integers = packed_bytes(blocks * static_cast<std::size_t>(format.block_of(rows)), format.bits);
  const std::size_t value = *onnx::byte_count(weight.type, 1);
  const std::size_t scale = format.scales == ScaleType::as_weight ? value : 1;
  return static_cast<std::uint64_t>(columns) * (integers + blocks * scale);
}

// Half of float32, or three quarters of 16-bit floats.
bool makes_much_smaller(const onnx::Tensor& weight, std::int64_t rows, std::int64_t columns,
                        const BlockFormat& format) {
  const std::size_t value = *onnx::byte_count(weight.type, 1);
  const auto stored = bytes_in_blocks(weight, rows, columns, format);
  const auto size = weight.data.size();
  return value == sizeof(float) ? stored * 2 <= size : stored * 4 <= size * 3;
}

std::vector<std::string> notes_of_copies(const onnx::Model& model, const BlockTensor& tensor, WeightForm form) {
  std::vector<std::string> notes;
  const auto name = printable(model.graph.initializers[tensor.initializer].name);
  if (!tensor.products.empty() && !tensor.tables.empty() && !tensor.shared)
    notes.push_back(
        fmt::format("weight '{}' is stored twice, for layers and as a table, since {}", name,
                    !tensor.format.is_plain() ? "runtimes transpose no floats of 8 and 4 bits"
                    : form == WeightForm::qdq
                        ? "ONNX Runtime fuses no layer that shares scales of whole channels; blocks are stored once"
                        : "ONNX Runtime 1.24 looks up wrong values where zero points do not fill bytes; "
                          "--set weight-symmetric stores it once"));
  if (!tensor.products.empty() && tensor.stays)
    notes.push_back(fmt::format("weight '{}' stays in float as well, for other nodes that read it", name));
  std::map<int, std::size_t> in_body;
  for (const auto n : tensor.products) ++in_body[model.graph.nodes[n].body()];
  if (tensor.shared) --in_body[model.graph.nodes[tensor.products.front()].body()];
  std::size_t copies = 0;
  for (const auto& [body, count] : in_body) copies = std::max(copies, count);
  if (form == WeightForm::qdq && copies > 1)
    notes.push_back(fmt::format(
        "weight '{}' has a DequantizeLinear with tensors of its own for each of {} layers, since ONNX Runtime fuses no "
        "other; in a data file (--set external-data-threshold) they share their bytes",
        name, copies));
  return notes;
}

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

// That read them.
std::size_t node_count(const std::vector<BlockTensor>& tensors) {
  std::set<std::size_t> nodes;
  for (const auto& tensor : tensors) {
    for (const auto n : tensor.readers()) nodes.insert(n);
  }
  return nodes.size();
}

class Placer {
 public:
  Placer(const onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
         std::span<const int> planned, bool takes_tables)
      : model_(model),
        config_(config),
        blocks_(blocks),
        index_(model),
        depends_(graph::depends_on_input(model, index_)),
        selected_(selection(model, config, blocks, takes_tables)),
        named_(named_bits(model, blocks)),
        planned_(planned),
        takes_tables_(takes_tables) {
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

  Placement place() {
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
    if (!takes_tables_ && grows()) return Placer(model_, config_, blocks_, planned_, true).place();
    while (grows() && leave_kept_weights(false)) find_bypassed();
    for (auto& tensor : placement_.tensors) {
      tensor.stays = has_other_readers(tensor);
      tensor.shared = shares(tensor);
      note_format(tensor);
      for (auto& note : notes_of_copies(model_, tensor, blocks_.form)) placement_.notes.push_back(std::move(note));
    }
    placement_.quantized = node_count(placement_.tensors);
    placement_.in_float = left_.count();
    for (auto& note : left_.notes()) placement_.notes.push_back(std::move(note));
    return std::move(placement_);
  }

 private:
  // Tables are read by GatherBlockQuantized. After a DequantizeLinear a runtime would make all of a table float at each
  // run, so there they stay as they are unless they are named, or the file would not shrink.
  static std::vector<bool> selection(const onnx::Model& model, QuantConfig config, const WeightsOnlyConfig& blocks,
                                     bool takes_tables) {
    if (config.op_types.empty()) {
      config.op_types = {"MatMul", "Gemm"};
      if (takes_tables || blocks.form == WeightForm::matmul_nbits) config.op_types.emplace_back("Gather");
      if (blocks.form == WeightForm::matmul_nbits) {
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
    if (node.inputs().size() < 2 || graph::has_trait(node, graph::Trait::looks_up)) return;
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
    const bool table = graph::has_trait(node, graph::Trait::looks_up);
    if (node.inputs().size() < 2) return std::nullopt;
    const auto& value = node.inputs()[table ? 0 : 1];
    const auto* transpose = table ? nullptr : transpose_of(value);
    const int at = index_.initializer(transpose != nullptr ? transpose->inputs()[0] : value);
    if (at == graph::kNone) return std::nullopt;
    const auto& weight = model_.graph.initializers[static_cast<std::size_t>(at)];
    if (weight.dims.size() != 2 || !is_real(weight.type)) return std::nullopt;
    if (table && node.int_or("axis", 0) != 0) return std::nullopt;
    const bool transposed = (transpose != nullptr) != (node.int_or("transB", 0) != 0);
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
    const bool as_weight = inputs[graph::has_trait(node, graph::Trait::looks_up) ? 0 : 1] == value;
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
             const auto readers = tensor.readers();
             for (const auto n : std::set(readers.begin(), readers.end()))
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
    const auto format = format_of(reading, bits);
    constexpr std::int64_t kOpsetOfSlice = 10;  // whose bounds are inputs
    if (reading.is_table && rows % format.block_of(rows) != 0 && model_.opset() < kOpsetOfSlice)
      return "blocks do not divide the entries of its table, and operator set 10 is the first whose Slice cuts them";
    if (auto reason = reason_against_blocks(node, blocks_.form, format.bits, columns); !reason.empty()) return reason;
    if (!makes_much_smaller(weight, rows, columns, format)) return "blocks would not make it much smaller";
    return {};
  }

  BlockFormat with_bits(int bits) const {
    auto format = format_;
    format.bits = bits;
    return format;
  }

  // What a table and a product both can read: otherwise the table stays in float, and the product's blocks come on top.
  BlockFormat format_of(const Reading& reading, int bits) const {
    constexpr std::int64_t kShortest = 16;
    auto format = with_bits(bits);
    if (!is_tied(reading)) return format;
    const auto rows = shape_of(model_.graph.initializers[reading.initializer], true).first;
    auto block = format.block;
    while (block > kShortest && block % 2 == 0 && rows % block != 0) block /= 2;
    if (block > 0 && rows % block == 0) format.block = block;
    if (format.is_plain() && format.bits == 2 && planned_.empty()) format.bits = 4;
    return format;
  }

  // Whether a table that is to be in blocks is the weight of a product as well, and of nothing else.
  bool is_tied(const Reading& reading) const {
    if (!reading.by_columns) return false;
    bool table = false, product = !reading.is_table;
    const auto direct = index_.consumers(model_.graph.initializers[reading.initializer].name);
    std::vector<int> readers(direct.begin(), direct.end());
    for (std::size_t at = 0; at < readers.size(); ++at) {
      const auto n = static_cast<std::size_t>(readers[at]);
      const auto& node = model_.graph.nodes[n];
      if (node.is("Transpose")) {
        for (const int reader : index_.consumers(node.outputs()[0])) readers.push_back(reader);
        continue;
      }
      const auto read = selected_[n] && !named_[n] ? reading_of(node) : std::nullopt;
      if (!read || !read->by_columns) continue;
      (read->is_table ? table : product) = true;
    }
    return table && product;
  }

  void note_format(const BlockTensor& tensor) {
    const bool is_other = tensor.format.block != format_.block || tensor.format.bits > format_.bits;
    if (!is_other || tensor.tables.empty() || tensor.products.empty() || !planned_.empty()) return;
    placement_.notes.push_back(
        fmt::format("'{}' is a table and a layer's weight: {} bits in blocks of {}, which both can read",
                    model_.graph.initializers[tensor.initializer].name, tensor.format.bits, tensor.format.block));
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
      add_tensor(reading, shape_of(weight, reading.by_columns), format_of(reading, bits));
    }
    auto& tensor = placement_.tensors[found->second];
    if (bits != format_.bits) tensor.format = format_of(reading, bits);
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
             (but_tables && graph::has_trait(model_.graph.nodes[n], graph::Trait::looks_up));
    });
  }

  // A table's entries lie as the columns of a product do. ONNX Runtime 1.24 looks up wrong values where the zero points
  // of an entry do not fill bytes, and no version fuses a product that shares scales of whole channels.
  bool shares(const BlockTensor& tensor) const {
    constexpr std::int64_t kOpsetOfShapes = 5;  // of a Reshape that reads them
    if (tensor.products.empty() || tensor.tables.empty() || !tensor.format.is_plain()) return false;
    if (blocks_.form == WeightForm::qdq) return tensor.format.block > 0 && tensor.whole_rows() == tensor.rows;
    const bool is_whole = tensor.format.symmetric || tensor.format.blocks_of(tensor.rows) * tensor.format.bits % 8 == 0;
    return is_whole && model_.opset() >= kOpsetOfShapes;
  }

  void leave(const Node& node, const std::string& reason) { left_.add(node, reason); }

  const onnx::Model& model_;
  const QuantConfig& config_;
  const WeightsOnlyConfig& blocks_;
  graph::Index index_;
  std::vector<bool> depends_;  // on inputs, each node
  std::vector<bool> selected_;
  std::vector<std::optional<int>> named_;
  std::span<const int> planned_;
  bool takes_tables_;
  BlockFormat format_;
  bool names_none_ = false, names_products_ = false, names_experts_ = false;  // the user does
  Placement placement_;
  std::map<std::pair<std::size_t, bool>, std::size_t> known_;  // initializer and order -> tensor
  LeftInFloat left_;
};

// NODE=BITS: 2, 4 or 8 bits, or float: 0.
struct NodeBits {
  std::string pattern;
  int bits = 0;
};

NodeBits parse_node_bits(const std::string& text) {
  const auto equals = text.rfind('=');
  const auto bits = equals == std::string::npos ? std::string() : text.substr(equals + 1);
  if (equals == 0 || (bits != "2" && bits != "4" && bits != "8" && bits != "float"))
    throw usage_error(fmt::format("--set node-bits: '{}' is not a node with its bits", text),
                      "give NODE=2, =4, =8 or =float");
  return {text.substr(0, equals), bits == "float" ? 0 : bits.front() - '0'};
}

}  // namespace

void refuse_absent_weights(const onnx::Model& model) {
  for (const auto& node : model.graph.nodes) {
    const auto* row = weight_operator(node);
    if (row != nullptr && node.inputs().size() <= row->first_weight)
      throw bad_input(fmt::format("{} has {}, and its weight would be number {}", node.label(),
                                  count_with_noun(node.inputs().size(), "input"), row->first_weight + 1));
  }
}

Placement place_blocks(const onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                       std::span<const int> planned) {
  return Placer(model, config, blocks, planned, false).place();
}

void move_to_float32(Placement& placement, std::size_t nodes_before) {
  for (auto& node : placement.transposes) node += nodes_before;
  for (auto& tensor : placement.tensors) {
    tensor.type = onnx::DataType::float32;
    for (auto* nodes : {&tensor.products, &tensor.tables}) {
      for (auto& node : *nodes) node += nodes_before;
    }
    for (auto& [node, input] : tensor.others) node += nodes_before;
  }
}

std::vector<std::optional<int>> named_bits(const onnx::Model& model, const WeightsOnlyConfig& blocks) {
  std::vector<std::optional<int>> bits(model.graph.nodes.size());
  for (const auto& entry : blocks.node_bits) {
    const auto parsed = parse_node_bits(entry);
    const NamePattern pattern(parsed.pattern);
    bool any = false;
    for (std::size_t n = 0; n < bits.size(); ++n) {
      if (!pattern.matches(model.graph.nodes[n].id())) continue;
      bits[n] = parsed.bits;
      any = true;
    }
    if (!any)
      throw usage_error(
          fmt::format("--set node-bits: no node of '{}' matches '{}'", model.path.string(), parsed.pattern),
          "names are listed by: detent inspect MODEL; a regular expression starts with '^'");
  }
  return bits;
}

namespace {

// Which input of a normalization is its gain and which its bias; kNone: there is none.
struct NormInputs {
  int gain = graph::kNone, bias = graph::kNone;
};

std::optional<NormInputs> norm_inputs(const Node& node) {
  const auto& norm = graph::operator_of(node).norm;
  if (norm.gain == 0) return std::nullopt;
  return NormInputs{norm.gain, norm.beta == 0 ? graph::kNone : norm.beta};
}

class Folds {
 public:
  Folds(const onnx::Model& model, const Placement& placement) : model_(model), placement_(placement), index_(model) {
    for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
      for (const auto n : placement.tensors[t].products) tensor_of_[n] = t;
    }
  }

  std::vector<InputFold> find() {
    std::vector<InputFold> folds;
    std::set<std::string> seen;
    for (const auto& tensor : placement_.tensors) {
      if (tensor.products.empty()) continue;
      const auto& value = model_.graph.nodes[tensor.products.front()].inputs()[0];
      if (!seen.insert(value).second) continue;
      if (auto fold = fold_of(value, tensor.rows)) folds.push_back(std::move(*fold));
    }
    return folds;
  }

 private:
  std::optional<InputFold> fold_of(const std::string& value, std::int64_t width) const {
    if (index_.is_output(value) || index_.is_captured(value)) return std::nullopt;
    InputFold fold{value, {}, {}, {}};
    std::set<std::size_t> tensors;
    for (const int reader : index_.consumers(value)) {
      const auto n = static_cast<std::size_t>(reader);
      const auto found = tensor_of_.find(n);
      const auto& inputs = model_.graph.nodes[n].inputs();
      if (found == tensor_of_.end() || std::count(inputs.begin(), inputs.end(), value) != 1) return std::nullopt;
      tensors.insert(found->second);
    }
    for (const auto t : tensors) {
      const auto& tensor = placement_.tensors[t];
      const bool ours = std::all_of(tensor.products.begin(), tensor.products.end(),
                                    [&](std::size_t n) { return model_.graph.nodes[n].inputs()[0] == value; });
      if (!ours || !belongs_to_products(tensor) || tensor.rows != width) return std::nullopt;
      fold.tensors.push_back(t);
    }
    if (!divide(value, width, fold)) return std::nullopt;
    return fold;
  }

  static bool belongs_to_products(const BlockTensor& tensor) {
    return tensor.tables.empty() && tensor.others.empty() && !tensor.stays && !tensor.on_grids &&
           tensor.type == onnx::DataType::float32;
  }

  // Adds to the fold what has to be divided so that the value is.
  bool divide(const std::string& value, std::int64_t width, InputFold& fold) const {
    const int producer = index_.producer(value);
    if (producer == graph::kNone) return false;
    const auto n = static_cast<std::size_t>(producer);
    const auto& node = model_.graph.nodes[n];
    if (node.outputs()[0] != value) return false;
    if (const auto norm = norm_inputs(node)) return divide_norm(node, *norm, width, fold);
    if (node.is("Relu")) return divide_alone(node.inputs()[0], width, fold);
    if (node.is("Add")) return divide_sum(node, width, fold);
    if (node.is("Mul")) return divide_product_of_values(node, width, fold);
    if (graph::is_matrix_product(node)) return divide_columns(n, width, fold);
    return false;
  }

  // The same for a value that nothing else may read.
  bool divide_alone(const std::string& value, std::int64_t width, InputFold& fold) const {
    if (index_.is_output(value) || index_.is_captured(value) || index_.consumers(value).size() != 1) return false;
    const auto& inputs = model_.graph.nodes[static_cast<std::size_t>(index_.consumers(value).front())].inputs();
    return std::count(inputs.begin(), inputs.end(), value) == 1 && divide(value, width, fold);
  }

  bool divide_norm(const Node& node, const NormInputs& norm, std::int64_t width, InputFold& fold) const {
    const auto axis = node.int_or("axis", -1);
    if (axis != -1) return false;
    const auto has = [&](int input) {
      return input != graph::kNone && static_cast<std::size_t>(input) < node.inputs().size() &&
             !node.inputs()[static_cast<std::size_t>(input)].empty();
    };
    if (!has(norm.gain) || !divide_constant(node.inputs()[static_cast<std::size_t>(norm.gain)], width, fold))
      return false;
    return !has(norm.bias) || divide_constant(node.inputs()[static_cast<std::size_t>(norm.bias)], width, fold);
  }

  bool divide_sum(const Node& node, std::int64_t width, InputFold& fold) const {
    for (const std::size_t constant : {1, 0}) {
      const auto trial = fold;
      if (divide_constant(node.inputs()[constant], width, fold) &&
          divide_alone(node.inputs()[1 - constant], width, fold))
        return true;
      fold = trial;
    }
    return false;
  }

  // One of the two is divided.
  bool divide_product_of_values(const Node& node, std::int64_t width, InputFold& fold) const {
    for (const std::size_t input : {1, 0}) {
      const auto trial = fold;
      if (divide_constant(node.inputs()[input], width, fold) || divide_alone(node.inputs()[input], width, fold))
        return true;
      fold = trial;
    }
    return false;
  }

  bool divide_columns(std::size_t n, std::int64_t width, InputFold& fold) const {
    const auto found = tensor_of_.find(n);
    if (found == tensor_of_.end() || fold.product) return false;
    const auto& tensor = placement_.tensors[found->second];
    if (!belongs_to_products(tensor) || tensor.products.size() != 1 || tensor.columns != width) return false;
    if (std::count(fold.tensors.begin(), fold.tensors.end(), found->second) > 0) return false;
    const auto& inputs = model_.graph.nodes[n].inputs();
    if (inputs.size() > 2 && !inputs[2].empty() && !divide_constant(inputs[2], width, fold)) return false;
    fold.product = found->second;
    return true;
  }

  // A vector along the last axis.
  bool divide_constant(const std::string& name, std::int64_t width, InputFold& fold) const {
    const int at = index_.initializer(name);
    if (at == graph::kNone || index_.is_output(name) || index_.is_captured(name)) return false;
    if (index_.consumers(name).size() != 1 || width < 2) return false;
    const auto& inputs = model_.graph.nodes[static_cast<std::size_t>(index_.consumers(name).front())].inputs();
    if (std::count(inputs.begin(), inputs.end(), name) != 1) return false;
    const auto& tensor = model_.graph.initializers[static_cast<std::size_t>(at)];
    if (tensor.type != onnx::DataType::float32 || tensor.count() != width || tensor.dims.back() != width) return false;
    fold.constants.push_back(static_cast<std::size_t>(at));
    return true;
  }

  const onnx::Model& model_;
  const Placement& placement_;
  graph::Index index_;
  std::map<std::size_t, std::size_t> tensor_of_;  // by product
};

void multiply(std::vector<float>& all, std::span<const float> factors, bool inverse) {
  if (all.empty()) all.assign(factors.size(), 1.0F);
  for (std::size_t i = 0; i < factors.size(); ++i) all[i] = inverse ? all[i] / factors[i] : all[i] * factors[i];
}

}  // namespace

std::vector<InputFold> input_folds(const onnx::Model& model, const Placement& placement) {
  return Folds(model, placement).find();
}

void apply_fold(const InputFold& fold, std::span<const float> factors, onnx::Model& model, Placement& placement) {
  for (const auto t : fold.tensors) multiply(placement.tensors[t].row_factors, factors, false);
  if (fold.product) multiply(placement.tensors[*fold.product].column_factors, factors, true);
  for (const auto constant : fold.constants) {
    auto& tensor = model.graph.initializers[constant];
    std::vector<float> values;
    onnx::for_each_float(tensor.data, [&](std::span<const float> some, std::int64_t) {
      values.insert(values.end(), some.begin(), some.end());
    });
    for (std::size_t i = 0; i < values.size(); ++i) values[i] /= factors[i];
    tensor = onnx::make_tensor(tensor.name, tensor.type, tensor.dims, std::span<const float>(values));
  }
}

}  // namespace detent::quantization
