#include "run/model/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/presets.h"
#include "config/targets.h"
#include "graph/rewrites/product_forms.h"
#include "graph/rewrites/unfold.h"
#include "quantization/floats/float_placement.h"
#include "quantization/formats.h"
#include "quantization/placement/selection.h"
#include "run/comparison/outcome.h"
#include "run/model/spared_nodes.h"

namespace detent::run {
namespace fs = std::filesystem;
namespace {

void append(std::vector<std::string>& all, graph::Notes more) {
  for (auto& line : more) all.push_back(std::move(line));
}

void note_carried_parts(const onnx::Model& model, std::vector<std::string>& notes) {
  for (const auto& node : model.graph.nodes) {
    for (const auto& a : node.attributes()) {
      if (!graph::is_body(a)) continue;
      notes.push_back(fmt::format("{}: its body '{}' stays in float, unchanged", node.label(), a.name()));
    }
  }
  for (const auto& name : model.functions)
    notes.push_back(fmt::format("model-local function {} stays in float, unchanged", name));
}

// The runtime would write what such a node makes of its running mean and variance into the samples that they come from.
void refuse_training(const onnx::Model& model) {
  const graph::Index index(model);
  for (const auto& node : model.graph.nodes) {
    if (!node.is("BatchNormalization") || node.int_or("training_mode", 0) == 0 || node.outputs().size() < 2) continue;
    const auto& inputs = node.inputs();
    if (inputs.size() < 5 ||
        (index.initializer(inputs[3]) != graph::kNone && index.initializer(inputs[4]) != graph::kNone))
      continue;
    throw bad_input(fmt::format("model '{}': {} is in training mode, and its running mean and variance are inputs",
                                model.path.string(), node.label()),
                    "export the model for inference");
  }
}

// Less work between the products, where the runtime would do it in float: the fewer operators are left, the more of the
// chains stays in integers.
void fuse_for_runtime(Prepared& prepared, bool gates, const graph::Store& store) {
  auto& model = prepared.model;
  auto& types = prepared.types;
  auto& notes = prepared.notes;
  append(notes, graph::remove_neutral_arithmetic(model, types));
  append(notes, graph::plain_gemms(model, store));
  append(notes, graph::fold_after_products(model, types, store));
  append(notes, graph::uniform_prelus(model));
  if (gates) {
    append(notes, graph::compose_hard_sigmoids(model, types));
    append(notes, graph::take_hard_swishes_apart(model, types));
    append(notes, graph::compose_gelus(model, types));
  }
  append(notes, graph::fold_before_products(model, types, store));
}

graph::Notes rewrite_for_target(onnx::Model& model, const graph::ValueTypes& types, const QuantConfig& config,
                                const fs::path& work_dir) {
  const auto& target = config::target(config);
  graph::Notes notes;
  if (target.pooled_strides) append(notes, graph::pool_before_strided_points(model));
  if (target.axis_for_few_rows && config::preset(config).quantizes)
    append(notes, graph::add_axis_for_few_rows(model, types, file_store(work_dir, "axis")));
  if (target.all_operators) append(notes, graph::einsums_to_matmuls(model, types, file_store(work_dir, "einsum")));
  if (target.all_operators) append(notes, graph::squares_to_mul(model));
  // Sums with zeros and products with ones: the HTP computes some networks with them wrongly.
  if (target.all_operators) append(notes, graph::remove_neutral_arithmetic(model, types));
  if (!target.htp_rewrites) return notes;
  append(notes, graph::compose_gelus(model, types));
  if (quantization::is_16_bit(config.activation_type)) append(notes, graph::part_prelus(model, types));
  append(notes, graph::batch_norms_as_convolutions(model, types, file_store(work_dir, "norm")));
  append(notes, graph::rewrite_for_htp(model, types, file_store(work_dir, "form")));
  return notes;
}

bool turns_matrix(const onnx::Node& node, const onnx::Tensor& result) {
  const auto* order = node.attribute("perm");
  return node.is("Transpose") && result.dims.size() == 2 &&
         (order == nullptr || order->as_ints() == std::vector<std::int64_t>{1, 0});
}

// Constants that nodes make of others.
std::size_t compute(Prepared& prepared, const std::vector<int>& nodes, const exec::Runtime& runtime) {
  if (nodes.empty()) return 0;
  auto& model = prepared.model;
  graph::merge_equal_constants(model, nodes);
  auto results = exec::compute_constants(runtime, model, nodes);
  std::unordered_map<std::string, const onnx::Node*> makers;
  for (const int n : nodes) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(n)];
    for (const auto& output : node.outputs()) makers[output] = &node;
  }
  for (const auto& result : results) {
    auto dims = result.dims;
    std::sort(dims.begin(), dims.end());
    prepared.shapes_stored_once.insert(std::move(dims));
    if (const auto& maker = *makers.at(result.name); turns_matrix(maker, result))
      prepared.transposed[result.name] = maker.inputs().front();
  }
  prepared.folded.add(model, nodes, results);
  graph::replace_by_constants(model, nodes, std::move(results));
  graph::take_constant_branches(model);
  const graph::Index index(model);
  std::erase_if(prepared.transposed, [&](const auto& pair) { return index.initializer(pair.second) == graph::kNone; });
  return nodes.size();
}

// Where shapes are static: on NPUs what computes them would be left to the CPU, and OpenVINO does not load a Gather of
// quantized rows whose indices follow from shapes. What is computed from shapes tells more of them.
std::size_t compute_static(Prepared& prepared, const exec::Runtime& runtime) {
  constexpr std::uint64_t kSmall = std::uint64_t{4} << 10, kSmallOfShapes = std::uint64_t{256} << 10;
  std::size_t count = 0;
  auto small = kSmall;
  while (true) {
    const auto folded = graph::fold_shapes(prepared.model, prepared.types);
    if (folded > 0) small = kSmallOfShapes;
    const auto computed = compute(prepared, graph::constant_nodes(prepared.model, prepared.types, small), runtime);
    if (folded + computed == 0) return count;
    count += folded + computed;
    prepared.types = exec::infer_value_types(runtime, prepared.model);
  }
}

// Returns whether there were any, so that types have to be found again.
bool compute_constants(Prepared& prepared, const QuantConfig& config, const exec::Runtime& runtime) {
  auto& model = prepared.model;
  // ONNX Runtime itself does the same when it loads a model.
  const auto count = config::target(config).is_ort_cpu
                         ? compute(prepared, graph::constant_nodes(model, prepared.types), runtime)
                         : compute_static(prepared, runtime);
  if (count > 0)
    prepared.notes.push_back(
        fmt::format("computed and replaced by their results: {}", count_with_noun(count, "constant node")));
  return count > 0;
}

void find_infinite(Prepared& prepared, const QuantConfig& config) {
  prepared.infinite = quantization::infinite_values(prepared.model);
  if (prepared.infinite.empty() || !config::preset(config).quantizes || config.activations != Activations::fixed)
    return;
  prepared.notes.push_back(fmt::format("'{}' and what is made with it stay in float: it holds infinite values or NaN",
                                       printable(*prepared.infinite.begin())));
}

void refuse_dynamic_inputs(const onnx::Model& model, const QuantConfig& config) {
  const auto dynamic = graph::dynamic_inputs(model);
  if (dynamic.empty()) return;
  const auto& input = *dynamic.front();
  std::string example;
  for (const auto& dim : input.shape.value_or(std::vector<onnx::Dim>(4, onnx::Dim{})))
    example += fmt::format("{}{}", example.empty() ? "" : "x", dim.value >= 0 ? dim.value : example.empty() ? 1 : 128);
  throw usage_error(fmt::format("--target {} needs static shapes, and input '{}' of '{}' is {}", config.target,
                                input.name, model.path.string(), graph::shape_text(input)),
                    fmt::format("give its shape, as in --shape {}:{}", input.name, example));
}

// Nodes that the user named are taken as they are.
graph::Notes part_products(onnx::Model& model, const graph::ValueTypes& types, const QuantConfig& config,
                           const fs::path& work_dir) {
  if (is_float(config.activation_type) || config.formats_given) return {};
  std::vector<quantization::NamePattern> named;
  for (const auto* names : {&config.nodes, &config.exclude_nodes})
    for (const auto& name : *names) named.emplace_back(name);
  const auto stays = [&](const onnx::Node& node) {
    return std::any_of(named.begin(), named.end(), [&](const auto& name) { return name.matches(node.id()); });
  };
  return graph::part_products(model, types, stays, file_store(work_dir, "part"));
}

// ONNX Runtime 1.31 draws random numbers in opsets before 22 alone; from there on convolutions have bfloat16.
void refuse_lost_draws(const onnx::Model& model, const QuantConfig& config, const exec::Runtime& runtime,
                       std::int64_t given) {
  const graph::Index index(model);
  const auto& nodes = model.graph.nodes;
  const auto drawing = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const auto& node) { return graph::draws_numbers(model, index, node); });
  if (drawing == nodes.end()) return;
  try {
    exec::infer_value_types(runtime, model);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    const bool by_target = config.target != QuantConfig{}.target;
    throw bad_input(
        fmt::format("{} raises '{}' from opset {} to {}, and this ONNX Runtime draws no numbers there for {} '{}'",
                    by_target ? fmt::format("--target {}", config.target) : "--float bf16", model.path.string(), given,
                    model.opset(), drawing->op_type(), printable(drawing->name())),
        "make what it draws an input of the model, or choose float16 or block floats");
  }
}

// On ARM, ONNX Runtime (1.31.1) turns a MaxPool of float16 into one whose channels come last, which has a kernel from
// this opset on; without it the model does not load.
std::int64_t opset_of_pools(const onnx::Model& model) {
  constexpr std::int64_t kSincePoolOfChannelsLast = 12;
  const auto& nodes = model.graph.nodes;
  const bool pools = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("MaxPool"); });
  return pools ? kSincePoolOfChannelsLast : 0;
}

std::vector<std::string> ids_of(const std::vector<onnx::Node>& nodes) {
  std::vector<std::string> ids;
  for (const auto& node : nodes) ids.push_back(node.id());
  return ids;
}

// Of the user's own names, those that only nodes have which are no longer there. What never was there is refused where
// nodes are selected.
void refuse_folded(const Prepared& prepared, const std::vector<std::string>& given, const QuantConfig& config) {
  const auto left = ids_of(prepared.model.graph.nodes), computed = ids_of(prepared.folded.nodes);
  const auto find = [](const std::vector<std::string>& ids, const quantization::NamePattern& pattern) {
    return std::find_if(ids.begin(), ids.end(), [&](const auto& id) { return pattern.matches(id); });
  };
  for (const auto& [names, option] :
       {std::pair(&config.nodes, "--nodes"), {&config.exclude_nodes, "--exclude-nodes"}}) {
    for (const auto& name : *names) {
      const quantization::NamePattern pattern(name);
      const auto found = find(given, pattern);
      if (found == given.end() || find(left, pattern) != left.end()) continue;
      const bool is_constant = find(computed, pattern) != computed.end();
      throw usage_error(
          fmt::format("{}: '{}' of '{}' {}", option, printable(*found), prepared.model.path.string(),
                      is_constant ? "was folded: all that it reads is constant, and its result is stored"
                                  : "was folded into its neighbours, or left out, before nodes are selected"),
          fmt::format("leave it out of {}, as nothing of it is quantized by itself", option));
    }
  }
}

// What no type has to be known for.
void put_in_order(onnx::Model& model, const QuantConfig& config, const graph::UnfoldLimits& limits,
                  std::vector<std::string>& notes) {
  graph::unfold(model, limits);
  note_carried_parts(model, notes);
  append(notes, graph::lift_constants(model));
  append(notes, graph::drop_initializer_inputs(model));
  graph::sort_topologically(model);
  refuse_training(model);
  if (!config.input_shapes.empty()) append(notes, graph::fix_input_shapes(model, config.input_shapes));
  if (config::target(config).static_shapes) refuse_dynamic_inputs(model, config);
}

// What the format, the float type and the target need.
std::int64_t opset_for(const onnx::Model& model, const QuantConfig& config) {
  constexpr std::int64_t kSinceLayerNorm = 17;
  std::int64_t opset = quantization::needed_opset(config);
  if (config.float_type == FloatType::bfloat16)
    opset = std::max(opset, quantization::opset_of_floats(model, config.float_type));
  if (config.float_type == FloatType::float16) opset = std::max(opset, opset_of_pools(model));
  if (config::target(config).htp_rewrites && graph::has_instance_norm(model)) opset = std::max(opset, kSinceLayerNorm);
  return opset;
}

// Returns whether types have to be found again.
bool rewrite_for_integers(Prepared& prepared, const QuantConfig& config, const fs::path& work_dir) {
  auto& model = prepared.model;
  auto& notes = prepared.notes;
  append(notes, graph::clamp_masks(model, file_store(work_dir, "mask")));
  if (config::target(config).all_operators) append(notes, graph::remove_softmax_guards(model));
  const auto before = notes.size();
  append(notes, graph::resize_all_axes(model, prepared.types));
  append(notes, graph::pad_before_means(model));
  append(notes, part_products(model, prepared.types, config, work_dir));
  return notes.size() > before;
}

}  // namespace

// Files are as cheap to hold as the model's own weights: mapped, not resident.
graph::Store file_store(const fs::path& directory, std::string name) {
  return [directory, name = std::move(name), count = 0](std::vector<std::byte> bytes) mutable {
    constexpr std::size_t kKeepInMemory = 4096;
    if (bytes.size() <= kKeepInMemory) return onnx::TensorData::owned(std::move(bytes));
    const fs::path path = directory / fmt::format("{}-{}.bin", name, count++);
    const UniqueFd fd = create_working_file(path);
    write_all(fd.get(), bytes, path);
    const auto file = MappedFile::open(path, "working file");
    return onnx::TensorData::mapped(file, file->bytes());
  };
}

Prepared prepare(onnx::Model original, const QuantConfig& config, const exec::Runtime& runtime,
                 const fs::path& work_dir, profile::Profiler& profiler, const graph::UnfoldLimits& limits) {
  const bool names_nodes = !config.nodes.empty() || !config.exclude_nodes.empty();
  const auto first_ids = names_nodes ? ids_of(original.graph.nodes) : std::vector<std::string>();
  Prepared prepared{std::move(original), {}, {}};
  auto& model = prepared.model;
  auto& types = prepared.types;
  auto& notes = prepared.notes;
  put_in_order(model, config, limits, notes);
  const bool raises = config.float_type != FloatType::keep;
  if (raises) append(notes, graph::half_floats_to_float32(model, file_store(work_dir, "float"), config.keep_io_types));
  const auto said = config.input_shapes.empty() ? model.graph.outputs : graph::take_output_shapes(model);
  {
    const auto scope = profiler.scope(profile::Step::float_model_validation);
    types = exec::infer_value_types(runtime, model);
  }
  graph::idle_casts_to_identities(model, types);
  const auto opset = opset_for(model, config);
  const auto given = model.opset();
  const bool upgrade = given < opset;
  if (upgrade) append(notes, graph::upgrade_opset(model, types, std::max(opset, graph::kUpgradedOpset)));
  if (upgrade && config.float_type == FloatType::bfloat16) refuse_lost_draws(model, config, runtime, given);
  graph::resolve_cast_likes(model, types);
  append(notes, graph::remove_identities(model));
  if (config::preset(config).quantizes) {
    const auto products = graph::einsums_with_weights(model);
    if (!products.empty()) types = exec::infer_value_types(runtime, model);
    append(notes, products);
  }
  bool changed = compute_constants(prepared, config, runtime);
  const auto pads = graph::pad_all_axes(model, types);
  changed = changed || !pads.empty();
  append(notes, pads);
  append(notes, graph::fold_batch_norm(model, file_store(work_dir, "weight")));
  if (config::preset(config).quantizes && config.activations == Activations::fixed)
    changed = rewrite_for_integers(prepared, config, work_dir) || changed;
  graph::drop_unused_initializers(model);
  const auto forms = rewrite_for_target(model, types, config, work_dir);
  append(notes, forms);

  changed = changed || upgrade || !forms.empty();
  if (changed) types = exec::infer_value_types(runtime, model);
  if (!config.input_shapes.empty()) graph::give_output_shapes(model, types, said);
  const bool fuses_for_runtime = config::preset(config).fuses_for_runtime;
  const bool gates = config::writes_hard_sigmoids(config);
  if (fuses_for_runtime) fuse_for_runtime(prepared, gates, file_store(work_dir, "folded"));
  graph::add_initializers(model, types);
  find_infinite(prepared, config);
  if (config.activations == Activations::fixed) append(notes, leave_scans_of_unknown_rank(prepared));
  append(notes, decision_notes(model, graph::find_decisions(model, types, graph::DecisionKind::all)));
  if (config::target(config).explicit_convolutions) graph::complete_convolutions(model);
  if (gates && !quantization::is_16_bit(config.activation_type))
    prepared.integer_gates = quantization::all_gates(model, graph::Index(model));
  if (names_nodes) refuse_folded(prepared, first_ids, config);
  return prepared;
}

quantization::Placement place_qdq_pairs(const Prepared& prepared, const QuantConfig& config, const Fallbacks& fallbacks,
                                        const quantization::GateNames* integer_gates) {
  const auto& model = prepared.model;
  const auto stays_in_float = [&](std::size_t n) { return prepared.keeps_in_float(model.graph.nodes[n].id()); };
  const bool may_be_all = !prepared.unseen.empty() || !prepared.parted.empty() || !prepared.inexact.empty();
  if (!config::preset(config).integer_chains_only) {
    quantization::FloatParts left;
    left.may_be_all = may_be_all;
    left.values = prepared.infinite;
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) left.nodes.push_back(stays_in_float(n));
    return quantization::place(model, prepared.types, config, left, prepared.transposed);
  }
  auto selected = quantization::select_static_nodes(model, config);
  for (std::size_t n = 0; n < selected.size(); ++n) selected[n] = selected[n] && !stays_in_float(n);
  const bool in_float = fallbacks.to == AccuracyFallback::float32;
  for (const auto node : fallbacks.nodes) selected[node] = !in_float;
  quantization::FloatParts parts;
  if (config.op_types.empty() && config.nodes.empty()) {
    for (std::size_t n = 0; n < selected.size(); ++n)
      selected[n] = selected[n] && !prepared.in_float.contains(model.graph.nodes[n].id());
    if (!config::target(config).all_operators)
      parts = quantization::integer_chains(model, graph::Index(model), selected,
                                           integer_gates != nullptr ? *integer_gates : prepared.integer_gates);
  }
  if (parts.nodes.empty()) {
    selected.flip();
    parts.nodes = std::move(selected);
  }
  parts.bypass = true;
  parts.values.insert(prepared.infinite.begin(), prepared.infinite.end());
  parts.may_be_all =
      !prepared.in_float.empty() || may_be_all || config.formats_given || (in_float && !fallbacks.nodes.empty());
  parts.wide_nodes.resize(model.graph.nodes.size());
  for (const auto node : fallbacks.nodes) parts.wide_nodes[node] = !in_float;
  for (const auto& name : config.wide_nodes) {
    for (const auto node : quantization::match_nodes(model, name, "--node-formats")) parts.wide_nodes[node] = true;
  }
  for (std::size_t n = 0; n < model.graph.nodes.size() && !prepared.parted_wide.empty(); ++n) {
    if (prepared.parted_wide.contains(model.graph.nodes[n].id())) parts.wide_nodes[n] = true;
  }
  return quantization::place(model, prepared.types, config, parts, prepared.transposed);
}

}  // namespace detent::run
