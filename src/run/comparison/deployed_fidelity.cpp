#include "run/comparison/deployed_fidelity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/heap.h"
#include "data/floats.h"
#include "exec/emit.h"
#include "exec/unused_memory.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/bodies.h"
#include "planning/calibration.h"
#include "run/comparison/float_runs.h"
#include "run/comparison/lost_channels.h"
#include "run/comparison/next_tokens.h"
#include "run/comparison/pairing.h"
#include "run/comparison/shared_decisions.h"
#include "run/model/float_types_16_bit.h"
#include "run/model/kv_cache.h"
#include "run/model/prepare.h"
#include "run/samples/samples.h"

namespace detent::run {
namespace {

exec::Session open(const exec::Runtime& runtime, const onnx::Model& model, const std::vector<std::string>& taps,
                   const exec::GuardOptions& guard, exec::SessionMode mode = exec::SessionMode::deployed) {
  exec::SessionOptions options{mode, guard.threads, guard.stop};
  options.edits = !taps.empty();
  return {runtime, exec::emit(model, {taps, {}, {}}), fmt::format("model '{}'", model.path.string()), options};
}

// What bfloat16 would compute is computed in float32 where the runtime has no kernels of it.
onnx::Model read_runnable(const exec::Runtime& runtime, const std::filesystem::path& file,
                          const exec::GuardOptions& options, const std::filesystem::path& parent,
                          std::optional<TempDir>& directory) {
  auto model = onnx::read_model(file);
  if (runs_bfloat16(runtime, file, options)) return model;
  graph::unfold(model);
  graph::lift_constants(model);
  directory.emplace(parent);
  graph::half_floats_to_float32(model, file_store(directory->path(), "float"), true);
  return model;
}

struct OutputSums {
  std::string name;
  SampleSums sums;
};

std::vector<OutputSums> with_ratios(const std::vector<std::string>& names, const std::vector<bool>& judged,
                                    const std::vector<SampleSums>& sums) {
  std::vector<OutputSums> outputs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (judged[i] && sums[i].all.has_ratio()) outputs.emplace_back(names[i], sums[i]);
  }
  return outputs;
}

// Gives back the worst of them.
std::optional<double> drop_caches(std::vector<OutputSums>& outputs) {
  const auto is_cache = [](const auto& output) { return is_cache_output(output.name); };
  if (std::all_of(outputs.begin(), outputs.end(), is_cache)) return std::nullopt;
  std::optional<double> worst;
  for (const auto& output : outputs) {
    const double db = output.sums.all.sqnr_db();
    if (is_cache(output)) worst = std::min(worst.value_or(db), db);
  }
  std::erase_if(outputs, is_cache);
  return worst;
}

std::vector<ChannelSums> channels_of(const onnx::Model& model, const std::vector<std::string>& outputs) {
  const graph::Index index(model);
  std::vector<ChannelSums> channels;
  for (const auto& name : outputs) channels.emplace_back(model, index, name);
  return channels;
}

// What the figure of an output hides.
void tell_channels(const std::vector<ChannelSums>& channels, const std::vector<OutputSums>& outputs,
                   DeployedFidelity& found) {
  constexpr double kWorth = 3;  // dB
  for (const auto& output : channels) {
    const auto lost = output.lost();
    found.lost_channels.insert(found.lost_channels.end(), lost.begin(), lost.end());
    const auto group = output.worst();
    if (!group || (found.worst_channels && found.worst_channels->sqnr_db <= group->sqnr_db)) continue;
    const auto whole =
        std::find_if(outputs.begin(), outputs.end(), [&](const auto& o) { return o.name == group->output; });
    if (whole != outputs.end() && group->sqnr_db < whole->sums.all.sqnr_db() - kWorth) found.worst_channels = group;
  }
}

void tell_worst(const std::vector<OutputSums>& outputs, DeployedFidelity& found) {
  found.sqnr_db = found.worst_sample_db = std::numeric_limits<double>::infinity();
  found.cosine = 1;
  for (const auto& [name, sums] : outputs) {
    found.sqnr_db = std::min(found.sqnr_db, sums.all.sqnr_db());
    found.cosine = std::min(found.cosine, sums.all.cosine());
    found.worst_sample_db = std::min(found.worst_sample_db, sums.worst_db.value_or(found.worst_sample_db));
  }
}

void conclude(std::vector<OutputSums> outputs, const std::vector<ChannelSums>& channels, DeployedFidelity& found) {
  found.cache_db = drop_caches(outputs);
  found.outputs = outputs.size();
  tell_worst(outputs, found);
  tell_channels(channels, outputs, found);
}

}  // namespace

bool runs_bfloat16(const exec::Runtime& runtime, const std::filesystem::path& file, const exec::GuardOptions& options) {
  if (!find_16_bit_floats(file).brain) return true;
  try {
    const exec::GuardedSession loaded(runtime, file, options);
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    return false;
  }
}

DeployedFidelity deployed_fidelity(const exec::Runtime& runtime, const std::filesystem::path& float_model,
                                   const std::filesystem::path& model, data::SampleSource& source, std::size_t most,
                                   const exec::GuardOptions& options, const std::function<void(std::uint64_t)>& told,
                                   KeptFloatRuns* kept) {
  trim_heap();  // of what was there before: two models run beside each other now
  std::optional<TempDir> raised;
  auto original = read_runnable(runtime, float_model, options, model.parent_path(), raised);
  auto quantized = onnx::read_model(model);
  SharedDecisions decisions(runtime, original, quantized);
  DecisionRecorder recorder(decisions);
  DecisionPlayer player(decisions);
  // Other kernels change last bits of the float model's results, and take less.
  const auto mode = options.saves_memory ? planning::session_mode_for(original) : exec::SessionMode::deployed;
  const bool follows = !decisions.taps().empty();  // then a sample's runs belong together
  FloatRuns in_float(
      model_of_session([&] { return open(runtime, original, decisions.taps(), options, mode); }, &recorder), source,
      most, follows ? nullptr : kept);
  if (!follows) in_float.run_ahead(kFloatRunBytes);  // so that the two models need not stand in memory together
  const auto inputs = input_specs(quantized);
  exec::GuardedSession deployed(runtime, model, options);
  // Results of other decisions cannot be compared: then the file's own run shows only that it runs.
  std::optional<exec::Session> following;
  if (follows) following.emplace(open(runtime, quantized, decisions.taps(), options));
  std::vector<std::string> names;
  for (const auto& output : original.graph.outputs) names.push_back(output.name);
  const auto tokens = find_tokens(input_specs(original), names);
  std::vector<SampleSums> all(names.size());
  std::vector<bool> judged(names.size());
  auto channels = channels_of(original, names);
  NextTokenSums token_sums;
  DeployedFidelity found;
  while (const auto expected = in_float.next()) {
    const auto& [sample, x] = *expected;
    const auto where = fmt::format("sample '{}'", sample.origin);
    const auto given = with_cache_of(sample.inputs, inputs);
    exec::give_back_unused(runtime);
    auto y = deployed.run(given, where);
    if (following) y = following->run(given, where, &player);
    judged = judged_outputs(types_of(x), types_of(y));
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (found.samples == 0 && !data::holds_numbers(x[i].type)) found.without_numbers.push_back(names[i]);
      if (!judged[i]) continue;
      all[i].add(x[i], y[i]);
      channels[i].add(x[i], y[i]);
    }
    if (tokens) {
      const auto* mask = tokens->mask ? &sample.inputs[*tokens->mask] : nullptr;
      token_sums.add(sample.inputs[tokens->ids], mask, x[tokens->logits], y[tokens->logits]);
    }
    ++found.samples;
    found.sample_names.push_back(sample.origin);
    if (told) told(found.samples);
  }
  if (found.samples == 0) throw bad_input("there are no samples to measure the results with");
  found.next_tokens = token_sums.result();
  conclude(with_ratios(names, judged, all), channels, found);
  return found;
}

std::vector<std::string> words_of_outputs(const DeployedFidelity& found) {
  if (found.without_numbers.empty()) return {};
  return {
      fmt::format("not compared, since they hold no numbers, or hold them in sequences, maps or optionals: outputs {}",
                  fmt::join(found.without_numbers, ", "))};
}

void copy_fidelity(const DeployedFidelity& found, AccuracyResult& accuracy) {
  accuracy.samples = found.outputs > 0 ? found.samples : 0;
  accuracy.sample_names = found.outputs > 0 ? found.sample_names : std::vector<std::string>();
  accuracy.sqnr_db = found.sqnr_db;
  accuracy.cosine = found.cosine;
  accuracy.worst_sample_db = found.worst_sample_db;
  accuracy.lost_channels = found.lost_channels;
  accuracy.worst_channels = found.worst_channels;
}

double metric_value(const DeployedFidelity& fidelity, AccuracyMetric metric) {
  if (metric == AccuracyMetric::cosine) return fidelity.cosine;
  if (metric == AccuracyMetric::sqnr) return fidelity.sqnr_db;
  if (metric != AccuracyMetric::perplexity) throw internal_error("a command measures itself");
  if (!fidelity.next_tokens)
    throw bad_input("--accuracy-metric perplexity: the model is no decoder with a KV cache and logits for each token",
                    "give cosine, sqnr or command");
  return fidelity.next_tokens->float_perplexity / fidelity.next_tokens->perplexity;
}

}  // namespace detent::run
