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

namespace detent::run {
namespace {

exec::Session open(const exec::Runtime& runtime, const onnx::Model& model, const exec::GuardOptions& options) {
  return {runtime, exec::emit(model), fmt::format("model '{}'", model.path.string()),
          exec::SessionOptions{exec::Tuning::deployed, options.threads, options.stop, true}};
}

struct OutputSums {
  std::string name;
  PairSums sums;
  double worst_sample_db;
};

void drop_caches(std::vector<OutputSums>& outputs) {
  const auto is_cache = [](const auto& output) { return is_cache_output(output.name); };
  if (!std::all_of(outputs.begin(), outputs.end(), is_cache)) std::erase_if(outputs, is_cache);
}

}  // namespace

DeployedFidelity deployed_fidelity(const exec::Runtime& runtime, const std::filesystem::path& float_model,
                                   const std::filesystem::path& model, data::SampleSource& source, std::size_t most,
                                   const exec::GuardOptions& options) {
  const auto original = onnx::read_model(float_model);
  auto in_float = open(runtime, original, options);
  const auto inputs = input_specs(onnx::read_model(model));
  exec::GuardedSession other(runtime, model, options);
  std::vector<std::string> names;
  for (const auto& output : original.graph.outputs) names.push_back(output.name);
  const auto tokens = find_tokens(input_specs(original), names);
  std::vector<PairSums> all(names.size());
  std::vector<double> worst(names.size(), std::numeric_limits<double>::infinity());  // of the samples
  std::vector<bool> are_floats(names.size());
  NextTokenSums token_sums;
  DeployedFidelity found;
  while (found.samples < most) {
    const auto sample = source.next();
    if (!sample) break;
    const auto where = fmt::format("sample '{}'", sample->origin);
    const auto x = in_float.run(sample->inputs, where), y = other.run(with_cache_of(sample->inputs, inputs), where);
    for (std::size_t i = 0; i < names.size(); ++i) {
      are_floats[i] = data::holds_floats(x[i].type) && data::holds_floats(y[i].type);
      if (!are_floats[i]) continue;
      PairSums sums;
      sums.add(x[i], y[i], names[i]);
      all[i] += sums;
      worst[i] = std::min(worst[i], sums.sqnr_db());
    }
    if (tokens) {
      const auto* mask = tokens->mask ? &sample->inputs[*tokens->mask] : nullptr;
      token_sums.add(sample->inputs[tokens->ids], mask, x[tokens->logits], y[tokens->logits]);
    }
    ++found.samples;
  }
  if (found.samples == 0) throw bad_input("there are no samples to measure the results with");
  std::vector<OutputSums> outputs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (are_floats[i]) outputs.emplace_back(names[i], all[i], worst[i]);
  }
  drop_caches(outputs);
  found.sqnr_db = found.worst_sample_db = std::numeric_limits<double>::infinity();
  found.cosine = 1;
  for (const auto& [name, sums, worst_sample_db] : outputs) {
    found.sqnr_db = std::min(found.sqnr_db, sums.sqnr_db());
    found.cosine = std::min(found.cosine, sums.cosine());
    found.worst_sample_db = std::min(found.worst_sample_db, worst_sample_db);
  }
  found.next_tokens = token_sums.result();
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
