#include "run/model/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/presets.h"
#include "config/results.h"
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

constexpr std::string_view kInferTypes = "infer-types";

void append(std::vector<std::string>& all, graph::Notes more) {
  for (auto& line : more) all.push_back(std::move(line));
}

graph::Notes notes_on_carried_parts(const onnx::Model& model) {
  graph::Notes notes;
  for (const auto& node : model.graph.nodes) {
    for (const auto& a : node.attributes()) {
      if (!graph::is_body(a)) continue;
      notes.push_back(fmt::format("{}: its body '{}' stays in float, unchanged", node.label(), a.name()));
    }
  }
  for (const auto& name : model.functions)
    notes.push_back(fmt::format("model-local function {} stays in float, unchanged", name));
  return notes;
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

struct Preparation {
  Prepared& prepared;
  const QuantConfig& config;
  const exec::Runtime& runtime;
  const fs::path& work_dir;
  profile::Profiler& profiler;
  const graph::UnfoldLimits& limits;
  bool has_types = false;                    // all values that the runtime tells of
  bool is_stale = true;                      // types, by what passes changed since
  std::vector<onnx::ValueInfo> stated = {};  // of outputs
  std::string_view pass = {};                // the name of the one at hand

  onnx::Model& model() const { return prepared.model; }
  graph::ValueTypes& types() const { return prepared.types; }
  /// Of the pass at hand.
  graph::Store store() const { return file_store(work_dir, std::string(pass)); }
};

namespace {

graph::Notes infer_types(Preparation& p) {
  if (!p.is_stale) return {};
  std::optional<profile::Scope> scope;
  if (!p.has_types) {
    refuse_training(p.model());
    if (config::target(p.config).static_shapes) refuse_dynamic_inputs(p.model(), p.config);
    scope.emplace(p.profiler.scope(profile::Step::float_model_validation));
  }
  p.types() = exec::infer_value_types(p.runtime, p.model());
  p.has_types = true;
  p.is_stale = false;
  return {};
}

graph::Notes raise_opset(Preparation& p) {
  const auto opset = opset_for(p.model(), p.config), given = p.model().opset();
  if (given >= opset) return {};
  auto notes = graph::upgrade_opset(p.model(), p.types(), std::max(opset, graph::kUpgradedOpset));
  if (p.config.float_type == FloatType::bfloat16) refuse_lost_draws(p.model(), p.config, p.runtime, given);
  return notes;
}

graph::Notes compute_constants(Preparation& p) {
  // ONNX Runtime itself does the same when it loads a model.
  const auto count = config::target(p.config).is_ort_cpu
                         ? compute(p.prepared, graph::constant_nodes(p.model(), p.types()), p.runtime)
                         : compute_static(p.prepared, p.runtime);
  if (count == 0) return {};
  return {fmt::format("computed and replaced by their results: {}", count_with_noun(count, "constant node"))};
}

// Nodes that the user named are taken as they are.
graph::Notes part_products(Preparation& p) {
  if (is_float(p.config.activation_type) || p.config.formats_given) return {};
  std::vector<quantization::NamePattern> named;
  for (const auto* names : {&p.config.nodes, &p.config.exclude_nodes})
    for (const auto& name : *names) named.emplace_back(name);
  const auto stays = [&](const onnx::Node& node) {
    return std::any_of(named.begin(), named.end(), [&](const auto& name) { return name.matches(node.id()); });
  };
  return graph::part_products(p.model(), p.types(), stays, p.store());
}

graph::Notes write_einsums_with_weights(Preparation& p) {
  auto notes = graph::einsums_with_weights(p.model());
  if (!notes.empty()) p.types() = exec::infer_value_types(p.runtime, p.model());
  return notes;
}

bool always(const QuantConfig&) { return true; }
bool raises_floats(const QuantConfig& c) { return c.float_type != FloatType::keep; }
bool gives_shapes(const QuantConfig& c) { return !c.input_shapes.empty(); }
bool quantizes(const QuantConfig& c) { return config::preset(c).quantizes; }
bool has_integers(const QuantConfig& c) { return quantizes(c) && c.activations == Activations::fixed; }
bool is_for_npu(const QuantConfig& c) { return config::target(c).all_operators; }
bool is_for_htp(const QuantConfig& c) { return config::target(c).htp_rewrites; }
bool fuses(const QuantConfig& c) { return config::preset(c).fuses_for_runtime; }
bool has_integers_for_npu(const QuantConfig& c) { return has_integers(c) && is_for_npu(c); }
bool is_for_htp_of_16_bits(const QuantConfig& c) { return is_for_htp(c) && quantization::is_16_bit(c.activation_type); }
bool pools_strides(const QuantConfig& c) { return config::target(c).pooled_strides; }
bool adds_axis(const QuantConfig& c) { return config::target(c).axis_for_few_rows && quantizes(c); }
bool completes_convolutions(const QuantConfig& c) { return config::target(c).explicit_convolutions; }
bool fuses_for_ort_cpu(const QuantConfig& c) { return fuses(c) && config::writes_hard_sigmoids(c); }

graph::Notes unfold_bodies(Preparation& p) {
  graph::unfold(p.model(), p.limits);
  append(p.prepared.notes, notes_on_carried_parts(p.model()));
  return {};
}

graph::Notes fix_shapes(Preparation& p) { return graph::fix_input_shapes(p.model(), p.config.input_shapes); }

graph::Notes raise_floats(Preparation& p) {
  return graph::half_floats_to_float32(p.model(), p.store(), p.config.keep_io_types);
}

graph::Notes take_shapes(Preparation& p) {
  p.stated = graph::take_output_shapes(p.model());
  return {};
}

graph::Notes give_shapes(Preparation& p) {
  graph::give_output_shapes(p.model(), p.types(), p.stated);
  return {};
}

// A rewrite that needs no more than the model, its types, and a place for weights.
template <auto kRewrite>
graph::Notes on(Preparation& p) {
  const auto call = [&](auto&&... more) -> graph::Notes {
    if constexpr (std::is_void_v<decltype(kRewrite(p.model(), more...))>) {
      kRewrite(p.model(), more...);
      return {};
    } else {
      return kRewrite(p.model(), more...);
    }
  };
  using Rewrite = decltype(kRewrite);
  if constexpr (std::is_invocable_v<Rewrite, onnx::Model&>)
    return call();
  else if constexpr (std::is_invocable_v<Rewrite, onnx::Model&, graph::ValueTypes&>)
    return call(p.types());
  else if constexpr (std::is_invocable_v<Rewrite, onnx::Model&, graph::Store>)
    return call(p.store());
  else
    return call(p.types(), p.store());
}

using enum TypesAfter;

// In the order of execution.
constexpr Pass kPasses[] = {
    {"unfold-bodies", always, unfold_bodies},
    {"lift-constants", always, on<graph::lift_constants>},
    {"initializer-inputs", always, on<graph::drop_initializer_inputs>},
    {"sort", always, on<graph::sort_topologically>},
    {"input-shapes", gives_shapes, fix_shapes},
    {"half-floats", raises_floats, raise_floats},
    {"stated-shapes", gives_shapes, take_shapes},
    {kInferTypes, always, infer_types, inferred},
    {"idle-casts", always, on<graph::idle_casts_to_identities>},
    {"raise-opset", always, raise_opset, changed},
    {"cast-likes", always, on<graph::resolve_cast_likes>},
    {"ranges", always, on<graph::give_ranges_scalars>, changed},
    {"identities", always, on<graph::remove_identities>},
    {"einsums-with-weights", quantizes, write_einsums_with_weights, inferred},
    {"constants", always, compute_constants, changed},
    {"pads-of-all-axes", always, on<graph::pad_all_axes>, changed},
    {"batch-norms", always, on<graph::fold_batch_norm>},
    {"masks", has_integers, on<graph::clamp_masks>},
    {"softmax-guards", has_integers_for_npu, on<graph::remove_softmax_guards>},
    {"resizes-of-all-axes", has_integers, on<graph::resize_all_axes>, changed},
    {"pads-before-means", has_integers, on<graph::pad_before_means>, changed},
    {"parted-products", has_integers, part_products, changed},
    {"unused-constants", always, on<graph::drop_unused_initializers>},
    {"pooled-strides", pools_strides, on<graph::pool_before_strided_points>, changed},
    {"few-rows", adds_axis, on<graph::add_axis_for_few_rows>, changed},
    {"einsums", is_for_npu, on<graph::einsums_to_matmuls>, changed},
    {"squares", is_for_npu, on<graph::squares_to_mul>, changed},
    // Sums with zeros and products with ones: the HTP computes some networks with them wrongly.
    {"neutral-on-npu", is_for_npu, on<graph::remove_neutral_arithmetic>, changed},
    {"gelus-on-htp", is_for_htp, on<graph::compose_gelus>, changed},
    {"prelus-on-htp", is_for_htp_of_16_bits, on<graph::part_prelus>, changed},
    {"batch-norms-on-htp", is_for_htp, on<graph::batch_norms_as_convolutions>, changed},
    {"forms-on-htp", is_for_htp, on<graph::rewrite_for_htp>, changed},
    {kInferTypes, always, infer_types, inferred},
    {"output-shapes", gives_shapes, give_shapes},
    // Less work between the products, where the runtime would do it in float: the fewer operators are left, the more of
    // the chains stays in integers.
    {"neutral", fuses, on<graph::remove_neutral_arithmetic>},
    {"gemms", fuses, on<graph::plain_gemms>},
    {"fold-after", fuses, on<graph::fold_after_products>},
    {"uniform-prelus", fuses, on<graph::uniform_prelus>},
    {"fast-activations", fuses_for_ort_cpu, on<graph::write_fast_activations>, inferred},
    {"hard-sigmoids", fuses_for_ort_cpu, on<graph::compose_hard_sigmoids>, inferred},
    {"hard-swishes", fuses_for_ort_cpu, on<graph::take_hard_swishes_apart>, inferred},
    {"gelus", fuses_for_ort_cpu, on<graph::compose_gelus>},
    {"fold-before", fuses, on<graph::fold_before_products>, inferred},
    {"convolutions", completes_convolutions, on<graph::complete_convolutions>},
};

// The passes before this one are made in other stages as well, and all others rely on them.
constexpr std::string_view kFirstToSkip = "half-floats";

void check_names(const std::vector<std::string>& skipped) {
  std::vector<std::string_view> known;
  for (const auto& pass : kPasses) {
    if (pass.name != kInferTypes && (!known.empty() || pass.name == kFirstToSkip)) known.push_back(pass.name);
  }
  for (const auto& name : skipped) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw usage_error(fmt::format("--set skip-pass: no pass that may be left out is named '{}'", printable(name)),
                        fmt::format("choose from: {}", fmt::join(known, ", ")));
  }
}

void run_passes(Preparation& p, const PassControl& control) {
  check_names(control.skipped);
  for (const auto& pass : kPasses) {
    const auto& skipped = control.skipped;
    if (!pass.wanted(p.config) || std::find(skipped.begin(), skipped.end(), pass.name) != skipped.end()) continue;
    const double start = p.profiler.now();
    p.pass = pass.name;
    auto notes = pass.rewrite(p);
    p.profiler.add_span(std::string(pass.name), start, p.profiler.now() - start);
    p.is_stale = p.is_stale || (pass.types == changed && !notes.empty());
    append(p.prepared.notes, config::graph_notes(std::move(notes)));
    if (control.after) control.after(pass, p.prepared);
  }
}

}  // namespace

std::span<const Pass> passes() noexcept { return kPasses; }

Prepared prepare(onnx::Model original, const QuantConfig& config, const exec::Runtime& runtime,
                 const fs::path& work_dir, profile::Profiler& profiler, const graph::UnfoldLimits& limits,
                 const PassControl& control) {
  const bool names_nodes = !config.nodes.empty() || !config.exclude_nodes.empty();
  const auto first_ids = names_nodes ? ids_of(original.graph.nodes) : std::vector<std::string>();
  Prepared prepared{{std::move(original)}};
  Preparation preparation{prepared, config, runtime, work_dir, profiler, limits};
  run_passes(preparation, control);
  const auto& model = prepared.model;
  graph::add_initializers(model, prepared.types);
  find_infinite(prepared, config);
  if (config.activations == Activations::fixed) append(prepared.notes, leave_scans_of_unknown_rank(prepared));
  append(prepared.notes, decision_notes(model, graph::find_decisions(model, prepared.types, graph::DecisionKind::all)));
  if (config::writes_hard_sigmoids(config) && !quantization::is_16_bit(config.activation_type))
    prepared.integer_gates = quantization::all_gates(model, graph::Index(model));
  if (names_nodes) refuse_folded(prepared, first_ids, config);
  return prepared;
}

quantization::Placement place_qdq_pairs(const Prepared& prepared, const QuantConfig& config, const Fallbacks& fallbacks,
                                        const quantization::GateNames* integer_gates) {
  const auto& model = prepared.model;
  const auto stays_in_float = [&](std::size_t n) { return prepared.keeps_in_float(model.graph.nodes[n].id()); };
  const auto& choices = prepared.nodes;
  const bool may_be_all = std::ranges::any_of(choices, [](const auto& entry) { return entry.second.keeps_in_float(); });
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
      selected[n] = selected[n] && !prepared.choice(model.graph.nodes[n].id()).in_float;
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
  parts.may_be_all = config.formats_given || (in_float && !fallbacks.nodes.empty()) ||
                     std::ranges::any_of(choices, [](const auto& entry) { return entry.second.in_float.has_value(); });
  parts.wide_nodes.resize(model.graph.nodes.size());
  for (const auto node : fallbacks.nodes) parts.wide_nodes[node] = !in_float;
  for (const auto& name : config.wide_nodes) {
    for (const auto node : quantization::match_nodes(model, name, "--node-formats")) parts.wide_nodes[node] = true;
  }
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    if (prepared.choice(model.graph.nodes[n].id()).wide) parts.wide_nodes[n] = true;
  }
  return quantization::place(model, prepared.types, config, parts, prepared.transposed);
}

}  // namespace detent::run
