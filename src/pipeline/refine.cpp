#include "pipeline/refine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "accuracy/float_choice.h"
#include "accuracy/integer_chains.h"
#include "accuracy/trial_model.h"
#include "graph/index.h"
#include "graph/work.h"
#include "pipeline/collect.h"
#include "pipeline/sweep_setup.h"
#include "pipeline/trials.h"
#include "quantize/selection.h"

namespace detent::pipeline {
namespace {

// Inferences that measuring may take, for each calibration sample, and samples that each trial is run on at the most.
constexpr std::size_t kRunsPerSample = 4;
constexpr std::size_t kMostSamples = 4;
constexpr accuracy::ChoiceLimits kLimits{.macs = 0.1, .worth_removing = 0.01, .error = 1e-4};

class Refiner {
 public:
  Refiner(const Prepared& prepared, const quantization::Placement& placement, const quantization::Params& params,
          const exec::Runtime& runtime, data::SampleSource& source, const RefineOptions& options)
      : prepared_(prepared),
        placement_(placement),
        params_(params),
        runtime_(runtime),
        source_(source),
        options_(options),
        index_(prepared.model) {}

  Refinement run() {
    measure();
    Refinement result;
    result.error_all = error_all_;
    for (const auto& mark : placement_.marks) {
      if (!errors_.contains(mark.value)) continue;
      result.sensitivities.push_back(
          {mark.value, node_of(mark), mark.is_weight ? "weight" : "activation", errors_.at(mark.value)});
    }
    std::stable_sort(result.sensitivities.begin(), result.sensitivities.end(),
                     [](const auto& a, const auto& b) { return a.error > b.error; });
    const auto choices = accuracy::choose_floats(
        candidates(), errors_, [this](const auto& floats) { return place_with(floats); }, kLimits);
    std::vector<std::size_t> floats;
    for (const auto& choice : choices) {
      floats.push_back(choice.node);
      result.notes.push_back(
          fmt::format("{} stays in float: it makes {:.0f} % of the error and {:.1f} % of the products",
                      prepared_.model.graph.nodes[choice.node].label(), 100 * choice.removed, 100 * choice.macs));
    }
    result.placement = place_with(floats);
    return result;
  }

 private:
  // Marks are measured one at a time where the inferences allow it, else in groups of neighbours that share the result.
  void measure() {
    std::vector<std::string> all;
    for (const auto& mark : placement_.marks) {
      if (params_.contains(mark.value)) all.push_back(mark.value);
    }
    const std::size_t allowed = std::max<std::size_t>(kRunsPerSample * options_.samples, 8);
    const std::size_t group = (all.size() + allowed - 1) / allowed;
    std::vector<std::vector<std::string>> trials{all};
    for (std::size_t at = 0; at < all.size(); at += group) {
      const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(at + group, all.size()));
      trials.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at), end);
    }
    const std::size_t samples = std::clamp<std::size_t>(allowed / trials.size(), 1, kMostSamples);
    const auto results = run(trials, samples);
    error_all_ = noise_of(results.front());
    for (std::size_t t = 1; t < trials.size(); ++t) {
      for (const auto& mark : trials[t]) errors_[mark] = noise_of(results[t]) / static_cast<double>(trials[t].size());
    }
  }

  std::vector<TrialResult> run(const std::vector<std::vector<std::string>>& trials, std::size_t samples) {
    const auto model = accuracy::make_trial_model(prepared_.model, prepared_.types, placement_, params_);
    const planning::Circumstances circumstances{placement_.to_observe().size(), false, thread_count(options_.threads),
                                                1, 0};
    const auto directory = options_.directory / "trials";
    std::filesystem::create_directory(directory);
    const auto setup =
        set_up_sweep(prepared_, placement_, runtime_, source_, circumstances, options_.resources, directory, nullptr);
    auto results = run_trials(model, params_, trials, runtime_, source_,
                              {.samples = samples,
                               .threads = options_.threads,
                               .cuts = model.map_cuts(setup.cuts),
                               .spool = setup.spool.get(),
                               .progress = options_.progress,
                               .stop = options_.stop});
    std::filesystem::remove_all(directory);
    return results;
  }

  std::vector<accuracy::Candidate> candidates() {
    const auto types = static_types(prepared_.types, prepared_.model, runtime_, source_);
    std::vector<accuracy::Candidate> found;
    double all = 0;
    const auto& nodes = prepared_.model.graph.nodes;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const auto work = graph::work_of(prepared_.model, index_, types, nodes[n]);
      const double macs = work ? static_cast<double>(work->macs) : 0;
      all += macs;
      if (placement_.selected[n] && accuracy::is_product(nodes[n]) && work) found.push_back({n, macs});
    }
    for (auto& candidate : found) candidate.macs = all > 0 ? candidate.macs / all : 0;
    return found;
  }

  quantization::Placement place_with(const std::vector<std::size_t>& floats) const {
    return place(prepared_, options_.config, floats);
  }

  std::string node_of(const quantization::Mark& mark) const {
    const int producer = index_.producer(mark.value);
    const auto readers = index_.consumers(mark.value);
    const int node = producer != graph::kNone ? producer : readers.empty() ? graph::kNone : readers.front();
    return node == graph::kNone ? "" : prepared_.model.graph.nodes[static_cast<std::size_t>(node)].label();
  }

  const Prepared& prepared_;
  const quantization::Placement& placement_;
  const quantization::Params& params_;
  const exec::Runtime& runtime_;
  data::SampleSource& source_;
  const RefineOptions& options_;
  graph::Index index_;
  accuracy::MarkErrors errors_;
  double error_all_ = 0;
};

}  // namespace

Refinement refine(const Prepared& prepared, const quantization::Placement& placement,
                  const quantization::Params& params, const exec::Runtime& runtime, data::SampleSource& source,
                  const RefineOptions& options) {
  return Refiner(prepared, placement, params, runtime, source, options).run();
}

}  // namespace detent::pipeline
