#include "pipeline/quantize_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "config/derived.h"
#include "config/identity.h"
#include "data/part.h"
#include "exec/session.h"
#include "graph/fixed_shapes.h"
#include "graph/kv_cache.h"
#include "graph/rewrite.h"
#include "graph/transformer.h"
#include "pipeline/bits_plan.h"
#include "pipeline/bits_target.h"
#include "pipeline/block_report.h"
#include "pipeline/compare_rotation.h"
#include "pipeline/computed_weights.h"
#include "pipeline/deployed.h"
#include "pipeline/drafted_blocks.h"
#include "pipeline/observe_cache.h"
#include "planning/limits.h"
#include "profile/meters.h"
#include "profile/profiler.h"
#include "quantization/block_stream.h"
#include "quantization/block_weights.h"
#include "quantization/emit/blocks.h"
#include "quantization/float_placement.h"
#include "quantization/size_search.h"
#include "run/content_order.h"
#include "run/kv_cache.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/run_report.h"
#include "run/samples.h"
#include "run/sweep_setup.h"
#include "solve/sweep/block_weights.h"
#include "solve/sweep/weight_solving.h"
#include "store/spool.h"

namespace detent::pipeline {
namespace {

using profile::Step;
constexpr std::string_view kPlanStage = "Choice of bits";

class WeightsRun {
 public:
  WeightsRun(const QuantizeOptions& options, const BlocksRequest& request)
      : options_(options),
        resources_(options.resources),
        request_(request),
        threads_(thread_count(options.threads)),
        run_profiler_(options.profiler, options.profile),
        profiler_(run_profiler_.profiler()),
        target_(options) {}

  QuantizeResult run() {
    pre_process();
    if (options_.accuracy.target) {
      meet_target();
    } else {
      if (options_.weights_only.max_size) plan();
      if (options_.weights_only.rotation == Rotation::automatic) {
        choose_rotation();
      } else if (source_ && draft_.is_plain()) {
        solve(*source_, work_->path(), Listens::yes);
      }
    }
    if (source_ && cache_ && !has_seen_cache_) observe_cache();
    if (source_) close_samples();
    write();
    if (work_) work_->finish();
    if (!request_.file) run_models();
    run_profiler_.finish();
    if (!request_.file) run::write_reports(report_, run::request_of(options_, result_, {}), run_profiler_);
    result_.stages = run_profiler_.stage_reports();
    result_.peak_memory = profiler_.peak_memory();
    return std::move(result_);
  }

 private:
  void pre_process() {
    const auto scope = profiler_.scope(Step::pre_process);
    draft_.model = onnx::read_model(options_.model);
    profiler_.checkpoint(Step::model_loaded);
    if (const auto& reason = options_.config.target_reason; !reason.empty()) append({reason});
    run::check_outputs(options_, draft_.model);
    if (config::has_samples(options_)) {
      work_.emplace(options_.resources, identity());
      profiler_.watch_directory(work_->path());
      append(work_->notes());
    }
    result_.model_bytes_before = run::size_on_disk(draft_.model);
    graph::unfold(draft_.model, {options_.resources.memory_budget, options_.stop});
    append(graph::lift_constants(draft_.model));
    append(graph::drop_initializer_inputs(draft_.model));
    graph::sort_topologically(draft_.model);
    if (const auto& shapes = options_.config.input_shapes; !shapes.empty())
      append(graph::fix_input_shapes(draft_.model, shapes));
    append(compute_weights(
        draft_.model, options_.config, options_.weights_only,
        {[this] { return runtime_if_there(); }, resources_.memory_budget.value_or(planning::available_memory()) / 4}));
    result_.transformer = graph::find_transformer(draft_.model, graph::ValueTypes());
    if (options_.weights_only.rotation == Rotation::on) rotate();
    if (keeps_cache_in_bits()) (void)graph::cached_attentions(draft_.model);  // what cannot be is better known early
    draft_.placement = quantization::place_blocks(draft_.model, options_.config, options_.weights_only);
    if (const auto opset = draft_.needed_opset(options_.weights_only.form); opset > draft_.model.opset()) {
      append(graph::upgrade_opset(draft_.model, {}, opset));
      draft_.placement = quantization::place_blocks(draft_.model, options_.config, options_.weights_only);
    }
    if (!chooses_bits()) append(draft_.placement.notes);
    if (draft_.placement.tensors.empty())
      throw bad_input(
          fmt::format("model '{}' has no weights that can be stored in blocks", options_.model.string()),
          "what stays as it is, and why: " +
              (draft_.placement.notes.empty() ? "no MatMul reads a constant matrix" : draft_.placement.notes.front()));
    count_nodes();
    if (config::has_samples(options_)) open_samples();
  }

  const exec::Runtime* runtime_if_there() {
    if (!runtime_) runtime_ = run::runtime_if_there(options_);
    return runtime_ ? &*runtime_ : nullptr;
  }

  bool keeps_cache_in_bits() const { return options_.kv_cache.type != KvCacheType::keep; }
  bool chooses_bits() const { return options_.weights_only.max_size || options_.accuracy.target; }

  void count_nodes() {
    result_.nodes_quantized = quantization::node_count(draft_.placement);
    result_.nodes_in_float = draft_.placement.in_float;
  }

  nlohmann::json identity() const {
    auto options = config::identity(options_, config::Affects::statistics);
    options.update(config::identity(options_, config::Affects::integers));
    return run::run_identity({.model = draft_.model,
                              .output = options_.output,
                              .calibration_data = options_.calibration_data,
                              .options = options});
  }

  void open_samples() {
    if (!runtime_) runtime_.emplace(options_.runtime, options_.resources.sample_time_limit);
    raise_model();
    types_ = exec::probe_values(*runtime_, running());
    if (raised_) graph::name_idle_casts(*raised_, types_);
    given_ = run::open_samples(options_.calibration_data.value_or(""), options_.samples, run::input_specs(running()),
                               {.max_samples = options_.max_samples,
                                .batch_size = options_.batch_size,
                                .file_memory = run::memory_for_samples(options_.resources)});
    source_.emplace(*given_, run::ContentOrderOptions{});
    if (keeps_cache_in_bits()) cache_.emplace(draft_.model, running(), options_.kv_cache);
  }

  void close_samples() {
    append(source_->notes());
    source_.reset();
    given_.reset();
  }

  // The samples run again in a run that goes on, so nothing is kept of them.
  run::Context context() const {
    return {*runtime_, resources_, work_->scratch(), options_.threads, options_.progress, options_.stop};
  }

  // Which weights get how many bits.
  void plan() {
    const auto scope = profiler_.scope(kPlanStage);
    std::optional<PlanSamples> samples;
    if (source_) samples.emplace(plan_samples(*source_));
    BitsPlanner planner(draft_.model, options_, samples);
    planner.check(*options_.weights_only.max_size);
    planner.measure();
    take(planner.within(*options_.weights_only.max_size));
    append(draft_.placement.notes);
  }

  PlanSamples plan_samples(data::SampleSource& source) const {
    const auto budget = run::budget_of(resources_, work_->path()).memory;
    return {context(), types_, source, budget, for_sums(budget)};
  }

  void take(PlannedBits planned) {
    draft_.placement =
        quantization::place_blocks(draft_.model, options_.config, options_.weights_only, planned.of_nodes);
    result_.bits_plan = std::move(planned.plan);
    count_nodes();
  }

  // The smallest model that reaches the target on samples that are held back, each solved, written and run.
  void meet_target() {
    constexpr std::size_t kHeldBack = 4;  // one in so many
    data::Part fitted(*source_, kHeldBack, data::Part::Kind::others);
    data::Part judging(*source_, kHeldBack, data::Part::Kind::last);
    const std::optional<PlanSamples> samples(plan_samples(fitted));
    const auto original = draft_.model;
    BitsPlanner planner(original, options_, samples);
    {
      const auto scope = profiler_.scope(kPlanStage);
      planner.measure();
    }
    std::optional<std::pair<DraftedBlocks, BitsPlan>> best;
    std::vector<MeasuredSize> tried;
    const auto measured = [&](std::uint64_t size) {
      draft_.model = original;
      take(planner.within(size));
      const auto directory = work_->path() / fmt::format("try-{}", tried.size() + 1);
      paths::make_folder(directory);
      solve(fitted, directory);
      const double value = measure(judging);
      tried.push_back({result_.bits_plan->size, value});
      if (target_.loss_of(value) <= target_.most_loss()) {
        result_.bits_plan->reached = value;
        best = {draft_, *result_.bits_plan};
      }
      return target_.loss_of(value);
    };
    const auto expected = [&](std::uint64_t size) { return planner.within(size).plan.error; };
    std::vector<quantization::SizeTrial> trials;
    quantization::smallest_size({.smallest = planner.smallest(),
                                 .largest = planner.in_float(),
                                 .first = planner.uniform(),
                                 .most_loss = target_.most_loss()},
                                expected, measured, trials);
    if (!best) throw target_.out_of_reach(tried);
    draft_ = std::move(best->first);
    result_.bits_plan = std::move(best->second);
    result_.bits_plan->tried = std::move(tried);
    append(draft_.placement.notes);
    count_nodes();
  }

  void rotate() {
    if (!rotation_) rotation_.emplace(options_, work_ ? &*work_ : nullptr, profiler_);
    append(rotation_->apply(draft_.model, result_.transformer));
    resources_.disk_budget = rotation_->disk_left();
  }

  // Both ways, solved, written and run; what is nearer to the float model on held-back samples is solved on all.
  void choose_rotation() {
    constexpr std::size_t kHeldBack = 8;  // one in so many
    const auto original = draft_.model;
    try {
      rotate();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_input) throw;
      result_.notes.push_back(fmt::format("not rotated: {}", e.what()));
      draft_.model = original;
      if (draft_.is_plain()) solve(*source_, work_->path(), Listens::yes);
      return;
    }
    data::Part fitted(*source_, kHeldBack, data::Part::Kind::others);
    data::Part judging(*source_, kHeldBack, data::Part::Kind::last);
    const auto attempt = [&](const char* name) {
      draft_.placement = quantization::place_blocks(draft_.model, options_.config, options_.weights_only);
      draft_.solved = {};
      auto unsolved = draft_;
      const auto directory = work_->path() / name;
      paths::make_folder(directory);
      if (draft_.is_plain()) solve(fitted, directory);
      draft_.find_common_scales();
      const auto scope = profiler_.scope(run::kComparisonStage);
      auto emitted = quantization::emit_blocks(draft_.model, draft_.placement, streams(), options_.weights_only);
      const auto found = fidelity_of(std::move(emitted), directory / "candidate.onnx", options_, *runtime_, judging);
      return std::pair(std::move(unsolved), std::pow(10, -found.sqnr_db / 10));
    };
    auto rotated = attempt("rotated");
    draft_.model = original;
    auto plain = attempt("plain");
    result_.rotated = RotatedStream{plain.second, rotated.second, rotated.second < plain.second};
    draft_ = std::move((result_.rotated->kept ? rotated : plain).first);
    if (draft_.is_plain()) solve(*source_, work_->path(), Listens::yes);
  }

  double measure(data::SampleSource& samples) {
    const auto scope = profiler_.scope(run::kComparisonStage);
    auto emitted = quantization::emit_blocks(draft_.model, draft_.placement, streams(), options_.weights_only);
    return target_.measure(std::move(emitted), work_->path() / "candidate.onnx", *runtime_, samples);
  }

  // Attempts leave the cache and the extremes of values alone: they are observed once, on all samples.
  enum class Listens { no, yes };

  // From what the products read on the samples.
  void solve(data::SampleSource& source, const std::filesystem::path& directory, Listens listens = Listens::no) {
    const auto scope = profiler_.scope(Step::calibration);
    const auto budget = run::budget_of(resources_, work_->path());
    const auto placement = placement_as_run();
    const auto stages = solve::block_stages(running(), placement, options_.weights_only, for_sums(budget.memory));
    std::unique_ptr<store::Spool> spool;
    if (stages.size() > 1) spool = run::make_spool(context(), planning::split_budget(budget.memory / 4, 0));
    source.rewind();
    draft_.solved = solve::solve_blocks(running(), types_, placement, stages, *runtime_, source,
                                        {.config = options_.weights_only,
                                         .scale_inputs = !raised_,
                                         .memory_budget = budget.memory,
                                         .directory = directory,
                                         .sweep = sweeping(spool.get(), listens)});
    has_seen_cache_ = listens == Listens::yes;
    result_.samples = draft_.solved.samples;
    for (const auto& [fold, scaling] : draft_.solved.scalings)
      quantization::apply_fold(fold, scaling.factors, draft_.model, draft_.placement);
  }

  solve::GramSweepOptions sweeping(store::Spool* spool, Listens listens) {
    const bool heard = cache_ && listens == Listens::yes;
    return {.threads = options_.threads,
            .spool = spool,
            .progress = options_.progress,
            .stop = options_.stop,
            .observed = quantization::float_values(running(), types_),
            .extremes = listens == Listens::yes ? request_.extremes : nullptr,
            .listened = heard ? cache_->values() : std::vector<std::string>(),
            .listener = heard ? &cache_->observer() : nullptr};
  }

  // Where weights are not solved from samples.
  void observe_cache() {
    const auto scope = profiler_.scope(Step::calibration);
    source_->rewind();
    result_.samples = pipeline::observe_cache(running(), types_, context(), *source_, *cache_);
    has_seen_cache_ = true;
  }

  // The model as samples are run through it: in float32, since products are summed up so.
  const onnx::Model& running() const { return raised_ ? *raised_ : draft_.model; }

  void raise_model() {
    if (!draft_.any_type(onnx::DataType::float16) && !draft_.any_type(onnx::DataType::bfloat16)) return;
    if (chooses_bits())
      throw bad_input(
          fmt::format("model '{}' has weights of 16-bit floats, and {} measures float32 with samples",
                      options_.model.string(), options_.weights_only.max_size ? "--max-size" : "--accuracy-target"),
          options_.weights_only.max_size ? "leave out --calibration-data, or quantize the model in float32"
                                         : "quantize the model in float32");
    if (options_.weights_only.method == WeightMethod::awq)
      throw bad_input(
          fmt::format("model '{}' has weights of 16-bit floats, and --set weights-method=awq scales float32",
                      options_.model.string()),
          "give gptq or auto, or quantize the model in float32");
    raised_ = draft_.model;
    graph::raise_floats(*raised_, run::file_store(work_->scratch(), "float"), true);
  }

  quantization::BlockPlacement placement_as_run() const {
    auto placement = draft_.placement;
    if (raised_) quantization::move_to_float32(placement, draft_.casts_of_inputs());
    return placement;
  }

  // What the process and columns that are solved leave of the budget, for sums and activations alike.
  std::uint64_t for_sums(std::uint64_t budget) const {
    std::uint64_t columns = std::uint64_t{64} << 20;
    for (const auto& tensor : draft_.placement.tensors)
      columns = std::max(columns, solve::memory_of_piece(tensor.rows));
    const auto taken = profile::memory_now().anonymous + columns;
    return budget > taken ? (budget - taken) / 2 : 0;
  }

  std::vector<quantization::BlockStream> streams() const {
    return draft_.streams(options_.weights_only.method, threads_, options_.stop);
  }

  void write() {
    const auto scope = profiler_.scope(Step::quantization_matmul_nbits);
    draft_.find_common_scales();
    std::uint64_t all = 0, done = 0;
    for (const auto& tensor : draft_.placement.tensors) all += bytes_of(tensor);
    result_.weights.resize(draft_.placement.tensors.size());
    const auto written = [&](std::size_t t, const quantization::BlockErrors& errors) {
      result_.weights[t] =
          describe_weight(draft_.model, draft_.placement, draft_.solved, t, errors, options_.weights_only.method);
      done = std::min(all, done + bytes_of(draft_.placement.tensors[t]));
      if (options_.progress) options_.progress("weights (MiB)", done >> 20, all >> 20);
    };
    auto emitted = quantization::emit_blocks(draft_.model, draft_.placement, streams(), options_.weights_only, written);
    if (cache_) cache_->apply(emitted, result_);
    if (request_.file) {
      auto elsewhere = options_;
      elsewhere.output = *request_.file;
      return run::write_output(emitted, elsewhere, nullptr, result_);
    }
    run::Prover prove(options_, runtime_if_there());
    const auto reason = draft_.reason_against_proof();
    const bool cached = reason.empty() && cache_ && runtime_;
    prove.excuse(cached ? run::reason_against_running(options_.kv_cache.type, runtime_->version()) : reason);
    run::write_output(emitted, options_, &prove, result_);
  }

  static std::uint64_t bytes_of(const quantization::BlockTensor& tensor) {
    return *onnx::byte_count(tensor.type, tensor.rows * tensor.columns);
  }

  void run_models() {
    auto reason = draft_.reason_against_running();
    if (reason.empty() && cache_) reason = reason_against_running_cache(options_, options_.output, *runtime_);
    if (!reason.empty()) return append({std::move(reason)});
    if (options_.bench && runtime_) {
      const auto inputs = inputs_to_time(draft_.model, result_);
      if (inputs) time_models(options_, *inputs, *runtime_, profiler_, result_);
    }
    if (config::has_samples(options_)) report_.comparison = compare_models(options_, work_->path(), profiler_, result_);
  }

  void append(const std::vector<std::string>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  const QuantizeOptions& options_;
  Resources resources_;  // with the disk that is left
  const BlocksRequest& request_;
  std::size_t threads_;
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  QuantizeResult result_;
  run::RunReport report_;
  DraftedBlocks draft_;
  std::optional<onnx::Model> raised_;      // of runs with samples, where the model has 16-bit floats
  std::optional<run::RunDirectory> work_;  // of runs with samples
  std::optional<exec::Runtime> runtime_;   // of runs that need it
  graph::ValueTypes types_;                // of runs with samples
  std::unique_ptr<data::SampleSource> given_;
  std::optional<run::ContentOrderedSamples> source_;
  std::optional<run::KvCacheRun> cache_;
  bool has_seen_cache_ = false;
  std::optional<StreamRotation> rotation_;
  BitsTarget target_;
};

}  // namespace

QuantizeResult quantize_weights(const QuantizeOptions& options, const BlocksRequest& request) {
  return WeightsRun(options, request).run();
}

}  // namespace detent::pipeline
