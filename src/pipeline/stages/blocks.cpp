#include "pipeline/stages/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "config/results.h"
#include "data/source.h"
#include "exec/session.h"
#include "graph/execution.h"
#include "graph/patterns.h"
#include "graph/rewrites/rewrite.h"
#include "graph/transformer.h"
#include "pipeline/deployed.h"
#include "planning/memory.h"
#include "profile/meters.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/emitters.h"
#include "quantization/floats/float_placement.h"
#include "quantization/placement/placement.h"
#include "run/collect.h"
#include "run/comparison/proof.h"
#include "run/model/prepare.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/shared_work.h"
#include "solve/sweep/block_weights.h"
#include "solve/sweep/weight_solving.h"
#include "store/spool.h"

namespace detent::pipeline {

namespace {

using profile::Step;
constexpr std::string_view kPlanStage = "Choice of bits";

std::uint64_t bytes_of(const quantization::BlockTensor& tensor) {
  return *onnx::byte_count(tensor.type, tensor.rows * tensor.columns);
}

// One pass over the float model in which a decoder's cache is watched: the number of samples. Where memory is short the
// model runs in segments, which changes nothing.
std::uint64_t watch_cache(const onnx::Model& running, const graph::ValueTypes& types, const run::Context& context,
                          data::SampleSource& source, run::KvCacheRun& cache) {
  quantization::Placement placement;
  for (const auto& value : cache.values()) placement.marks.emplace_back().value = value;
  const planning::Circumstances circumstances{cache.values().size(), false, thread_count(context.threads), 1, 0};
  const run::Prepared prepared{{running, types}};
  const auto sweep = run::set_up_sweep(context, prepared, placement, source, circumstances);
  return solve::sweep_values(running, types, context.runtime, source, sweep.cuts,
                             {.threads = context.threads,
                              .spool = sweep.spool.get(),
                              .progress = context.progress,
                              .stop = context.stop,
                              .listened = cache.values(),
                              .listener = &cache.observer()});
}

bool chooses_bits(const QuantizeOptions& options) { return options.weights_only.max_size || options.accuracy.target; }

}  // namespace

BlockWork::BlockWork(Run& run)
    : run_(run),
      options_(run.options),
      resources_(run.options.resources),
      draft_{.model = std::move(run.model), .placement = {}, .solved = {}},
      target_(run.options) {}

void BlockWork::fold_weights() {
  auto& model = draft_.model;
  const auto most_bytes = resources_.memory_budget.value_or(planning::available_memory()) / 4;
  run_.note(fold_computed_weights(model, options_.config, options_.weights_only,
                                  {[this] { return run_.runtime_or_none(); }, most_bytes}));
  run_.result.transformer = graph::find_transformer(model, graph::ValueTypes());
}

void BlockWork::place() {
  auto& model = draft_.model;
  if (keeps_cache_in_bits())
    (void)run::quantizable_caches(model, options_.kv_cache.type);  // what cannot be is better known early
  draft_.placement = place_default_blocks(model, options_, run_.result.transformer);
  if (const auto opset = draft_.needed_opset(options_.weights_only.form); opset > model.opset()) {
    run_.note(config::graph_notes(graph::upgrade_opset(model, {}, opset)));
    draft_.placement = place_default_blocks(model, options_, run_.result.transformer);
  }
  const auto& placement = draft_.placement;
  if (!chooses_bits(options_)) run_.note(placement.notes);
  if (placement.tensors.empty()) throw no_blocks(options_.model, placement);
  count_nodes();
}

void BlockWork::count_nodes() {
  run_.result.nodes_quantized = draft_.placement.quantized;
  run_.result.nodes_in_float = draft_.placement.in_float;
}

void BlockWork::open_samples() {
  const auto& runtime = run_.load_runtime();
  raise_model();
  types_ = exec::infer_value_types(runtime, running());
  if (raised_) graph::idle_casts_to_identities(*raised_, types_);
  given_ = run_.open_samples(run::input_specs(running()));
  source_.emplace(*given_, run::ContentOrderOptions{});
  if (keeps_cache_in_bits()) cache_.emplace(draft_.model, running(), options_.kv_cache);
}

void BlockWork::choose_bits() {
  const auto scope = run_.profiler.scope(kPlanStage);
  std::optional<PlanSamples> samples;
  if (source_) samples.emplace(plan_samples(*source_));
  BitsPlanner planner(draft_.model, options_, samples);
  planner.check(*options_.weights_only.max_size);
  measure_sensitivities(planner);
  take(planner.within(*options_.weights_only.max_size));
  run_.note(draft_.placement.notes);
}

void BlockWork::measure_sensitivities(BitsPlanner& planner) {
  planner.measure();
  if (auto note = run::inference_device_note(options_.device, *run_.runtime, "sensitivities"); source_ && !note.empty())
    run_.note({std::move(note)});
}

// The samples run again in a run that goes on, so nothing is kept of them.
run::Context BlockWork::context() const {
  auto context = run_.context(run_.work->scratch());
  context.resources = resources_;
  return context;
}

PlanSamples BlockWork::plan_samples(data::SampleSource& source) const {
  const auto budget = run::budget_of(resources_, run_.work->path()).memory;
  auto measuring = context();
  measuring.place = run::inference_device_of(options_.device, *run_.runtime);
  return {std::move(measuring), types_, source, budget, memory_for_gram_sums(budget)};
}

void BlockWork::take(PlannedBits planned) {
  draft_.placement = quantization::place_blocks(draft_.model, options_.config, options_.weights_only, planned.of_nodes);
  run_.result.bits_plan = std::move(planned.plan);
  count_nodes();
}

void BlockWork::meet_target() {
  constexpr std::size_t kHeldBack = 4;  // one in so many
  data::SampleSubset fitted(*source_, kHeldBack, data::SampleSubset::Kind::others);
  data::SampleSubset judging(*source_, kHeldBack, data::SampleSubset::Kind::last);
  const std::optional<PlanSamples> samples(plan_samples(fitted));
  const auto original = draft_.model;
  BitsPlanner planner(original, options_, samples);
  {
    const auto scope = run_.profiler.scope(kPlanStage);
    measure_sensitivities(planner);
  }
  std::optional<std::pair<DraftedBlocks, BitsPlan>> best;
  std::vector<MeasuredSize> tried;
  const auto measured = [&](std::uint64_t size) {
    draft_.model = original;
    take(planner.within(size));
    const auto directory = run_.work->path() / fmt::format("try-{}", tried.size() + 1);
    paths::make_folder(directory);
    solve(fitted, directory, Listens::no);
    const double value = measure(judging);
    tried.push_back({run_.result.bits_plan->size, value});
    if (target_.loss_of(value) <= target_.most_loss()) {
      run_.result.bits_plan->reached = value;
      best = {draft_, *run_.result.bits_plan};
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
  run_.result.bits_plan = std::move(best->second);
  run_.result.bits_plan->tried = std::move(tried);
  run_.note(draft_.placement.notes);
  count_nodes();
}

void BlockWork::rotate() {
  if (!rotation_) rotation_.emplace(options_, run_.work ? &*run_.work : nullptr, run_.profiler);
  run_.note(rotation_->apply(draft_.model, run_.result.transformer));
  resources_.disk_budget = rotation_->disk_left();
}

void BlockWork::choose_rotation() {
  constexpr std::size_t kHeldBack = 8;  // one in so many
  const auto original = draft_.model;
  try {
    rotate();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    run_.result.notes.push_back(fmt::format("not rotated: {}", e.what()));
    draft_.model = original;
    solve();
    return;
  }
  data::SampleSubset fitted(*source_, kHeldBack, data::SampleSubset::Kind::others);
  data::SampleSubset judging(*source_, kHeldBack, data::SampleSubset::Kind::last);
  const auto attempt = [&](const char* name) {
    draft_.placement = place_default_blocks(draft_.model, options_, run_.result.transformer);
    draft_.solved = {};
    auto unsolved = draft_;
    const auto directory = run_.work->path() / name;
    paths::make_folder(directory);
    if (draft_.is_plain()) solve(fitted, directory, Listens::no);
    draft_.find_common_scales();
    const auto scope = run_.profiler.scope(run::kComparisonStage);
    const double error = run::measured_by_first(options_.resources, options_.stop, [&] {
      const auto file = directory / "candidate.onnx";
      return std::pow(10, -fidelity_of(emitted(), file, options_, *run_.runtime, judging).sqnr_db / 10);
    });
    return std::pair(std::move(unsolved), error);
  };
  auto rotated = attempt("rotated");
  draft_.model = original;
  auto plain = attempt("plain");
  run_.result.rotated = RotatedStream{plain.second, rotated.second, rotated.second < plain.second};
  draft_ = std::move((run_.result.rotated->kept ? rotated : plain).first);
  solve();
}

double BlockWork::measure(data::SampleSource& samples) {
  const auto scope = run_.profiler.scope(run::kComparisonStage);
  return run::measured_by_first(options_.resources, options_.stop, [&] {
    return target_.measure(emitted(), run_.work->path() / "candidate.onnx", *run_.runtime, samples);
  });
}

void BlockWork::solve() {
  const auto& shared = run_.shared.solutions;
  if (draft_.is_plain()) solve(*source_, shared.empty() ? run_.work->path() : shared, Listens::yes);
}

void BlockWork::solve(data::SampleSource& source, const std::filesystem::path& directory, Listens listens) {
  const auto scope = run_.profiler.scope(Step::calibration);
  const auto budget = run::budget_of(resources_, run_.work->path());
  const auto placement = placement_as_run();
  const auto stages =
      solve::block_stages(running(), placement, options_.weights_only, memory_for_gram_sums(budget.memory));
  std::unique_ptr<store::Spool> spool;
  const auto usual = usual_memory(budget.memory);
  if (stages.size() > 1) spool = run::make_spool(context(), planning::split_budget(usual / 4, 0));
  source.rewind();
  draft_.solved = solve::solve_blocks(running(), types_, placement, stages, *run_.runtime, source,
                                      {.config = options_.weights_only,
                                       .scale_inputs = !raised_,
                                       .memory_budget = usual,
                                       .directory = directory,
                                       .sweep = sweeping(spool.get(), listens),
                                       .ranks = options_.resources.ranks});
  has_seen_cache_ = listens == Listens::yes;
  run_.result.samples = draft_.solved.samples;
  for (const auto& [fold, scaling] : draft_.solved.scalings)
    quantization::apply_fold(fold, scaling.factors, draft_.model, draft_.placement);
}

solve::GramSweepOptions BlockWork::sweeping(store::Spool* spool, Listens listens) {
  const bool heard = cache_ && listens == Listens::yes;
  calibration::Statistics* extremes = nullptr;
  if (listens == Listens::yes) extremes = run_.shared.extremes;
  if (extremes == nullptr && listens == Listens::yes && run_.recipe.lowers_rest) extremes = &own_extremes_;
  return {.threads = options_.threads,
          .spool = spool,
          .progress = options_.progress,
          .stop = options_.stop,
          .observed = quantization::float_values(running(), types_),
          .extremes = extremes,
          .listened = heard ? cache_->values() : std::vector<std::string>(),
          .listener = heard ? &cache_->observer() : nullptr};
}

void BlockWork::observe_cache() {
  if (!cache_ || has_seen_cache_) return;
  const auto scope = run_.profiler.scope(Step::calibration);
  source_->rewind();
  run_.result.samples = watch_cache(running(), types_, context(), *source_, *cache_);
  has_seen_cache_ = true;
}

void BlockWork::raise_model() {
  if (!draft_.any_type(onnx::DataType::float16) && !draft_.any_type(onnx::DataType::bfloat16)) return;
  if (chooses_bits(options_))
    throw bad_input(
        fmt::format("model '{}' has weights of 16-bit floats, and {} measures float32 with samples",
                    options_.model.string(), options_.weights_only.max_size ? "--max-size" : "--accuracy-target"),
        options_.weights_only.max_size ? "leave out --calibration-data, or quantize the model in float32"
                                       : "quantize the model in float32");
  if (options_.weights_only.method == WeightMethod::awq)
    throw bad_input(fmt::format("model '{}' has weights of 16-bit floats, and --set weights-method=awq scales float32",
                                options_.model.string()),
                    "give gptq or auto, or quantize the model in float32");
  raised_ = draft_.model;
  graph::half_floats_to_float32(*raised_, run::file_store(run_.work->scratch(), "float"), true);
}

quantization::Placement BlockWork::placement_as_run() const {
  auto placement = draft_.placement;
  if (raised_) quantization::move_to_float32(placement, draft_.casts_of_inputs());
  return placement;
}

constexpr std::uint64_t kLittleWeights = std::uint64_t{64} << 20;

// Without a budget the run takes half of what plain inference would: the process, and some of the weights in memory.
std::uint64_t BlockWork::usual_memory(std::uint64_t budget) const {
  constexpr std::uint64_t kProcess = std::uint64_t{128} << 20;
  if (resources_.memory_budget) return budget;
  const auto weights = graph::constant_bytes(running());
  return std::min(budget, kProcess + std::max(weights / 4, std::min(weights, kLittleWeights)));
}

// What the process and columns that are solved leave of the budget, for sums, weights and activations.
solve::GramMemory BlockWork::memory_for_gram_sums(std::uint64_t budget) const {
  std::uint64_t columns = std::uint64_t{64} << 20;
  for (const auto& tensor : draft_.placement.tensors) columns = std::max(columns, solve::memory_of_piece(tensor.rows));
  const auto taken = profile::memory_now().anonymous + columns;
  const auto left = [taken](std::uint64_t memory) { return memory > taken ? memory - taken : 0; };
  solve::GramMemory memory{.wanted = left(usual_memory(budget)) / 2, .most = left(budget) / 2};
  memory.weights = left(usual_memory(budget)) / 3;
  if (!resources_.memory_budget) memory.weights = std::max(memory.weights, kLittleWeights);
  return memory;
}

onnx::Model BlockWork::emitted(quantization::BlocksWritten written) const {
  auto assignment = draft_.assignment(options_.weights_only, thread_count(options_.threads), options_.stop);
  assignment.blocks.written = std::move(written);
  return quantization::emit_blocks({draft_.model}, assignment).model;
}

void BlockWork::share_out() {
  if (source_) run_.note(source_->notes());
  source_.reset();
  given_.reset();
  draft_.find_common_scales();
  if (shim::size_of(options_.resources.ranks) == 1) return;
  draft_.share_out(options_.weights_only.method, *options_.resources.ranks, run_.work->scratch(),
                   thread_count(options_.threads), options_.stop);
}

void BlockWork::emit() {
  const auto& tensors = draft_.placement.tensors;
  std::uint64_t all = 0;
  for (const auto& tensor : tensors) all += bytes_of(tensor);
  run_.result.weights.resize(tensors.size());
  const auto written = [this, all, done = std::uint64_t{0}](std::size_t t,
                                                            const quantization::BlockErrors& errors) mutable {
    run_.result.weights[t] =
        describe_weight(draft_.model, draft_.placement, draft_.solved, t, errors, options_.weights_only.method);
    done = std::min(all, done + bytes_of(draft_.placement.tensors[t]));
    const auto mebibytes = [](std::uint64_t bytes) { return (bytes + (1U << 20U) - 1) >> 20U; };
    if (options_.progress) options_.progress("weights (MiB)", mebibytes(done), mebibytes(all));
  };
  run_.model = emitted(written);
  if (cache_) cache_->apply(run_.model, run_.result);
}

const calibration::Statistics* BlockWork::extremes() const {
  return run_.shared.extremes != nullptr ? run_.shared.extremes : &own_extremes_;
}

std::string BlockWork::reason_against_proof() const {
  auto reason = draft_.reason_against_proof();
  if (!reason.empty() || !cache_ || !run_.runtime) return reason;
  return cache_->reason_against_running(run_.runtime->version());
}

std::string BlockWork::reason_against_running(const std::filesystem::path& file) const {
  auto reason = draft_.reason_against_running();
  return reason.empty() ? reason_against_samples(file) : reason;
}

std::string BlockWork::reason_against_samples(const std::filesystem::path& file) const {
  return cache_ ? reason_against_running_cache(*cache_, options_, file, *run_.runtime) : "";
}

void BlockWork::release() {
  draft_ = {};
  raised_.reset();
  types_ = {};
}

void observe_cache(Run& run) {
  run.result.transformer = graph::find_transformer(run.model, graph::ValueTypes());
  auto running = run.model;
  graph::half_floats_to_float32(running, run::file_store(run.work->scratch(), "float"), true);
  run.cache.reset(new CacheWork{{run.model, running, run.options.kv_cache}});
  const auto given = run.open_samples(run::input_specs(run.model));
  run::ContentOrderedSamples source(*given, {});
  run.result.samples = watch_cache(running, exec::infer_value_types(*run.runtime, running),
                                   run.context(run.work->scratch()), source, run.cache->cache);
  run.note(source.notes());
}

void emit_cache(Run& run) { run.cache->cache.apply(run.model, run.result); }

}  // namespace detent::pipeline
