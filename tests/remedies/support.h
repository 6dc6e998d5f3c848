// Small models, samples and drafts for remedies.
#pragma once

#include <memory>
#include <random>
#include <utility>

#include "base/file.h"
#include "calibration/statistics.h"
#include "exec/support.h"
#include "remedies/remedies.h"

namespace detent::remedies::test {

using namespace exec::test;  // NOLINT: the makers of small models

/// Normal values of one shape, in as many samples as wanted; input `channel` of each row times a factor.
class Samples : public data::SampleSource {
 public:
  Samples(std::vector<std::int64_t> shape, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) arrays_.push_back(random_floats(shape, static_cast<unsigned>(i + 1)));
  }
  std::optional<data::Sample> next() override {
    if (at_ == arrays_.size()) return std::nullopt;
    return data::Sample{"made", {arrays_[at_++]}};
  }
  void rewind() override { at_ = 0; }
  std::size_t sample_count() const override { return arrays_.size(); }
  std::vector<std::string> notes() const override { return {}; }

 private:
  std::vector<data::Array> arrays_;
  std::size_t at_ = 0;
};

/// Normal values from one generator.
inline Floats normal(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0, scale);
  Floats values(count);
  for (float& v : values) v = distribution(generator);
  return values;
}

/// A draft of a model with one input "x" of this shape, the ranges of its activations given, and an evaluator to judge
/// it in.
struct Bench {
  Bench(Model model, const std::vector<std::int64_t>& shape, const calibration::Ranges& ranges,
        QuantizeOptions given = {})
      : options(std::move(given)), source(shape, 16) {
    options.model = "made.onnx";
    draft.prepared.model = std::move(model);
    draft.prepared.types = exec::infer_value_types(runtime(), draft.prepared.model);
    auto placement = run::place_qdq_pairs(draft.prepared, options.config);
    draft.proposals.constants = quantization::scan_weights(draft.prepared.model, placement, false);
    for (const auto& [value, range] : ranges) draft.proposals.ranges[value] = {range, "mse"};
    draft.assign(std::move(placement), options.config);
    evaluator.emplace(TrialEnv{.options = options,
                               .model = draft.prepared.model,
                               .runtime = runtime(),
                               .source = source,
                               .profiler = profiler,
                               .directory = directory.path(),
                               .weights = directory.path(),
                               .samples = 16});
  }

  /// As a run applies it.
  bool apply(Remedy& remedy) { return remedies::apply(remedy, draft, *evaluator); }
  double error() { return worst_error_of(evaluator->judge(draft, draft.assignment)); }

  QuantizeOptions options;
  Samples source;
  profile::Profiler profiler;
  TempDir directory{""};
  Draft draft;
  std::optional<Evaluator> evaluator;
};

}  // namespace detent::remedies::test
