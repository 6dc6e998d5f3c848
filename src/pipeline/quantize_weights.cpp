#include "pipeline/quantize_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "config/identity.h"
#include "config/wanted.h"
#include "data/part.h"
#include "data/replay.h"
#include "exec/session.h"
#include "graph/rewrite.h"
#include "graph/transformer.h"
#include "onnx/write.h"
#include "pipeline/bits_plan.h"
#include "pipeline/bits_target.h"
#include "pipeline/block_report.h"
#include "pipeline/block_streams.h"
#include "pipeline/deployed.h"
#include "pipeline/stream_rotation.h"
#include "profile/meters.h"
#include "profile/profiler.h"
#include "quantization/block_weights.h"
#include "quantization/emit/blocks.h"
#include "quantization/float_placement.h"
#include "quantization/size_search.h"
#include "run/by_content.h"
#include "run/kv_cache.h"
#include "run/outputs.h"
#include "run/prepare.h"
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

constexpr std::string_view kPlanStage = "Choice of bits";

class WeightsRun {
 public:
  WeightsRun(const QuantizeOptions& options, const BlocksRequest& request)
      : options_(options),
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
      } else if (source_ && is_plain()) {
        solve(*source_, work_->path());
      }
    }
    if (source_ && cache_ && !has_seen_cache_) observe_cache();
    if (source_) close_samples();
    write();
    if (work_) work_->finish();
    if (!request_.file) run_models();
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
    if (const auto& reason = options_.config.target_reason; !reason.empty()) append({reason});
    run::check_output(options_.output, model_, options_.external_data_suffix);
    if (config::has_samples(options_)) {
      work_.emplace(options_.resources, identity());
      append(work_->notes());
    }
    result_.model_bytes_before = run::size_on_disk(model_);
    graph::unfold(model_);
    append(graph::lift_constants(model_));
    append(graph::drop_initializer_inputs(model_));
    graph::sort_topologically(model_);
    result_.transformer = graph::find_transformer(model_, {});
    if (options_.weights_only.rotation == Rotation::on) rotate();
    if (keeps_cache_in_bits()) (void)graph::cached_attentions(model_);  // what cannot be is better known early
    placement_ = quantization::place_blocks(model_, options_.config, options_.weights_only);
    if (const auto opset = needed_opset(); opset > model_.opset()) {
      append(graph::upgrade_opset(model_, {}, opset));
      placement_ = quantization::place_blocks(model_, options_.config, options_.weights_only);
    }
    if (!chooses_bits()) append(placement_.notes);
    if (placement_.tensors.empty())
      throw bad_input(fmt::format("model '{}' has no weights that can be stored in blocks", options_.model.string()),
                      "what stays as it is, and why: " +
                          (placement_.notes.empty() ? "no MatMul reads a constant matrix" : placement_.notes.front()));
    count_nodes();
    if (config::has_samples(options_)) open_samples();
  }

  bool keeps_cache_in_bits() const { return options_.kv_cache.type != KvCacheType::keep; }

  bool chooses_bits() const { return options_.weights_only.max_size || options_.accuracy.target; }

  // By the DequantizeLinear nodes that will be written; 0: none.
  std::int64_t needed_opset() const {
    std::int64_t opset = 0;
    for (const auto& tensor : placement_.tensors) {
      if (options_.weights_only.form == WeightForm::qdq || !tensor.others.empty())
        opset = std::max(opset, quantization::opset_of_blocks(tensor.format));
    }
    return opset;
  }

  void count_nodes() {
    result_.nodes_quantized = quantization::node_count(placement_);
    result_.nodes_in_float = placement_.in_float;
  }

  nlohmann::json identity() const {
    const auto options = config::identity(options_, config::Affects::integers);
    return run::run_identity({.model = model_,
                              .output = options_.output,
                              .calibration_data = options_.calibration_data,
                              .options = options});
  }

  void open_samples() {
    runtime_.emplace(options_.runtime);
    raise_model();
    types_ = exec::probe_values(*runtime_, running());
    if (raised_) graph::name_idle_casts(*raised_, types_);
    // Samples are read in the order of what they hold, so those that pass once are kept.
    auto* stream = options_.samples;
    if (stream != nullptr && !stream->can_rewind())
      stream = &kept_.emplace(*stream, data::ReplayStream::kAll, work_->scratch());
    given_ = run::open_samples(options_.calibration_data.value_or(""), stream, run::input_specs(running()),
                               {.max_samples = options_.max_samples,
                                .batch_size = options_.batch_size,
                                .file_memory = run::memory_for_samples(options_.resources)});
    source_.emplace(*given_, run::ByContentOptions{});
    if (keeps_cache_in_bits()) cache_.emplace(model_, running(), options_.kv_cache);
  }

  void close_samples() {
    append(source_->notes());
    source_.reset();
    given_.reset();
    kept_.reset();
  }

  run::Context context() const {
    return {*runtime_, options_.resources, work_->path(), options_.threads, options_.progress, options_.stop};
  }

  // Which weights get how many bits.
  void plan() {
    const auto scope = profiler_.scope(kPlanStage);
    std::optional<PlanSamples> samples;
    if (source_) samples.emplace(plan_samples(*source_));
    BitsPlanner planner(model_, options_, samples);
    planner.check(*options_.weights_only.max_size);
    planner.measure();
    take(planner.within(*options_.weights_only.max_size));
    append(placement_.notes);
  }

  PlanSamples plan_samples(data::SampleSource& source) const {
    const auto budget = run::budget_of(options_.resources, work_->path()).memory;
    return {context(), types_, source, budget, for_sums(budget)};
  }

  void take(PlannedBits planned) {
    placement_ = quantization::place_blocks(model_, options_.config, options_.weights_only, planned.of_nodes);
    result_.bits_plan = std::move(planned.plan);
    count_nodes();
  }

  // The smallest model that reaches the target on samples that are held back, each solved, written and run.
  void meet_target() {
    constexpr std::size_t kHeldBack = 4;  // one in so many
    data::Part fitted(*source_, kHeldBack, data::Part::Kind::others);
    data::Part judging(*source_, kHeldBack, data::Part::Kind::last);
    const std::optional<PlanSamples> samples(plan_samples(fitted));
    const auto original = model_;
    BitsPlanner planner(original, options_, samples);
    {
      const auto scope = profiler_.scope(kPlanStage);
      planner.measure();
    }
    struct Found {
      onnx::Model model;
      quantization::BlockPlacement placement;
      tuning::SolvedBlocks solved;
      BitsPlan plan;
    };
    std::optional<Found> best;
    std::vector<MeasuredSize> tried;
    const auto measured = [&](std::uint64_t size) {
      model_ = original;
      take(planner.within(size));
      const auto directory = work_->path() / fmt::format("try-{}", tried.size() + 1);
      std::filesystem::create_directory(directory);
      solve(fitted, directory);
      const double value = measure(judging);
      tried.push_back({result_.bits_plan->size, value});
      if (target_.loss_of(value) <= target_.most_loss()) {
        result_.bits_plan->reached = value;
        best = {model_, placement_, solved_, *result_.bits_plan};
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
    model_ = std::move(best->model);
    placement_ = std::move(best->placement);
    solved_ = std::move(best->solved);
    result_.bits_plan = std::move(best->plan);
    result_.bits_plan->tried = std::move(tried);
    append(placement_.notes);
    count_nodes();
  }

  void rotate() {
    if (!rotation_) rotation_.emplace(options_, threads_);
    append(rotation_->rotate(model_, result_.transformer));
  }

  // Both ways, on samples that are held back.
  void choose_rotation() {
    rotation_.emplace(options_, threads_);
    tries_ = true;
    const auto original = model_;
    auto chosen = rotation_->choose(
        original, result_.transformer, *source_, work_->path(),
        [&](const onnx::Model& model, data::SampleSource& source, const std::filesystem::path& directory) {
          model_ = model;
          placement_ = quantization::place_blocks(model_, options_.config, options_.weights_only);
          solved_ = {};
          if (is_plain()) solve(source, directory);
          return BlocksDraft{model_, placement_, solved_};
        },
        *runtime_);
    tries_ = false;
    model_ = std::move(chosen.draft.model);
    placement_ = std::move(chosen.draft.placement);
    solved_ = std::move(chosen.draft.solved);
    result_.rotated = chosen.told;
    append(chosen.notes);
  }

  double measure(data::SampleSource& samples) {
    const auto scope = profiler_.scope(run::kComparisonStage);
    auto emitted = quantization::emit_blocks(
        model_, placement_, block_streams(model_, placement_, solved_, options_, threads_), options_.weights_only);
    return target_.measure(std::move(emitted), work_->path() / "candidate.onnx", *runtime_, samples);
  }

  // From what the products read on the samples.
  void solve(data::SampleSource& source, const std::filesystem::path& directory) {
    const auto scope = profiler_.scope(Step::calibration);
    const auto budget = run::budget_of(options_.resources, work_->path());
    const auto placement = placement_as_run();
    const auto stages = tuning::block_stages(running(), placement, options_.weights_only, for_sums(budget.memory));
    std::unique_ptr<store::Spool> spool;
    if (stages.size() > 1) spool = run::make_spool(context(), budget.memory / 4);
    source.rewind();
    solved_ = tuning::solve_blocks(running(), types_, placement, stages, *runtime_, source,
                                   {.config = options_.weights_only,
                                    .scale_inputs = !raised_,
                                    .directory = directory,
                                    .sweep = sweeping(spool.get())});
    has_seen_cache_ = cache_.has_value() && !tries_;
    result_.samples = solved_.samples;
    for (const auto& [fold, scaling] : solved_.scalings)
      quantization::apply_fold(fold, scaling.factors, model_, placement_);
  }

  tuning::GramSweepOptions sweeping(store::Spool* spool) {
    return {.threads = options_.threads,
            .spool = spool,
            .progress = options_.progress,
            .stop = options_.stop,
            .observed = quantization::float_values(running(), types_),
            .extremes = request_.extremes,
            .listened = cache_ && !tries_ ? cache_->values() : std::vector<std::string>(),
            .listener = cache_ && !tries_ ? &cache_->observer() : nullptr};
  }

  // Where weights are not solved from samples.
  void observe_cache() {
    const auto scope = profiler_.scope(Step::calibration);
    source_->rewind();
    result_.samples = tuning::sweep_values(running(), types_, *runtime_, *source_, sweeping(nullptr));
    has_seen_cache_ = true;
  }

  // The model as samples are run through it: in float32, since products are summed up so.
  const onnx::Model& running() const { return raised_ ? *raised_ : model_; }

  void raise_model() {
    if (!any_type(onnx::DataType::float16) && !any_type(onnx::DataType::bfloat16)) return;
    if (chooses_bits())
      throw bad_input(
          fmt::format("model '{}' has weights of 16-bit floats, and {} measures float32 with samples",
                      options_.model.string(), options_.weights_only.max_size ? "--max-size" : "--accuracy-target"),
          options_.weights_only.max_size ? "leave out --calibration-data, or quantize the model in float32"
                                         : "quantize the model in float32");
    if (options_.weights_only.method == WeightMethod::awq)
      throw bad_input(fmt::format("model '{}' has weights of 16-bit floats, and --weights-method awq scales float32",
                                  options_.model.string()),
                      "give gptq or auto, or quantize the model in float32");
    raised_ = model_;
    graph::raise_floats(*raised_, run::file_store(work_->scratch(), "float"), true);
  }

  quantization::BlockPlacement placement_as_run() const {
    auto placement = placement_;
    if (raised_) quantization::move_to_float32(placement, casts_of_inputs());
    return placement;
  }

  // They stand before all other nodes.
  std::size_t casts_of_inputs() const {
    const auto& inputs = model_.graph.inputs;
    return static_cast<std::size_t>(std::count_if(inputs.begin(), inputs.end(), [](const auto& input) {
      return input.type == onnx::DataType::float16 || input.type == onnx::DataType::bfloat16;
    }));
  }

  bool any_type(onnx::DataType type) const {
    return std::any_of(placement_.tensors.begin(), placement_.tensors.end(),
                       [type](const auto& tensor) { return tensor.type == type; });
  }

  // What the process and a stripe of a weight leave of the budget, for sums and activations alike.
  static std::uint64_t for_sums(std::uint64_t budget) {
    constexpr std::uint64_t kStripe = std::uint64_t{64} << 20;
    const auto taken = profile::memory_now().anonymous + kStripe;
    return budget > taken ? (budget - taken) / 2 : 0;
  }

  // Integers with scales of the weight's type, for which samples tell which are best.
  bool is_plain() const { return placement_.tensors.front().format.is_plain(); }

  void write() {
    const auto scope = profiler_.scope(Step::quantization_matmul_nbits);
    find_common_scales(model_, placement_);
    std::uint64_t all = 0, done = 0;
    for (const auto& tensor : placement_.tensors) all += bytes_of(tensor);
    result_.weights.resize(placement_.tensors.size());
    const auto written = [&](std::size_t t, const quantization::BlockErrors& errors) {
      result_.weights[t] = describe_weight(model_, placement_, solved_, t, errors, options_.weights_only.method);
      done = std::min(all, done + bytes_of(placement_.tensors[t]));
      if (options_.progress) options_.progress("weights (MiB)", done >> 20, all >> 20);
    };
    auto emitted =
        quantization::emit_blocks(model_, placement_, block_streams(model_, placement_, solved_, options_, threads_),
                                  options_.weights_only, written);
    if (cache_) cache_->apply(emitted, result_);
    if (!request_.file) return run::write_output(emitted, options_, result_);
    auto elsewhere = options_;
    elsewhere.output = *request_.file;
    run::write_output(emitted, elsewhere, result_);
  }

  static std::uint64_t bytes_of(const quantization::BlockTensor& tensor) {
    return *onnx::byte_count(tensor.type, tensor.rows * tensor.columns);
  }

  // Both of them, where the runtime can.
  void run_models() {
    if (any_type(onnx::DataType::bfloat16)) {
      result_.notes.emplace_back(
          "neither model was run: the weights are bfloat16, which ONNX Runtime has no operators for on CPUs");
      return;
    }
    const auto& format = placement_.tensors.front().format;
    if (format.floats == QuantType::float4e2m1 || format.scales == ScaleType::float8e8m0) {
      result_.notes.emplace_back(
          "the quantized model was not run: ONNX Runtime's CPU reads no float4e2m1 and no scales of float8e8m0");
      return;
    }
    if (cache_) {
      if (const auto note = run::reason_against_running(options_.kv_cache.type, runtime_->version()); !note.empty())
        return result_.notes.push_back("the quantized model was not run: " + note);
    }
    if (options_.bench) {
      if (!runtime_) runtime_.emplace(options_.runtime);
      time_models(options_, run::input_specs(model_), *runtime_, profiler_, result_);
    }
    if (config::has_samples(options_)) compare_models(options_, work_->path(), profiler_, result_);
  }

  void append(const std::vector<std::string>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  const QuantizeOptions& options_;
  const BlocksRequest& request_;
  std::size_t threads_;
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  QuantizeResult result_;
  onnx::Model model_;
  quantization::BlockPlacement placement_;
  std::optional<onnx::Model> raised_;      // of runs with samples, where the model has 16-bit floats
  std::optional<run::RunDirectory> work_;  // of runs with samples
  std::optional<exec::Runtime> runtime_;   // of runs that need it
  graph::ValueTypes types_;                // of runs with samples
  std::optional<data::ReplayStream> kept_;
  std::unique_ptr<data::SampleSource> given_;
  std::optional<run::ByContent> source_;
  tuning::SolvedBlocks solved_;
  std::optional<run::KvCacheRun> cache_;
  bool has_seen_cache_ = false;
  std::optional<StreamRotation> rotation_;
  bool tries_ = false;
  BitsTarget target_;
};

}  // namespace

QuantizeResult quantize_weights(const QuantizeOptions& options, const BlocksRequest& request) {
  return WeightsRun(options, request).run();
}

}  // namespace detent::pipeline
