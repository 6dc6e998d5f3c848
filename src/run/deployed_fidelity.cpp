#include "run/deployed_fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/floats.h"
#include "exec/emit.h"
#include "run/kv_cache.h"
#include "run/next_tokens.h"
#include "run/pairing.h"
#include "run/samples.h"
#include "run/shared_decisions.h"

namespace detent::run {
namespace {

exec::Session open(const exec::Runtime& runtime, const onnx::Model& model, const std::vector<std::string>& taps,
                   int threads, const std::stop_token& stop) {
  exec::SessionOptions options{exec::Tuning::deployed, threads, stop, true};
  options.edits = !taps.empty();
  return {runtime, exec::emit(model, {taps, {}, {}}), fmt::format("model '{}'", model.path.string()), options};
}

// By name, with what was summed up of it.
using Sums = std::vector<std::pair<std::string, PairSums>>;

void drop_caches(Sums& sums) {
  const auto is_cache = [](const auto& sum) { return is_cache_output(sum.first); };
  if (!std::all_of(sums.begin(), sums.end(), is_cache)) std::erase_if(sums, is_cache);
}

}  // namespace

DeployedFidelity deployed_fidelity(const exec::Runtime& runtime, const std::filesystem::path& float_model,
                                   const std::filesystem::path& model, data::SampleSource& source, std::size_t most,
                                   int threads, const std::stop_token& stop) {
  auto original = onnx::read_model(float_model);
  auto quantized = onnx::read_model(model);
  SharedDecisions decisions(runtime, original, quantized);
  DecisionRecorder recorder(decisions);
  DecisionPlayer player(decisions);
  auto in_float = open(runtime, original, decisions.taps(), threads, stop);
  const auto inputs = input_specs(quantized);
  auto other = open(runtime, quantized, decisions.taps(), threads, stop);
  std::vector<std::string> names;
  for (const auto& output : original.graph.outputs) names.push_back(output.name);
  const auto tokens = find_tokens(input_specs(original), names);
  std::vector<PairSums> all(names.size());
  std::vector<bool> are_floats(names.size());
  NextTokenSums token_sums;
  DeployedFidelity found;
  while (found.samples < most) {
    const auto sample = source.next();
    if (!sample) break;
    const auto where = fmt::format("sample '{}'", sample->origin);
    const auto x = in_float.run(sample->inputs, where, &recorder);
    const auto y = other.run(with_cache_of(sample->inputs, inputs), where, &player);
    for (std::size_t i = 0; i < names.size(); ++i) {
      are_floats[i] = data::holds_floats(x[i].type) && data::holds_floats(y[i].type);
      if (are_floats[i]) all[i].add(x[i], y[i]);
    }
    if (tokens) {
      const auto* mask = tokens->mask ? &sample->inputs[*tokens->mask] : nullptr;
      token_sums.add(sample->inputs[tokens->ids], mask, x[tokens->logits], y[tokens->logits]);
    }
    ++found.samples;
  }
  if (found.samples == 0) throw bad_input("there are no samples to measure the results with");
  Sums sums;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool compared = all[i].paired > 0 || all[i].unpaired == 0;
    if (are_floats[i] && compared) sums.emplace_back(names[i], all[i]);
  }
  drop_caches(sums);
  found.sqnr_db = std::numeric_limits<double>::infinity();
  found.cosine = 1;
  for (const auto& [name, sum] : sums) {
    found.sqnr_db = std::min(found.sqnr_db, sum.sqnr_db());
    found.cosine = std::min(found.cosine, sum.cosine());
  }
  found.next_tokens = token_sums.result();
  found.notes = decisions.notes();
  return found;
}

double value_of(const DeployedFidelity& fidelity, AccuracyMetric metric) {
  if (metric == AccuracyMetric::cosine) return fidelity.cosine;
  if (metric == AccuracyMetric::sqnr) return fidelity.sqnr_db;
  if (metric != AccuracyMetric::perplexity) throw internal_error("a command measures itself");
  if (!fidelity.next_tokens)
    throw bad_input("--accuracy-metric perplexity: the model is no decoder with a KV cache and logits for each token",
                    "give cosine, sqnr or command");
  return fidelity.next_tokens->float_perplexity / fidelity.next_tokens->perplexity;
}

}  // namespace detent::run
