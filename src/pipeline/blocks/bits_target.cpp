#include "pipeline/blocks/bits_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "pipeline/deployed.h"
#include "run/comparison/candidate.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/score_command.h"

namespace detent::pipeline {

double BitsTarget::measure(onnx::Model model, const std::filesystem::path& path, const exec::Runtime& runtime,
                           data::SampleSource& samples) {
  if (options_.accuracy.metric != AccuracyMetric::command)
    return run::metric_value(fidelity_of(std::move(model), path, options_, runtime, samples), options_.accuracy.metric);
  model.set_producer("detent", DETENT_VERSION);
  return run::measure_candidate(model, path, options_, [&](const auto& file) {
    return run::share_of_float_score(options_.accuracy, options_.model, file, float_score_, options_.stop);
  });
}

double BitsTarget::loss_of(double value) const {
  if (options_.accuracy.metric == AccuracyMetric::sqnr) return std::pow(10, -value / 10);
  if (options_.accuracy.metric == AccuracyMetric::perplexity) return std::max(0.0, -std::log(value));
  return std::max(0.0, 1 - value);
}

Error BitsTarget::out_of_reach(const std::vector<MeasuredSize>& tried) const {
  const auto& best =
      *std::max_element(tried.begin(), tried.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  return bad_input(
      fmt::format("--accuracy-target: no choice of bits that was tried reaches {}; the best comes to {:.6g} with {}",
                  *options_.accuracy.target, best.value, format_size(best.size)),
      "lower the target, or give smaller blocks with --block-size");
}

}  // namespace detent::pipeline
