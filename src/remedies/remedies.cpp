#include "remedies/remedies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "graph/patterns.h"
#include "remedies/fallback.h"
#include "remedies/weight_tuning.h"
#include "run/comparison/pairing.h"
#include "run/model/finish.h"

namespace detent::remedies {

namespace {

std::string_view word(QuantType type) { return onnx::name_of(quantization::data_type(type)); }

// Of what is left of the error, so many products are named that make this share of it.
constexpr std::size_t kMostNamed = 3;
constexpr double kShareWorthNaming = 0.1;
constexpr double kNearDb = 30;  // of results that nothing more is said about

void measure(Draft& draft, Evaluator& evaluator) {
  if (draft.sensitivities) return;
  evaluator.begin("each value");
  // Values that a smaller placement gives a scale of their own keep the range of the value that they shared it with.
  quantization::copy_shared_ranges(draft.assignment.placement, draft.proposals.ranges);
  quantization::copy_shared_ranges(draft.assignment.placement, draft.proposals.wide);
  draft.sensitivities = evaluator.measure(draft);
}

// Results as near as 40 dB are as good as any: what each value adds to that is not worth its runs.
bool is_good(const TrialResult& judged, const QuantizeOptions& options) {
  constexpr double kGood = 1e-4;
  const auto errors = errors_of(judged);
  return !options.accuracy.target && options.accuracy.sensitivity == SensitivityMode::automatic && !errors.empty() &&
         worst_of(errors) <= kGood;
}

void list_sensitivities(Draft& draft, const graph::Index& index) {
  for (const auto& [value, error] : by_error(*draft.sensitivities)) {
    draft.result.sensitivities.push_back(
        {value, node_of(draft.prepared.model, index, value), index.initializer(value) != graph::kNone, error});
  }
}

// What makes most of the error that is left, by the errors of single values, which add up to first order.
void name_worst(Draft& draft, Evaluator& evaluator, const graph::Index& index, const Workload& workload) {
  const auto& errors = draft.sensitivities->errors;
  const auto now = predicted_error(draft.assignment.placement, errors);
  if (worst_of(now) == 0) return;
  draft.result.weights_share = evaluator.weights_share(draft);
  for (const auto& product : workload.products) {
    auto nodes = draft.fallbacks;
    nodes.push_back(product.node);
    const auto placement = run::place_qdq_pairs(draft.prepared, evaluator.options().config,
                                                {evaluator.options().accuracy.fallback, nodes});
    const double removed = removed_share(now, predicted_error(placement, errors), now, 0);
    if (removed < kShareWorthNaming) continue;
    draft.worst_left.push_back({draft.prepared.model.graph.nodes[product.node].label(), removed,
                                macs_of(draft.prepared.model, index, product)});
  }
  std::stable_sort(draft.worst_left.begin(), draft.worst_left.end(),
                   [](const auto& a, const auto& b) { return a.error_share > b.error_share; });
  draft.worst_left.resize(std::min(draft.worst_left.size(), kMostNamed));
}

constexpr double kDecibelsWorthNaming = 10;  // decibels that the results would be nearer

// Names the nodes up to a logarithm, a division or a power whose integers, of 16 bits too, leave the results far from
// the float model's, and tells how near they would be without. Empty where float is a way out, or where another part
// of the model makes the error.
std::string front_end_left(const Draft& draft, Evaluator& evaluator, const graph::Index& index,
                           const Workload& workload) {
  const auto& options = evaluator.options();
  const bool all = config::target(options.config).all_operators;
  if (draft.result.sqnr_db >= kNearDb || (!all && options.accuracy.fallback == AccuracyFallback::float32)) return {};
  const auto& model = draft.prepared.model;
  const auto front = graph::front_end(model, index);
  std::vector<std::size_t> nodes;
  std::vector<std::string> names;
  for (const auto& candidate : workload.products) {
    if (!front.contains(candidate.node)) continue;
    nodes.push_back(candidate.node);
    names.push_back(model.graph.nodes[candidate.node].id());
  }
  if (nodes.empty()) return {};
  const auto without = run::place_qdq_pairs(draft.prepared, options.config, {AccuracyFallback::float32, nodes});
  const auto roundings = roundings_of(draft.assignment.values);
  Trial trial;
  for (const auto& [value, rounding] : roundings) {
    if (without.find(value) != nullptr) trial[value] = &rounding;
  }
  const double db = worst_sqnr_db(evaluator.judge(draft, draft.assignment.values, draft.assignment.placement, trial));
  if (db < draft.result.sqnr_db + kDecibelsWorthNaming) return {};
  return fmt::format(
      "{} makes large what integers lose of small values: --exclude-nodes {} leaves what leads to it to the "
      "CPU, in float, for about {:.0f} dB",
      model.graph.nodes[*front.rbegin()].label(), fmt::join(names, ","), db);
}

// Where neither float nor 16 bits are a way out, a model that gives other results than the float one is of no use.
void refuse_useless(const Draft& draft, const QuantizeOptions& options) {
  const auto& target = config::target(options.config);
  if (!target.all_operators || options.accuracy.target || draft.result.sqnr_db >= run::kUselessDb) return;
  if (options.accuracy.sensitivity != SensitivityMode::automatic) return;
  std::string worst;
  for (const auto& node : draft.worst_left) {
    worst += fmt::format("{}{} makes up to {:.0f} % of an output's error", worst.empty() ? "; " : ", ", node.node,
                         100 * node.error_share);
  }
  if (worst.empty() && !draft.result.sensitivities.empty())
    worst = fmt::format("; most of it comes of {}", draft.result.sensitivities.front().node);
  if (!draft.front_end_left.empty()) worst += "; " + draft.front_end_left;
  const auto left = std::isinf(draft.result.sqnr_db)
                        ? std::string("no number in the worst output")
                        : fmt::format("the worst output {:.1f} dB from the float model's", draft.result.sqnr_db);
  throw bad_input(
      fmt::format("the integers of --target {} leave {}{}", options.config.target, left, worst),
      "give a target with activations of 16 bits, leave the named nodes to the CPU (--exclude-nodes), or give --preset "
      "plain to have the model as it is");
}

void record_accuracy(Draft& draft, Evaluator& evaluator) {
  auto& result = draft.result;
  const auto& judged = evaluator.judged(draft);
  result.samples = evaluator.judging_samples().count;
  result.sqnr_db = worst_sqnr_db(judged);
  result.cosine = worst_cosine(judged);
  draft.worst_error = worst_error_of(judged);
  const auto& accuracy = evaluator.options().accuracy;
  const bool has_score = accuracy.metric == AccuracyMetric::command || accuracy.metric == AccuracyMetric::perplexity;
  if (has_score && accuracy.target) result.score = evaluator.score(draft, draft.assignment);

  const auto& model = draft.prepared.model;
  const graph::Index index(model);
  if (draft.sensitivities)
    list_sensitivities(draft, index);
  else if (worst_of(errors_of(judged)) > 0)
    result.weights_share = evaluator.weights_share(draft);
  const auto& types = evaluator.static_types(draft);
  const bool all = config::target(evaluator.options().config).all_operators;
  const auto workload =
      workload_of(draft.prepared, index, types, run::place_qdq_pairs(draft.prepared, evaluator.options().config), all);
  result.integer_macs = 1 - workload.others + recurrent_macs(draft.prepared, index, types, evaluator.options().config);
  for (const auto& node : result.float_nodes) *result.integer_macs -= node.macs_share;
  const bool integers = !is_float(evaluator.options().config.activation_type);
  if (!workload.is_known || !integers) result.integer_macs.reset();
  result.wide_macs = macs_of_16_bits(model, index, workload, draft.assignment.placement);
  if (draft.sensitivities) name_worst(draft, evaluator, index, workload);
  draft.front_end_left = front_end_left(draft, evaluator, index, workload);
  refuse_useless(draft, evaluator.options());
}

// What can be known of the time that later stages take.
void tell_expected(const Draft& draft, const TrialResult& before, Evaluator& evaluator) {
  constexpr double kUsualValues = 100;
  const auto& options = evaluator.options();
  if (!options.stage_expected) return;
  options.stage_expected("accuracy: each value", static_cast<double>(draft.assignment.values.size()) / kUsualValues);
  if (tunes(options.finetune.solver) || may_need_tuning(evaluator, worst_error_of(before))) return;
  for (const auto* stage : {"finetune", "accuracy: weight tuning"}) options.stage_expected(stage, 0);
}

void apply(const Row& row, Draft& draft, Evaluator& evaluator) {
  evaluator.begin(row.name);
  apply(*row.make(), draft, evaluator);
}

// Of recurrent layers alone: no trial rounds as they do, and what the written file does is measured later.
void conclude_recurrent(Draft& draft, Evaluator& evaluator) {
  draft.before_db = draft.result.sqnr_db = std::numeric_limits<double>::infinity();
  draft.result.cosine = 1;
  draft.result.integer_macs = recurrent_macs(draft.prepared, graph::Index(draft.prepared.model),
                                             evaluator.static_types(draft), evaluator.options().config);
}

}  // namespace

std::vector<std::pair<std::string, double>> by_error(const Sensitivities& sensitivities) {
  std::vector<std::pair<std::string, double>> sorted;
  for (const auto& value : sensitivities.values) sorted.emplace_back(value, worst_of(sensitivities.errors.at(value)));
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

std::string node_of(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  const auto readers = index.consumers(value);
  const int node = producer != graph::kNone ? producer : readers.empty() ? graph::kNone : readers.front();
  return node == graph::kNone ? "" : model.graph.nodes[static_cast<std::size_t>(node)].label();
}

bool apply(Remedy& remedy, Draft& draft, Evaluator& evaluator) {
  if (!remedy.propose(draft, evaluator)) return false;
  const bool better = remedy.is_better(draft, evaluator);
  if (better) remedy.keep(draft, evaluator);
  remedy.report(draft.result);
  return better;
}

void improve(Draft& draft, Evaluator& evaluator) {
  try {
    for (const auto& row : kFormRemedies) {
      if (row.is_wanted(evaluator.options())) apply(row, draft, evaluator);
    }
    evaluator.begin("as rounded");
    if (draft.assignment.placement.marks.empty()) return conclude_recurrent(draft, evaluator);
    Draft untouched = draft;
    const TrialResult before = evaluator.judged(draft);
    tell_expected(draft, before, evaluator);
    for (const auto& row : kOfAssignments) {
      if (!row.is_wanted(evaluator.options()) || is_good(evaluator.judged(draft), evaluator.options())) continue;
      if (row.needs_sensitivities) measure(draft, evaluator);
      apply(row, draft, evaluator);
    }
    if (!evaluator.options().accuracy.target && worst_sqnr_db(evaluator.judged(draft)) < worst_sqnr_db(before)) {
      draft = std::move(untouched);
      evaluator.model_changed();
      evaluator.set_judged(before);
    }
    draft.before_db = worst_sqnr_db(before);
    if (!is_good(evaluator.judged(draft), evaluator.options())) measure(draft, evaluator);
    record_accuracy(draft, evaluator);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::resource || evaluator.options().accuracy.target) throw;
    throw resource_error(fmt::format("measuring accuracy: {}", e.what()),
                         fmt::format("{}{}or give --set sensitivity=off", e.hint(), e.hint().empty() ? "" : "; "));
  }
}

void leave_in_float(Draft& draft, Evaluator& evaluator, const std::vector<std::string>& nodes) {
  const auto& options = evaluator.options();
  for (const auto& id : nodes) draft.prepared.leave_in_float(id, run::InFloat::inexact);
  draft.assign(run::place_qdq_pairs(draft.prepared, options.config, {options.accuracy.fallback, draft.fallbacks}),
               options.config);
  evaluator.set_judged(std::nullopt);
  draft.result.sensitivities.clear();
  draft.worst_left.clear();
  record_accuracy(draft, evaluator);
}

void check_target(Draft& draft, Evaluator& evaluator) {
  const auto& target = evaluator.options().accuracy.target;
  if (!target) return;
  const double score = evaluator.score(draft, draft.emitted->model);
  if (draft.result.score) draft.result.score = score;
  if (score >= *target) return;
  throw bad_input(
      fmt::format("--accuracy-target: with its weights tuned the model has {:.6g}, below {:.6g}", score, *target),
      "leave out --finetune, or lower the target");
}

void improve_emitted(Draft& draft, Evaluator& evaluator) {
  for (const auto& row : kOfEmittedModels) {
    if (row.is_wanted(evaluator.options())) apply(row, draft, evaluator);
  }
}

void improve_written(Draft& draft, Evaluator& evaluator) {
  for (const auto& row : kOfWrittenModels) {
    if (row.is_wanted(evaluator.options())) apply(row, draft, evaluator);
  }
}

std::string note_on_remaining_error(const Draft& draft, const QuantizeOptions& options) {
  const auto& result = draft.result;
  const auto& accuracy = options.accuracy;
  if (accuracy.target || accuracy.sensitivity != SensitivityMode::automatic || result.sqnr_db >= kNearDb) return {};
  const bool tuned = result.tuned && result.tuned->kept;
  const bool integers = !is_float(options.config.weight_type);
  std::string text = fmt::format(
      "SQNR is {:.1f} dB with {} activations and {} weights{}: {:.0f} % of the error {} from weights{}, {:.0f} % from "
      "activations{}",
      result.sqnr_db, word(options.config.activation_type), word(options.config.weight_type),
      tuned ? "; before GPTQ" : "", 100 * result.weights_share, tuned ? "came" : "comes",
      result.tuned || !integers ? "" : " (--finetune gptq lowers it)", 100 * (1 - result.weights_share),
      integers && accuracy.fallback == AccuracyFallback::float32 ? " (--accuracy-fallback int16 lowers it)" : "");
  for (const auto& node : draft.worst_left) {
    text += fmt::format("; {} makes up to {:.0f} % of an output's error", node.node, 100 * node.error_share);
    if (node.macs_share > 0) text += fmt::format(" for {:.1f} % of the multiplications", 100 * node.macs_share);
  }
  if (!draft.front_end_left.empty()) text += "; " + draft.front_end_left;
  return text;
}

}  // namespace detent::remedies
