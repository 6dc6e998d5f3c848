#include "exec/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/paths.h"
#include "graph/decisions.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "onnx/bodies.h"
#include "onnx/write.h"

namespace detent::exec {
namespace {

// Small tensors take part in the runtime's shape inference, which reads only inline data.
constexpr std::uint64_t kInlineBelow = 1024;

std::optional<onnx::ExternalLocation> place(const onnx::Tensor& tensor, const std::string& descriptors) {
  const auto& file = tensor.data.file();
  if (!file || tensor.data.size() < kInlineBelow) return std::nullopt;
#if !defined(__x86_64__) && !defined(__aarch64__)
  if (file->offset_of(tensor.data.bytes()) % 8 != 0) return std::nullopt;  // kernels there need aligned data
#endif
  if (!paths::names_open_files()) return std::nullopt;
  // By descriptor: another file may stand at the path by now.
  return onnx::ExternalLocation{fmt::format("{}/{}", descriptors, file->descriptor()),
                                file->offset_of(tensor.data.bytes())};
}

// An initializer keeps its name; the nodes that read it read the tap.
void tap_initializer(onnx::Model& model, graph::Index& index, const std::string& name, onnx::Node tap,
                     std::vector<onnx::Node>& taps) {
  const std::string tapped = index.fresh_name(name + "@tapped");
  tap.set_input(0, name);
  tap.set_output(0, tapped);
  for (const int reader : index.consumers(name)) {
    auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (node.inputs()[i] == name) node.set_input(i, tapped);
    }
  }
  taps.push_back(std::move(tap));
}

onnx::Node tap_node(graph::Index& index, const std::string& value, std::size_t number, std::string from,
                    std::string to) {
  return {kTapOperator,
          index.fresh_name(value + "@tap"),
          {std::move(from)},
          {std::move(to)},
          {onnx::Attribute::of_int("index", static_cast<std::int64_t>(number))},
          kTapDomain};
}

// Puts a tap between a node and what it reads first, in the body that the node is in. Returns where it goes: before the
// node.
std::pair<int, onnx::Node> tap_reader(onnx::Model& model, graph::Index& index, const std::string& reader,
                                      std::size_t number) {
  const int position = index.producer(reader);
  auto& node = model.graph.nodes[static_cast<std::size_t>(position)];
  const auto value = node.inputs()[0];
  const auto tapped = index.fresh_name(value + "@read");
  auto tap = tap_node(index, value, number, value, tapped);
  tap.set_body(node.body());
  node.set_input(0, tapped);
  return {position, std::move(tap)};
}

// Renames each tapped value X at its source to a new name and puts a tap between that name and X, so that everything
// that reads X stays as it is.
void insert_taps(onnx::Model& model, const std::vector<std::string>& taps, const std::vector<std::string>& readers) {
  graph::Index index(model);
  std::unordered_map<int, std::vector<onnx::Node>> before, after;  // by reading and by producing node
  std::vector<onnx::Node> first;                                   // taps of graph inputs
  for (std::size_t t = 0; t < taps.size(); ++t) {
    const std::string raw = index.fresh_name(taps[t] + "@raw");
    onnx::Node tap = tap_node(index, taps[t], t, raw, taps[t]);
    if (index.initializer(taps[t]) != graph::kNone) {
      tap_initializer(model, index, taps[t], std::move(tap), first);
      continue;
    }
    const int producer = index.producer(taps[t]);
    if (producer == graph::kNone) {
      for (auto& input : model.graph.inputs) {
        if (input.name == taps[t]) input = onnx::make_value_info(raw, input.type, input.shape);
      }
      first.push_back(std::move(tap));
      continue;
    }
    auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
    for (std::size_t o = 0; o < node.outputs().size(); ++o) {
      if (node.outputs()[o] == taps[t]) node.set_output(o, raw);
    }
    after[producer].push_back(std::move(tap));
  }
  // Behind the others, which look at what the nodes read in the model as it was.
  for (std::size_t r = 0; r < readers.size(); ++r) {
    auto [position, tap] = tap_reader(model, index, readers[r], taps.size() + r);
    before[position].push_back(std::move(tap));
  }
  std::vector<onnx::Node> nodes = std::move(first);
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    for (auto& tap : before[static_cast<int>(n)]) nodes.push_back(std::move(tap));
    nodes.push_back(std::move(model.graph.nodes[n]));
    for (auto& tap : after[static_cast<int>(n)]) nodes.push_back(std::move(tap));
  }
  model.graph.nodes = std::move(nodes);
  model.set_opset(kTapDomain, 1);
}

onnx::ValueInfo untyped_output(const std::string& name) {
  const onnx::RawField field = onnx::string_field(1, name);
  return {name, onnx::DataType::undefined, std::nullopt, field.wire};
}

// ONNX Runtime (seen with 1.28 and 1.31) finds the length of a sequence from static shapes as an int64, and then does
// not load GroupQueryAttention, which takes an int32. What comes out of an Abs it does not find beforehand.
void hide_lengths(onnx::Model& model) {
  constexpr std::size_t kTotalLength = 6;  // input
  const auto has_length = [](const onnx::Node& node) {
    return node.op_type() == "GroupQueryAttention" && node.domain() == "com.microsoft" &&
           node.inputs().size() > kTotalLength && !node.inputs()[kTotalLength].empty();
  };
  if (std::none_of(model.graph.nodes.begin(), model.graph.nodes.end(), has_length)) return;
  graph::Index index(model);
  std::vector<onnx::Node> nodes;
  for (auto& node : model.graph.nodes) {
    if (has_length(node)) {
      const auto& length = node.inputs()[kTotalLength];
      const auto hidden = index.fresh_name(length + "@hidden");
      nodes.emplace_back("Abs", hidden, std::vector{length}, std::vector{hidden});
      node.set_input(kTotalLength, hidden);
    }
    nodes.push_back(std::move(node));
  }
  model.graph.nodes = std::move(nodes);
}

// A run draws the numbers that it drew the last time; the model as it is written keeps drawing others.
void seed_draws(onnx::Model& model) {
  std::optional<graph::Index> index;
  float seed = 0;
  for (auto& node : model.graph.nodes) {
    const bool may_draw = graph::has_trait(node, graph::Trait::random) || node.is("Dropout");
    if (!may_draw || node.op_type() == onnx::kBodyInputs || node.attribute("seed") != nullptr) continue;
    if (!index) index.emplace(model);
    if (!graph::draws_numbers(model, *index, node)) continue;
    seed += 1;
    node.set_attribute(node.is("Dropout") ? onnx::Attribute::of_int("seed", static_cast<std::int64_t>(seed))
                                          : onnx::Attribute::of_float("seed", seed));
  }
}

void set_input_shapes(onnx::Model& model, const std::map<std::string, std::vector<std::int64_t>>& shapes) {
  for (auto& input : model.graph.inputs) {
    const auto found = shapes.find(input.name);
    if (found == shapes.end()) continue;
    std::vector<onnx::Dim> dims;
    for (const auto d : found->second) dims.push_back({d, ""});
    input = onnx::make_value_info(input.name, input.type, std::move(dims));
  }
}

}  // namespace

std::string emit(const onnx::Model& model, const EmitOptions& options) {
  onnx::Model copy = model;
  set_input_shapes(copy, options.input_shapes);
  seed_draws(copy);
  if (!options.input_shapes.empty()) {
    copy.graph.value_infos.clear();  // they may contradict the shapes given
    hide_lengths(copy);
  }
  if (!options.outputs.empty()) {
    copy.graph.outputs.clear();
    for (const auto& name : options.outputs) copy.graph.outputs.push_back(untyped_output(name));
  }
  if (!options.taps.empty() || !options.readers.empty()) insert_taps(copy, options.taps, options.readers);
  std::string bytes = onnx::encode_model(copy, [&](const auto& tensor) { return place(tensor, options.descriptors); });
  // Walking the messages has mapped a stretch of pages around every tensor; the runtime makes its own mapping.
  if (model.file) model.file->release(model.file->bytes());
  return bytes;
}

void name_nodes(onnx::Model& model) {
  std::unordered_set<std::string> taken;
  for (auto& node : model.graph.nodes) {
    if (!node.name().empty() && taken.insert(node.name()).second) continue;
    std::string name = node.name().empty() ? node.op_type() : node.name();
    for (std::size_t i = 2; !taken.insert(name).second; ++i) name = fmt::format("{}#{}", node.id(), i);
    node.set_name(std::move(name));
  }
}

onnx::Model constant_part(const onnx::Model& model, const std::vector<int>& nodes,
                          const std::vector<std::string>& outputs) {
  onnx::Model part = model;
  part.graph.nodes.clear();
  part.graph.inputs.clear();
  part.graph.value_infos.clear();
  part.graph.outputs.clear();
  std::unordered_set<std::string> read;
  for (const int n : nodes) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(n)];
    read.insert(node.inputs().begin(), node.inputs().end());
    part.graph.nodes.push_back(node);
  }
  std::erase_if(part.graph.initializers, [&](const auto& tensor) { return !read.contains(tensor.name); });
  for (const auto& name : outputs) part.graph.outputs.push_back(untyped_output(name));
  return part;
}

}  // namespace detent::exec
