#include "pipeline/block_drafts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/text.h"
#include "config/results.h"
#include "data/given_inputs.h"
#include "exec/emit.h"
#include "graph/rewrites/rotation.h"
#include "quantization/blocks/block_search.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/blocks/blocks.h"
#include "quantization/emit/emitters.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

constexpr std::uint64_t kSmall = 4096;  // bytes that need no blocks

// Nothing where they take more than so many bytes.
std::optional<std::vector<onnx::Tensor>> results_of(const onnx::Model& model, const exec::Runtime& runtime,
                                                    std::vector<int>& nodes, std::uint64_t most_bytes) {
  std::vector<std::string> outputs;
  for (const int n : nodes) {
    const auto& made = model.graph.nodes[static_cast<std::size_t>(n)].outputs();
    outputs.insert(outputs.end(), made.begin(), made.end());
  }
  const auto types = exec::infer_value_types(runtime, exec::constant_part(model, nodes, outputs));
  nodes = graph::constant_nodes(model, types);
  std::uint64_t bytes = 0;
  for (const int n : nodes) {
    for (const auto& output : model.graph.nodes[static_cast<std::size_t>(n)].outputs())
      bytes += graph::static_bytes(types, output).value_or(0);
  }
  if (bytes > most_bytes) return std::nullopt;
  return exec::compute_constants(runtime, model, nodes);
}

// Results that no blocks take the place of.
std::set<std::string> left_over(const onnx::Model& model, const std::set<std::string>& results,
                                const quantization::Placement& placement) {
  auto left = results;
  for (const auto& tensor : placement.tensors) {
    if (!tensor.stays) left.erase(model.graph.initializers[tensor.initializer].name);
  }
  return left;
}

}  // namespace

graph::Notes fold_computed_weights(onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                                   const ComputedWeights& how) {
  const auto original = model;
  std::set<std::string> left;
  while (true) {
    auto nodes = graph::weight_makers(model, left);
    if (nodes.empty()) return {};
    graph::merge_equal_constants(model, nodes);
    const auto* runtime = how.runtime();
    const auto tensors = runtime == nullptr ? std::nullopt : results_of(model, *runtime, nodes, how.most_bytes);
    if (!tensors) {
      model = original;
      return {fmt::format("weights that nodes make of constants stay in float: {}",
                          runtime == nullptr ? "computing them takes ONNX Runtime"
                                             : "computing them takes more memory than a quarter of the budget")};
    }
    std::set<std::string> results;
    for (const auto& tensor : *tensors) {
      if (tensor.data.size() > kSmall) results.insert(tensor.name);
    }
    auto notes = config::graph_notes(graph::replace_by_constants(model, nodes, *tensors));
    const auto more = left_over(model, results, quantization::place_blocks(model, config, blocks));
    if (more.empty()) return notes;
    left.insert(more.begin(), more.end());
    model = original;
  }
}

StreamRotation::StreamRotation(const QuantizeOptions& options, const run::RunDirectory* work,
                               profile::Profiler& profiler)
    : options_(options), resources_(options.resources) {
  if (work == nullptr) {
    own_.emplace(resources_.work_dir.value_or(""));
    profiler.watch_directory(own_->path());
  }
  directory_ = work != nullptr ? work->scratch() : own_->path();
}

graph::Notes StreamRotation::apply(onnx::Model& model, const std::optional<Transformer>& transformer) {
  if (!transformer || !transformer->embedding)
    throw bad_input(fmt::format("model '{}' is no transformer with a table of token ids, whose residual stream could "
                                "be rotated",
                                options_.model.string()),
                    "leave out --set rotation");
  const auto& embedding = transformer->embedding->node;
  take_disk(graph::rotated_bytes(model, embedding));
  const graph::RotationPlace place{directory_, thread_count(options_.threads)};
  auto notes = graph::rotate_stream(model, embedding, place);
  graph::rotate_heads(model, place);
  return notes;
}

void StreamRotation::take_disk(std::uint64_t bytes) {
  const auto most = run::budget_of(resources_, directory_).disk;
  if (bytes > most)
    throw resource_error(
        fmt::format("model '{}': the rotated weights need {} of disk, but only {} are allowed", options_.model.string(),
                    format_size(bytes), format_size(most)),
        fmt::format("give --disk-budget {}MiB or more, or leave out --set rotation", (bytes >> 20) + 1));
  if (resources_.disk_budget) resources_.disk_budget = most - bytes;
}

namespace {

// Weights that lie on grids keep their values. Some columns tell, as chance makes no such block.
void find_grids(const onnx::Model& model, const QuantizeOptions& options, quantization::Placement& placement) {
  constexpr std::int64_t kColumns = 8;
  const auto& blocks = options.weights_only;
  if (blocks.method != WeightMethod::automatic || blocks.form != WeightForm::matmul_nbits ||
      blocks.sparsity != WeightSparsity::none || options.config.float_type == FloatType::bfloat16)
    return;
  std::size_t count = 0;
  for (auto& tensor : placement.tensors) {
    if (tensor.products.empty() || !tensor.tables.empty() || tensor.type != onnx::DataType::float32) continue;
    if (tensor.format.bits != 4 || tensor.format.block == 0 || tensor.format.symmetric || !tensor.format.is_plain())
      continue;
    const auto some = std::min(kColumns, tensor.columns);
    std::vector<float> columns(static_cast<std::size_t>(some * tensor.rows));
    quantization::read_columns(model.graph.initializers[tensor.initializer], tensor, 0, some, columns);
    tensor.on_grids = quantization::lie_on_grids(columns, tensor.rows, tensor.format);
    if (tensor.on_grids) ++count;
  }
  if (count > 0)
    placement.notes.push_back(fmt::format(
        "{}: blocks have at most 16 evenly spaced values, as in 4-bit files, and these are kept; a correction by the "
        "sums of the inputs' blocks makes up for whole zero points",
        count_with_noun(count, "weight")));
}

}  // namespace

quantization::Placement place_default_blocks(const onnx::Model& model, const QuantizeOptions& options,
                                             const std::optional<Transformer>& transformer) {
  constexpr std::int64_t kMostShare = 4;
  const auto& blocks = options.weights_only;
  auto placement = quantization::place_blocks(model, options.config, blocks);
  find_grids(model, options, placement);
  const bool widens = options.format.starts_with("q4") && blocks.form == WeightForm::matmul_nbits;
  if (!widens || !transformer || !transformer->head || !data::is_decoder(run::input_specs(model))) return placement;
  const auto named = quantization::named_bits(model, blocks);
  std::int64_t all = 0;
  for (const auto& tensor : placement.tensors) all += tensor.rows * tensor.columns;
  for (auto& tensor : placement.tensors) {
    auto readers = tensor.products;
    const bool is_head = std::any_of(readers.begin(), readers.end(), [&](std::size_t n) {
      return model.graph.nodes[n].id() == transformer->head->node;
    });
    readers.insert(readers.end(), tensor.tables.begin(), tensor.tables.end());
    const bool is_named = std::any_of(readers.begin(), readers.end(), [&](std::size_t n) { return named[n]; });
    const auto size = tensor.rows * tensor.columns;
    if (!is_head || is_named || !tensor.format.is_plain() || size > all / kMostShare) continue;
    if (tensor.shared == tensor.tables.empty()) continue;  // it would have to be stored twice
    tensor.format.bits = 8;
    tensor.format.symmetric = options.config.weight_symmetric.value_or(true);
    tensor.on_grids = false;
  }
  return placement;
}

Error no_blocks(const std::filesystem::path& model, const quantization::Placement& placement) {
  return bad_input(fmt::format("model '{}' has no weights that can be stored in blocks", model.string()),
                   "what stays as it is, and why: " +
                       (placement.notes.empty() ? "no MatMul reads a constant matrix" : placement.notes.front()));
}

bool DraftedBlocks::any_type(onnx::DataType type) const {
  return std::any_of(placement.tensors.begin(), placement.tensors.end(),
                     [type](const auto& tensor) { return tensor.type == type; });
}

std::size_t DraftedBlocks::casts_of_inputs() const {
  const auto& inputs = model.graph.inputs;
  return static_cast<std::size_t>(std::count_if(inputs.begin(), inputs.end(), [](const auto& input) {
    return input.type == onnx::DataType::float16 || input.type == onnx::DataType::bfloat16;
  }));
}

bool DraftedBlocks::is_plain() const {
  return std::all_of(placement.tensors.begin(), placement.tensors.end(),
                     [](const auto& tensor) { return tensor.format.is_plain(); });
}

std::int64_t DraftedBlocks::needed_opset(WeightForm form) const {
  std::int64_t opset = 0;
  for (const auto& tensor : placement.tensors) {
    if (form == WeightForm::qdq || (!tensor.others.empty() && !tensor.as_experts))
      opset = std::max(opset, quantization::opset_of_blocks(tensor.format));
  }
  return opset;
}

void DraftedBlocks::find_common_scales() {
  for (auto& tensor : placement.tensors) {
    if (tensor.format.scales != ScaleType::float8e4m3fn) continue;
    const float largest = quantization::largest_value(model.graph.initializers[tensor.initializer], tensor);
    tensor.format.common_scale = quantization::common_scale(largest, tensor.format);
  }
}

void DraftedBlocks::share_out(WeightMethod method, shim::Ranks& ranks, const std::filesystem::path& directory,
                              std::size_t threads, const std::stop_token& stop) {
  if (method == WeightMethod::nearest) return;  // takes no longer than to exchange it
  std::vector<std::byte> left;                  // as rank 0 sees it, which has all that was solved
  for (std::size_t t = 0; t < placement.tensors.size(); ++t)
    left.push_back(std::byte{!is_solved(t) && !placement.tensors[t].on_grids});
  shim::broadcast(ranks, left, stop);
  const TempDir folder(directory);
  in_pieces = solve::share_blocks(streams(method, threads, stop), left, ranks, folder.path(), stop);
}

std::vector<quantization::BlockStream> DraftedBlocks::streams(WeightMethod method, std::size_t threads,
                                                              std::stop_token stop) const {
  std::vector<quantization::BlockStream> all;
  for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
    const auto& tensor = placement.tensors[t];
    all.emplace_back(model.graph.initializers[tensor.initializer], tensor, solver(t, method, stop), threads);
  }
  return all;
}

quantization::Assignment DraftedBlocks::assignment(const WeightsOnlyConfig& config, std::size_t threads,
                                                   std::stop_token stop) const {
  return {.placement = placement,
          .blocks = {.weights = streams(config.method, threads, std::move(stop)),
                     .form = config.form,
                     .accuracy_level = config.accuracy_level}};
}

quantization::BlockSolver DraftedBlocks::solver(std::size_t t, WeightMethod method, std::stop_token stop) const {
  const auto& tensor = placement.tensors[t];
  if (t < in_pieces.size() && !in_pieces[t].pieces.empty()) return in_pieces[t].solver();
  if (is_solved(t)) return quantization::scaled(solved.tensors[t]->solver(), tensor.column_factors);
  if (tensor.on_grids)
    return [rows = tensor.rows, format = tensor.format, stop](std::span<const float> columns, std::int64_t) {
      if (stop.stop_requested()) throw interrupted();
      return quantization::blocks_on_grids(columns, rows, format);
    };
  return [rows = tensor.rows, format = tensor.format, type = tensor.type, nearest = method == WeightMethod::nearest,
          stop](std::span<const float> columns, std::int64_t) {
    if (stop.stop_requested()) throw interrupted();
    if (!format.is_plain()) return quantization::element_blocks(columns, rows, format, !nearest);
    auto found = nearest ? quantization::nearest(columns, rows, format) : quantization::search(columns, rows, format);
    quantization::round_scales(found, columns, type, 0);
    return found;
  };
}

std::string DraftedBlocks::reason_against_running() const {
  if (any_type(onnx::DataType::bfloat16))
    return "neither model was run: the weights are bfloat16, which ONNX Runtime has no operators for on CPUs";
  if (placement.tensors.empty()) return "";  // all weights stay in float
  const auto& format = placement.tensors.front().format;
  if (format.floats == QuantType::float4e2m1 || format.scales == ScaleType::float8e8m0)
    return "the quantized model was not run: ONNX Runtime's CPU reads no float4e2m1 and no scales of float8e8m0";
  return "";
}

std::string DraftedBlocks::reason_against_proof() const {
  if (auto reason = reason_against_running(); !reason.empty()) return reason;
  return !placement.tensors.empty() && placement.tensors.front().format.floats
             ? "not every ONNX Runtime has small floats on CPUs"
             : "";
}

namespace {

// Of AWQ, where the weight's inputs are scaled.
std::optional<double> exponent_of(const solve::SolvedBlocks& solved, std::size_t tensor) {
  for (const auto& [fold, scaling] : solved.scalings) {
    if (std::find(fold.tensors.begin(), fold.tensors.end(), tensor) != fold.tensors.end()) return scaling.exponent;
  }
  return std::nullopt;
}

}  // namespace

BlockedWeight describe_weight(const onnx::Model& model, const quantization::Placement& placement,
                              const solve::SolvedBlocks& solved, std::size_t tensor,
                              const quantization::BlockErrors& errors, WeightMethod method) {
  const auto& weight = placement.tensors[tensor];
  const auto& reader = model.graph.nodes[weight.readers().front()];
  BlockedWeight told{.name = model.graph.initializers[weight.initializer].name,
                     .node = reader.id(),
                     .op_type = reader.op_type(),
                     .bits = weight.format.bits,
                     .block_size = weight.format.block,
                     .rows = weight.rows,
                     .columns = weight.columns,
                     .method = weight.on_grids                   ? "grid"
                               : method == WeightMethod::nearest ? "nearest"
                                                                 : "search",
                     .sqnr_db = errors.errors > 0 ? 10 * std::log10(errors.squares / errors.errors)
                                                  : std::numeric_limits<double>::infinity(),
                     .output_error = {},
                     .dense_error = {},
                     .input_exponent = {}};
  if (tensor >= solved.tensors.size() || !solved.tensors[tensor]) return told;
  const auto& verdict = solved.tensors[tensor]->verdict();
  told.method = verdict.method;
  told.output_error = verdict.output_error;
  told.dense_error = verdict.dense_error;
  told.input_exponent = exponent_of(solved, tensor);
  if (told.input_exponent && method == WeightMethod::awq) told.method = "awq";
  return told;
}

}  // namespace detent::pipeline
