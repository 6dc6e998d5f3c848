// Weight tuning by GPTQ without having been asked for, where rounding to the nearest is what keeps the results far from
// the float model's.
#include "remedies/weight_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/process.h"
#include "base/text.h"
#include "remedies/remedies.h"
#include "run/collect.h"
#include "run/sweep_setup.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::remedies {
namespace {

// Below this share of the error the results gain too little for what gptq takes.
constexpr double kWorthTuning = 0.25;
constexpr double kNear = 1e-3;  // 30 dB: near enough
// From here on (20 dB) shares do not count: they add up for small errors, and weights that make little of a large one
// can still mend much of it.
constexpr double kFar = 1e-2;
// So much of what the typical sample gains, in dB, the worst may lose.
constexpr double kTolerableLoss = 0.25;
// Samples. Layers draw eight positions for each weight of a row at the most, so that more of them say little.
constexpr std::size_t kMostTuned = 64;
constexpr std::uint64_t kAhead = std::uint64_t{8} << 20;

// Narrows the configuration to that layer with quantized weights which takes most memory, and says so.
void keep_heaviest(const Draft& draft, const Evaluator& evaluator, const graph::ValueTypes& types,
                   FinetuneConfig& config, std::vector<std::string>& notes) {
  const auto& env = evaluator.env();
  auto costs = solve::layer_costs(draft.prepared.model, types, config, env.source.sample_count(),
                                  thread_count(env.options.threads));
  const auto layers = solve::find_layers(draft.prepared.model, *draft.emitted, config).layers;
  std::erase_if(costs, [&](const auto& cost) {
    return std::none_of(layers.begin(), layers.end(),
                        [&](const auto& layer) { return static_cast<std::size_t>(layer.float_node) == cost.node; });
  });
  const auto& cost = solve::heaviest(costs);
  notes.push_back(fmt::format("only the heaviest layer was tuned: '{}', which takes about {} besides its samples",
                              cost.name, format_size(cost.bytes)));
  config.nodes = {cost.name};
}

class WeightTuning : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    if (!may_need_tuning(evaluator, draft.worst_error)) return false;
    if (draft.worst_error < kFar && draft.result.weights_share < kWorthTuning) return false;
    const auto config = automatic_gptq(evaluator.options().finetune);
    layers_ = solve::find_layers(draft.prepared.model, *draft.emitted, config).layers;
    if (layers_.empty()) return false;
    scope_.emplace(evaluator.env().profiler.scope(profile::Step::fast_finetune));
    try {
      tuned_ = tune_weights(draft, evaluator, config, false);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::resource) throw;
      throw resource_error(fmt::format("tuning weights, which make much of the error: {}", e.what()),
                           fmt::format("{}, or skip it with --finetune nearest", e.hint()));
    }
    return true;
  }

  // By the typical sample: one of which both make nonsense says little about which is better. But the figure that is
  // told must not become much worse than before all remedies.
  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    auto tuned = roundings_of(draft.assignment.values);
    for (const auto& layer : layers_) {
      const auto& weight = draft.prepared.model.graph.initializers[layer.float_weight].name;
      const auto& data = tuned_.model.graph.initializers[layer.stored_weight].data;
      if (!data.is_produced()) tuned.at(weight).integers = data;
    }
    trim_heap();
    judged_ = evaluator.judge(draft, draft.assignment.values, draft.assignment.placement, trial_of(tuned));
    errors_ = {typical_error_of(evaluator.judged(draft)), typical_error_of(judged_), false};
    const double gain = 10 * std::log10(errors_.error_before / errors_.error_after);
    errors_.kept = gain > 0 && worst_sqnr_db(judged_) >= draft.before_db - kTolerableLoss * gain;
    return errors_.kept;
  }

  void keep(Draft& draft, Evaluator&) override {
    draft.emitted->model = std::move(tuned_.model);
    draft.layers = std::move(tuned_.layers);
    draft.notes = std::move(tuned_.notes);
    draft.result.sqnr_db = worst_sqnr_db(judged_);
    draft.result.cosine = worst_cosine(judged_);
  }

  void report(AccuracyResult& result) const override { result.tuned = errors_; }

 private:
  std::vector<solve::TunedLayer> layers_;
  TunedModel tuned_;
  TrialResult judged_;
  TunedWeights errors_;
  std::optional<profile::Scope> scope_;  // judging is a part of the stage
};

}  // namespace

bool may_need_tuning(Evaluator& evaluator, double worst_error) {
  return evaluator.samples() >= solve::kHeldBackEvery && worst_error >= kNear;
}

FinetuneConfig automatic_gptq(const FinetuneConfig& given) {
  FinetuneConfig config;
  config.solver = WeightSolver::gptq;
  config.op_types = given.op_types;
  config.nodes = given.nodes;
  return config;
}

TunedModel tune_weights(const Draft& draft, Evaluator& evaluator, FinetuneConfig config, bool asked_for) {
  const auto& env = evaluator.env();
  evaluator.source().keep(false);  // what samples and results would take is for the sums
  evaluator.release_trial_memory();
  run::ContentOrderedSamples source(
      evaluator.source(),
      {.most = asked_for ? 0 : kMostTuned, .rows = false, .ahead = share_of_budget(env.options.resources, kAhead)});
  source.keep(false);
  const auto& options = env.options;
  const auto& prepared = draft.prepared;
  TunedModel tuned{draft.emitted->model, {}, {}};
  const auto& types = evaluator.static_types(draft);
  if (config.only_heaviest_layer) keep_heaviest(draft, evaluator, types, config, tuned.notes);
  auto found = solve::find_layers(prepared.model, *draft.emitted, config);
  if (found.layers.empty() && !found.notes.empty()) {  // which say why
    tuned.notes.insert(tuned.notes.end(), found.notes.begin(), found.notes.end());
    return tuned;
  }
  const auto memory =
      solve::share_memory(run::budget_of(options.resources, env.directory).memory, asked_for, prepared.model, types,
                          tuned.model, found.layers, source.sample_count(), config, thread_count(options.threads));
  const auto spool = run::make_spool(env.context(), memory.spool);
  tuned.notes.insert(tuned.notes.end(), found.notes.begin(), found.notes.end());
  const auto& resources = options.resources;
  // What the layers are solved in has half of a given budget, and each of the two branches a quarter.
  auto device = options.device;
  const auto place = run::inference_device_of(device, env.runtime, 4);
  if (place && device.memory_budget) *device.memory_budget /= 2;
  if (auto note = run::inference_device_note(device, env.runtime, "both branches of fine-tuning"); !note.empty())
    tuned.notes.push_back(std::move(note));
  tuned.layers = solve::finetune(
      prepared.model, prepared.types, tuned.model, std::move(found.layers), env.runtime, source,
      {.config = config,
       .device = device,
       .place = place,
       .threads = options.threads,
       .spool = *spool,
       .state_seconds = resources.resume ? std::make_optional(resources.checkpoint_seconds) : std::nullopt,
       .memory = memory,
       .directory = env.directory,
       .progress = options.progress,
       .solved = env.layer_tuned,
       .activity = env.activity,
       .stop = options.stop,
       .static_types = &types,
       .symmetric = draft.is_cut,
       .ranks = resources.ranks},
      tuned.notes);
  return tuned;
}

std::unique_ptr<Remedy> weight_tuning() { return std::make_unique<WeightTuning>(); }

}  // namespace detent::remedies
