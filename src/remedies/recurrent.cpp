// Recurrent layers with integer weights, which find the scales of their activations while the model runs: no trial
// rounds as they do, so each is measured as deployed, and those that do most harm stay in float.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "remedies/remedies.h"
#include "remedies/remedy.h"
#include "run/model/finish_integers.h"
#include "run/shared_run.h"

namespace detent::remedies {
namespace {

constexpr double kNear = 1e-3;  // 30 dB: near enough, whatever the other layers do

class Recurrent : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    std::vector<std::string> layers;
    for (const auto n : run::recurrent_layers(draft.prepared, evaluator.options().config))
      layers.push_back(draft.prepared.model.graph.nodes[n].id());
    const auto stored = run::stored_layers(draft.prepared);
    layers.insert(layers.end(), stored.begin(), stored.end());
    if (layers.empty()) return false;
    double sum = 0;
    for (const auto& id : layers) {
      errors_.emplace_back(error_of(draft, evaluator, layers, id), id);
      sum += errors_.back().first;
    }
    std::stable_sort(errors_.begin(), errors_.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    const double most = allowed(draft, evaluator);
    std::size_t left = 0;
    for (; left < errors_.size() && sum > most; ++left) sum -= errors_[left].first;
    errors_.resize(left);
    return left > 0;
  }

  bool is_better(const Draft&, Evaluator&) override { return true; }

  void keep(Draft& draft, Evaluator&) override {
    for (const auto& [error, id] : errors_) {
      draft.prepared.inexact.insert(id);
      const bool is_stored = draft.prepared.stored.contains(id);
      draft.notes.push_back(fmt::format("{} '{}' {}, it alone leaves the results {:.1f} dB from the float model's",
                                        is_stored ? "layer" : "LSTM", id,
                                        is_stored ? "keeps its weights: with weights of 8 bits"
                                                  : "stays in float: as the runtime computes it on integers",
                                        -10 * std::log10(error)));
    }
  }

 private:
  // Of the worst output, where this layer alone is on integers.
  static double error_of(const Draft& draft, Evaluator& evaluator, const std::vector<std::string>& layers,
                         const std::string& layer) {
    auto alone = draft.prepared;
    for (const auto& id : layers) {
      if (id != layer) alone.inexact.insert(id);
    }
    const auto& options = evaluator.options();
    auto model = alone.model;
    run::finish_integers(alone, options, model);
    const double sqnr_db =
        run::measured_by_first(options.resources, options.stop, [&] { return evaluator.deployed(model).sqnr_db; });
    return std::pow(10, -sqnr_db / 10);
  }

  // Together they may do as much harm as the other layers; under a target, use up half of what it allows.
  static double allowed(const Draft& draft, Evaluator& evaluator) {
    const auto& accuracy = evaluator.options().accuracy;
    if (accuracy.target && accuracy.metric == AccuracyMetric::sqnr) return std::pow(10, -*accuracy.target / 10) / 2;
    if (accuracy.target && accuracy.metric == AccuracyMetric::cosine) return 1 - *accuracy.target;
    if (draft.assignment.placement.marks.empty()) return kNear;
    return std::max(kNear, worst_error_of(evaluator.judged(draft)));
  }

  std::vector<std::pair<double, std::string>> errors_;  // of those that stay in float, worst first
};

}  // namespace

std::unique_ptr<Remedy> recurrent() { return std::make_unique<Recurrent>(); }

}  // namespace detent::remedies
