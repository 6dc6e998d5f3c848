#include "pipeline/quantize_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "base/parallel.h"
#include "config/identity.h"
#include "config/wanted.h"
#include "data/replay.h"
#include "detent/compare.h"
#include "exec/session.h"
#include "graph/rewrite.h"
#include "graph/traits.h"
#include "onnx/write.h"
#include "planning/limits.h"
#include "profile/meters.h"
#include "profile/profiler.h"
#include "quantization/block_search.h"
#include "quantization/block_stream.h"
#include "quantization/block_weights.h"
#include "quantization/emit/blocks.h"
#include "run/by_content.h"
#include "run/latency_change.h"
#include "run/outputs.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/run_report.h"
#include "run/samples.h"
#include "run/sweep_setup.h"
#include "store/spool.h"
#include "tuning/block_weights.h"

namespace detent::pipeline {
namespace {

using profile::Step;

constexpr std::size_t kTimed = 4;     // samples that both models are timed on
constexpr std::size_t kCompared = 8;  // samples whose outputs are compared

class WeightsRun {
 public:
  explicit WeightsRun(const QuantizeOptions& options)
      : options_(options),
        threads_(thread_count(options.threads)),
        run_profiler_(options.profiler, options.profile),
        profiler_(run_profiler_.profiler()) {}

  QuantizeResult run() {
    pre_process();
    if (config::has_samples(options_)) solve();
    write();
    if (work_) work_->finish();
    if (options_.bench) bench();
    if (config::has_samples(options_)) compare_outputs();
    run_profiler_.finish();
    result_.stages = run_profiler_.stage_reports();
    result_.peak_memory = profiler_.peak_memory();
    return std::move(result_);
  }

 private:
  void pre_process() {
    const auto scope = profiler_.scope(Step::pre_process);
    model_ = onnx::read_model(options_.model);
    profiler_.checkpoint(Step::model_loaded);
    run::check_output(options_.output, model_, options_.external_data_suffix);
    if (config::has_samples(options_)) {
      work_.emplace(options_.resources, identity());
      append(work_->notes());
    }
    result_.model_bytes_before = run::size_on_disk(model_);
    append(graph::lift_constants(model_));
    append(graph::drop_initializer_inputs(model_));
    graph::sort_topologically(model_);
    if (const auto opset = needed_opset(); opset > 0) append(graph::upgrade_opset(model_, {}, opset));
    placement_ = quantization::place_blocks(model_, options_.config, options_.weights_only);
    append(placement_.notes);
    if (placement_.tensors.empty())
      throw bad_input(fmt::format("model '{}' has no weights that can be stored in blocks", options_.model.string()),
                      "what stays as it is, and why: " +
                          (placement_.notes.empty() ? "no selected MatMul, Gemm or Gather reads a constant matrix"
                                                    : placement_.notes.front()));
    count_nodes();
  }

  // By the DequantizeLinear nodes that may be written; 0: none.
  std::int64_t needed_opset() const {
    constexpr std::string_view kDequantized[] = {"Conv", "LSTM", "GRU"};
    const auto& types = options_.config.op_types;
    const bool any = std::any_of(types.begin(), types.end(), [&](const std::string& type) {
      return std::find(std::begin(kDequantized), std::end(kDequantized), type) != std::end(kDequantized);
    });
    if (options_.weights_only.form != WeightForm::qdq && !any) return 0;
    std::int64_t opset = quantization::opset_of_blocks(static_cast<int>(options_.weights_only.bits));
    for (const auto& entry : options_.weights_only.node_bits)
      opset = std::max(opset, quantization::opset_of_blocks(quantization::parse_node_bits(entry).bits));
    return opset;
  }

  void count_nodes() {
    std::set<std::size_t> nodes;
    for (const auto& tensor : placement_.tensors) {
      nodes.insert(tensor.products.begin(), tensor.products.end());
      nodes.insert(tensor.tables.begin(), tensor.tables.end());
      for (const auto& [node, input] : tensor.others) nodes.insert(node);
    }
    result_.nodes_quantized = nodes.size();
    result_.nodes_in_float = placement_.in_float;
  }

  nlohmann::json identity() const {
    const auto options = config::identity(options_, config::Affects::integers);
    return run::run_identity({.model = model_,
                              .output = options_.output,
                              .calibration_data = options_.calibration_data,
                              .options = options});
  }

  // From what the products read on the samples.
  void solve() {
    const auto scope = profiler_.scope(Step::calibration);
    runtime_.emplace(options_.runtime);
    const auto types = exec::probe_values(*runtime_, model_);
    // Samples are read in the order of what they hold, so those that pass once are kept.
    std::optional<data::ReplayStream> kept;
    auto* stream = options_.samples;
    if (stream != nullptr && !stream->can_rewind())
      stream = &kept.emplace(*stream, std::numeric_limits<std::size_t>::max(), work_->scratch());
    const auto given = run::open_samples(options_.calibration_data.value_or(""), stream, run::input_specs(model_),
                                         {options_.max_samples, options_.batch_size});
    run::ByContent source(*given, {});
    const run::Context context{*runtime_, options_.resources, work_->path(), options_.threads};
    const auto budget = run::budget_of(options_.resources, work_->path());
    const auto stages = tuning::block_stages(model_, placement_, for_sums(budget.memory));
    std::unique_ptr<store::Spool> spool;
    if (stages.size() > 1) spool = run::make_spool(context, budget.memory / 4);
    solved_ = tuning::solve_blocks(model_, types, placement_, stages, *runtime_, source,
                                   {.method = options_.weights_only.method,
                                    .threads = options_.threads,
                                    .spool = spool.get(),
                                    .directory = work_->path(),
                                    .progress = options_.progress,
                                    .stop = options_.stop});
    result_.samples = solved_.samples;
    append(source.notes());
  }

  // What the process and a stripe of a weight leave of the budget, for sums and activations alike.
  static std::uint64_t for_sums(std::uint64_t budget) {
    constexpr std::uint64_t kStripe = std::uint64_t{64} << 20;
    const auto taken = profile::memory_now().anonymous + kStripe;
    return budget > taken ? (budget - taken) / 2 : 0;
  }

  std::vector<quantization::BlockStream> streams() const {
    std::vector<quantization::BlockStream> all;
    for (std::size_t t = 0; t < placement_.tensors.size(); ++t) {
      const auto& tensor = placement_.tensors[t];
      all.emplace_back(model_.graph.initializers[tensor.initializer], tensor, solver(t), threads_);
    }
    return all;
  }

  const tuning::StoredBlocks* solved(std::size_t t) const {
    return t < solved_.tensors.size() && solved_.tensors[t] ? &*solved_.tensors[t] : nullptr;
  }

  quantization::BlockSolver solver(std::size_t t) const {
    if (const auto* found = solved(t)) return found->solver();
    const auto rows = placement_.tensors[t].rows;
    const auto format = placement_.tensors[t].format;
    const bool nearest = options_.weights_only.method == WeightMethod::nearest;
    return [this, rows, format, nearest](std::span<const float> columns, std::int64_t) {
      if (options_.stop.stop_requested()) throw interrupted();
      return nearest ? quantization::nearest(columns, rows, format) : quantization::search(columns, rows, format);
    };
  }

  void write() {
    const auto scope = profiler_.scope(Step::quantization_matmul_nbits);
    std::uint64_t all = 0, done = 0;
    for (const auto& tensor : placement_.tensors) all += bytes_of(tensor);
    result_.weights.resize(placement_.tensors.size());
    const auto written = [&](std::size_t t, const quantization::BlockErrors& errors) {
      result_.weights[t] = record(t, errors);
      done = std::min(all, done + bytes_of(placement_.tensors[t]));
      if (options_.progress) options_.progress("weights (MiB)", done >> 20, all >> 20);
    };
    auto emitted = quantization::emit_blocks(model_, placement_, streams(), options_.weights_only, written);
    emitted.set_producer("detent", DETENT_VERSION);
    const auto files =
        onnx::write_model(emitted, options_.output, {options_.external_data_threshold, options_.external_data_suffix});
    result_.model_bytes_after = files.model_bytes + files.data_bytes;
  }

  static std::uint64_t bytes_of(const quantization::BlockTensor& tensor) {
    return static_cast<std::uint64_t>(tensor.rows * tensor.columns) * sizeof(float);
  }

  BlockedWeight record(std::size_t t, const quantization::BlockErrors& errors) const {
    const auto& tensor = placement_.tensors[t];
    const auto first = !tensor.products.empty() ? tensor.products.front()
                       : !tensor.tables.empty() ? tensor.tables.front()
                                                : tensor.others.front().first;
    const auto& reader = model_.graph.nodes[first];
    const bool nearest = options_.weights_only.method == WeightMethod::nearest;
    BlockedWeight told{.name = model_.graph.initializers[tensor.initializer].name,
                       .node = reader.id(),
                       .op_type = reader.op_type(),
                       .bits = tensor.format.bits,
                       .block_size = tensor.format.block,
                       .rows = tensor.rows,
                       .columns = tensor.columns,
                       .method = nearest ? "nearest" : "search",
                       .sqnr_db = errors.errors > 0 ? 10 * std::log10(errors.squares / errors.errors)
                                                    : std::numeric_limits<double>::infinity(),
                       .output_error = {}};
    if (const auto* found = solved(t)) {
      told.method = found->verdict().method;
      told.output_error = found->verdict().output_error;
    }
    return told;
  }

  void bench() {
    const auto scope = profiler_.scope(run::kLatencyStage);
    std::unique_ptr<data::SampleSource> source;  // none: inputs are made up
    if (config::has_samples(options_) && config::reads_twice(options_)) {
      if (options_.samples != nullptr) options_.samples->rewind();
      source = run::open_samples(options_.calibration_data.value_or(""), options_.samples, run::input_specs(model_),
                                 {kCompared, options_.batch_size});
    }
    if (!runtime_) runtime_.emplace(options_.runtime);
    const auto models = 2 * (result_.model_bytes_before + result_.model_bytes_after);  // read, and packed for kernels
    const auto measured = run::measure_latency(
        *runtime_, {.float_model = options_.model,
                    .quantized_model = options_.output,
                    .source = source.get(),
                    .samples = kTimed,
                    .threads = options_.threads,
                    .run_seconds = profiler_.now(),
                    .sample_seconds = 0,
                    .needed_memory = profile::memory_now().resident + models,
                    .memory_budget = options_.resources.memory_budget.value_or(planning::available_memory()),
                    .stop = options_.stop});
    result_.latency = measured.change;
    append(measured.notes);
  }

  // As deployed, on samples that the weights were solved with.
  void compare_outputs() {
    const auto budget = run::budget_of(options_.resources, work_->path()).memory;
    const auto needed = profile::memory_now().resident + 2 * (result_.model_bytes_before + result_.model_bytes_after);
    if (needed > budget || !config::reads_twice(options_)) {
      result_.notes.emplace_back("the outputs were not compared: " +
                                 (needed > budget
                                      ? fmt::format("both models side by side would take about {}", format_size(needed))
                                      : std::string("the samples can be read only once")));
      return;
    }
    if (options_.samples != nullptr) options_.samples->rewind();
    const auto scope = profiler_.scope(run::kComparisonStage);
    const auto comparison = compare({.float_model = options_.model,
                                     .quantized_model = options_.output,
                                     .calibration_data = options_.calibration_data.value_or(""),
                                     .samples = options_.samples,
                                     .max_samples = kCompared,
                                     .batch_size = options_.batch_size,
                                     .threads = options_.threads,
                                     .outputs_only = true,
                                     .runtime = options_.runtime,
                                     .progress = {},
                                     .stop = options_.stop});
    if (comparison.outputs.empty()) return;
    const auto worst = std::min_element(comparison.outputs.begin(), comparison.outputs.end(),
                                        [](const auto& a, const auto& b) { return a.sqnr_db < b.sqnr_db; });
    auto& accuracy = result_.accuracy.emplace();
    accuracy.samples = comparison.samples;
    accuracy.sqnr_db = accuracy.sqnr_all_db = worst->sqnr_db;
    accuracy.cosine = worst->cosine;
  }

  void append(const std::vector<std::string>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  const QuantizeOptions& options_;
  std::size_t threads_;
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  QuantizeResult result_;
  onnx::Model model_;
  quantization::BlockPlacement placement_;
  std::optional<run::RunDirectory> work_;  // of runs with samples
  std::optional<exec::Runtime> runtime_;   // of runs that need it
  tuning::SolvedBlocks solved_;
};

}  // namespace

QuantizeResult quantize_weights(const QuantizeOptions& options) { return WeightsRun(options).run(); }

}  // namespace detent::pipeline
