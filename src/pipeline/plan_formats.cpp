#include "pipeline/plan_formats.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "base/file.h"
#include "config/derived.h"
#include "graph/rewrites/fixed_shapes.h"
#include "graph/rewrites/rewrite.h"
#include "graph/transformer.h"
#include "onnx/model.h"
#include "pipeline/blocks/computed_weights.h"
#include "pipeline/blocks/drafted_blocks.h"
#include "planning/limits.h"
#include "profile/profiler.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/dynamic.h"
#include "quantization/floats/float_placement.h"
#include "quantization/formats.h"
#include "quantization/placement/placement.h"
#include "quantization/placement/selection.h"
#include "run/files/model_folder.h"
#include "run/model/float_types_16_bit.h"
#include "run/model/prepare.h"
#include "run/records/quantize_result.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {
namespace {

constexpr unsigned kPlanned =
    config::kBlocks | config::kFloat16 | config::kFloat32 | config::kDynamic | config::kBlockFloats;

// All but the constants: names, attributes, types.
std::uint64_t graph_bytes(const onnx::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& node : model.graph.nodes) bytes += 64 + node.name().size();
  return bytes;
}

std::uint64_t constant_bytes(const onnx::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) bytes += tensor.data.size();
  return bytes;
}

// Integers, scales, and zero points where they are stored.
std::uint64_t stored_bytes(const quantization::BlockTensor& tensor) {
  const auto values = static_cast<std::uint64_t>(tensor.rows * tensor.columns);
  const auto blocks = static_cast<std::uint64_t>(tensor.format.blocks_of(tensor.rows) * tensor.columns);
  const std::uint64_t scale = tensor.format.scales == ScaleType::as_weight ? *onnx::byte_count(tensor.type, 1) : 1;
  const auto bits = static_cast<std::uint64_t>(tensor.format.bits);
  return values * bits / 8 + blocks * scale + (tensor.format.symmetric ? 0 : blocks * bits / 8);
}

class FormatPlanner {
 public:
  explicit FormatPlanner(const QuantizeOptions& options)
      : options_(options),
        result_(config::result_of(options)),
        runtime_(options.runtime, options.resources.sample_time_limit) {}

  Plan make() {
    auto model = onnx::read_model(run::model_file(options_.model));
    const graph::UnfoldLimits limits{options_.resources.memory_budget, options_.stop};
    plan_.transformer = graph::find_transformer(model, limits);
    plan_.memory_budget = run::memory_for_samples(options_.resources);
    if (result_ == config::kBlocks) {
      place_blocks(std::move(model), limits);
    } else {
      const TempDir work(options_.resources.work_dir.value_or(""));
      profile::Profiler silent;
      auto prepared = run::prepare(std::move(model), options_.config, runtime_, work.path(), silent, limits);
      plan_.notes = prepared.notes;
      place(prepared);
    }
    if (options_.kv_cache.type != KvCacheType::keep)
      plan_.notes.emplace_back("what the samples take that give the cache its scales is not counted");
    plan_.notes.emplace_back(
        "memory and time are predicted for integers with scales from samples, not for this format");
    return std::move(plan_);
  }

 private:
  void note(const std::vector<std::string>& lines) {
    plan_.notes.insert(plan_.notes.end(), lines.begin(), lines.end());
  }

  void look_at_samples(const onnx::Model& model) {
    if (!config::has_samples(options_)) return;
    source_ = run::open_samples(options_, run::input_specs(model));
    plan_.files = source_->file_count();
  }

  void place_blocks(onnx::Model model, const graph::UnfoldLimits& limits) {
    graph::unfold(model, limits);
    note(graph::lift_constants(model));
    note(graph::drop_initializer_inputs(model));
    graph::sort_topologically(model);
    if (const auto& shapes = options_.config.input_shapes; !shapes.empty())
      note(graph::fix_input_shapes(model, shapes));
    look_at_samples(model);
    note(fold_computed_weights(model, options_.config, options_.weights_only,
                               {[this] { return &runtime_; }, plan_.memory_budget / 4}));
    const auto placement = quantization::place_blocks(model, options_.config, options_.weights_only);
    if (placement.tensors.empty()) throw no_blocks(options_.model, placement);
    note(placement.notes);
    plan_.nodes_quantized = quantization::node_count(placement);
    plan_.nodes_in_float = placement.in_float;
    // Then bits follow from what is measured.
    plan_.nodes_may_change = options_.weights_only.max_size || options_.accuracy.target;
    const std::uint64_t before = constant_bytes(model);
    std::uint64_t rest = before, stored = 0;
    for (const auto& tensor : placement.tensors) {
      const auto whole = model.graph.initializers[tensor.initializer].data.size();
      stored += stored_bytes(tensor);
      if (!tensor.stays) rest -= std::min<std::uint64_t>(whole, rest);
    }
    if (config::writes_16_bits(options_.config)) rest /= 2;  // nearly all of it are floats
    plan_.output_bytes = graph_bytes(model) + stored + rest;
  }

  void place(run::Prepared& prepared) {
    look_at_samples(prepared.model);
    plan_.output_bytes = graph_bytes(prepared.model) + constant_bytes(prepared.model);
    if (result_ == config::kDynamic) return place_dynamic(prepared);
    if (result_ == config::kBlockFloats) return place_block_floats(prepared);
    if (options_.config.float_type != FloatType::float32) place_floats(prepared);
  }

  void place_dynamic(const run::Prepared& prepared) {
    const auto placement = quantization::place_dynamic(prepared.model, options_.config, prepared.transposed);
    note(placement.notes);
    plan_.nodes_quantized = placement.nodes.size();
    plan_.nodes_in_float = placement.in_float;
    std::set<std::string> counted;
    for (const auto& mark : placement.weights.marks) {
      if (!counted.insert(mark.value).second) continue;
      for (const auto& tensor : prepared.model.graph.initializers) {
        if (tensor.name == mark.value) plan_.output_bytes -= tensor.data.size() * 3 / 4;
      }
    }
  }

  void place_block_floats(const run::Prepared& prepared) {
    const auto placement = run::place_qdq_pairs(prepared, options_.config);
    note(placement.notes);
    const auto counts = run::count_nodes(prepared.model, placement,
                                         [&](const auto& value) { return placement.find(value) != nullptr; });
    plan_.nodes_quantized = counts.quantized;
    plan_.nodes_in_float = counts.in_float;
  }

  void place_floats(const run::Prepared& prepared) {
    const auto& model = prepared.model;
    quantization::FloatFacts facts{.type = options_.config.float_type,
                                   .keep_io_types = options_.config.keep_io_types,
                                   .allowed = quantization::select_of_all_types(model, options_.config)};
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
      if (prepared.unseen.contains(model.graph.nodes[n].id())) facts.allowed[n] = false;
    }
    const auto types = source_ ? run::static_types(prepared.types, model, runtime_, *source_) : prepared.types;
    const auto placed = quantization::place_floats(model, types, facts);
    note(placed.notes);
    FloatConversion floats;
    floats.nodes = static_cast<std::size_t>(std::count(placed.low.begin(), placed.low.end(), true));
    floats.nodes_kept = placed.kept;
    plan_.nodes_may_change = config::has_samples(options_);
    std::set<std::string_view> in_float32;  // constants
    for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
      if (placed.low[n]) continue;
      for (const auto& name : model.graph.nodes[n].inputs()) in_float32.insert(name);
    }
    std::uint64_t before = 0, halved = 0;
    for (const auto& tensor : model.graph.initializers) {
      if (tensor.type != onnx::DataType::float32) continue;
      before += tensor.data.size();
      if (!in_float32.contains(tensor.name)) halved += tensor.data.size();
    }
    plan_.output_bytes -= halved / 2;
    floats.constants = before > 0 ? static_cast<double>(halved) / 2 / static_cast<double>(before) : 0;
    plan_.floats = floats;
  }

  const QuantizeOptions& options_;
  config::Result result_;
  exec::Runtime runtime_;
  std::unique_ptr<data::SampleSource> source_;
  Plan plan_;
};

}  // namespace

bool is_of_format(const QuantizeOptions& options) { return (config::result_of(options) & kPlanned) != 0; }

Plan plan_of_format(const QuantizeOptions& options) { return FormatPlanner(options).make(); }

}  // namespace detent::pipeline
