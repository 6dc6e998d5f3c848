#include "detent/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/paths.h"
#include "base/process.h"
#include "base/text.h"
#include "config/validate.h"
#include "data/sample.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "graph/index.h"
#include "graph/patterns.h"
#include "graph/rewrites/rewrite.h"
#include "quantization/emit/emitters.h"
#include "run/collect.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/outcome.h"
#include "run/comparison/pairing.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/model/finish.h"
#include "run/model/prepare.h"
#include "run/samples/samples.h"
#include "shim/cuda_driver.h"

namespace detent {
namespace {

struct Side {
  onnx::Model model;
  graph::ValueTypes types;
  std::vector<data::InputSpec> inputs;
  std::string where;
  run::LowValues low;  // of 16-bit floats that the model has in float32
};

void prepare(onnx::Model& model) {
  graph::lift_constants(model);
  graph::drop_initializer_inputs(model);
  graph::sort_topologically(model);
}

// With a directory, 16-bit floats are brought to float32 there.
Side read_side(const std::filesystem::path& path, const exec::PortsOf& ports_of,
               const std::optional<std::filesystem::path>& directory, const graph::UnfoldLimits& limits) {
  Side side{onnx::read_model(run::model_file(path)), {}, {}, fmt::format("model '{}'", path.string()), {}};
  graph::require_room(side.model, limits.memory);
  if (directory) {
    auto unfolded = side.model;
    graph::unfold(unfolded, limits);
    prepare(unfolded);
    side.low = run::raise_for_rounding(unfolded, ports_of, *directory);
    if (!side.low.empty()) side.model = std::move(unfolded);
  }
  if (side.low.empty()) prepare(side.model);
  side.types = exec::infer_value_types(ports_of, side.model);
  side.inputs = run::input_specs(side.model);
  return side;
}

template <class T>
std::vector<std::string> names_of(const std::vector<T>& values) {
  std::vector<std::string> names;
  for (const auto& value : values) names.push_back(value.name);
  return names;
}

void require_same(const std::vector<std::string>& a, const std::vector<std::string>& b, const char* what) {
  if (a == b) return;
  throw bad_input(
      fmt::format("the models differ in their {}: [{}] and [{}]", what, fmt::join(a, ", "), fmt::join(b, ", ")),
      "compare a model with its own quantized form");
}

// Values that both models have. What the quantized model's readers see is the dequantized value, where there is one.
struct CommonValues {
  std::vector<std::string> in_float, in_quantized, made_by;
};

CommonValues common_values(const Side& original, const Side& quantized, const run::SharedDecisions& decisions) {
  const std::set<std::string> shared(decisions.taps().begin(), decisions.taps().end());
  const graph::Index index(quantized.model);
  const auto dequantized = quantization::dequantized_values(quantized.model, index);
  CommonValues common;
  for (const auto& node : original.model.graph.nodes) {
    if (node.body() != 0) continue;  // there may be several in one run, or none
    for (const auto& name : node.outputs()) {
      if (name.empty() || shared.contains(name) || decisions.apart().contains(name) ||
          graph::type_of(original.model, original.types, name) != onnx::DataType::float32)
        continue;
      const auto found = dequantized.find(name);
      const std::string& partner = found == dequantized.end() ? name : found->second;
      if (index.producer(partner) == graph::kNone) continue;
      if (graph::type_of(quantized.model, quantized.types, partner) != onnx::DataType::float32) continue;
      common.in_float.push_back(name);
      common.in_quantized.push_back(partner);
      common.made_by.push_back(node.label());
    }
  }
  return common;
}

Fidelity fidelity(const std::string& name, const std::string& made_by, const run::PairSums& sums) {
  return {name, made_by, sums.sqnr_db(), sums.cosine(), sums.max_abs};
}

// Of a session on the device beside another one.
exec::SessionOptions session_options(const CompareOptions& options) {
  return {.tuning = exec::SessionMode::lean,
          .threads = options.threads,
          .stop = options.stop,
          .place = run::inference_device_of(options.device, 2)};
}

exec::SessionOptions with_edits(exec::SessionOptions options, const run::SharedDecisions& decisions) {
  options.edits = !decisions.taps().empty();
  return options;
}

std::vector<std::string> joined(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::span<const float> as_floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// Sides of a pairing that share decisions as well: their taps are counted behind the others.
class OfferingSide final : public data::TapReceiver {
 public:
  OfferingSide(run::Pairing& pairing, run::SharedDecisions& decisions, std::size_t values)
      : pairing_(pairing), decisions_(decisions), values_(values) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    if (tap < values_) return pairing_.offer(tap, tensor.bytes);
    decisions_.record(tap - values_, tensor);
    pairing_.offer(tap, {});
  }

 private:
  run::Pairing& pairing_;
  run::SharedDecisions& decisions_;
  std::size_t values_;
};

class TakingSide final : public data::TapReceiver {
 public:
  /// `traits` has one entry for each value, and takes in the float ones.
  TakingSide(run::Pairing& pairing, const run::SharedDecisions& decisions, std::vector<run::ValueTraits>& traits)
      : pairing_(pairing), decisions_(decisions), traits_(traits), sums_(traits.size()) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    const auto bytes = pairing_.take(tap);
    if (tap >= sums_.size()) return decisions_.apply_recorded(tap - sums_.size(), tensor);  // which it is by now
    sums_[tap].add(as_floats(bytes), as_floats(tensor.bytes));
    traits_[tap].add(as_floats(bytes), tensor.shape);
  }
  const std::vector<run::PairSums>& sums() const { return sums_; }

 private:
  run::Pairing& pairing_;
  const run::SharedDecisions& decisions_;
  std::vector<run::ValueTraits>& traits_;
  std::vector<run::PairSums> sums_;
};

// Both models with taps, one in a thread of its own; the float outputs come back.
class LayerRun {
 public:
  LayerRun(const Side& original, const Side& quantized, const exec::Runtime& runtime, const CompareOptions& options,
           const CommonValues& common, run::SharedDecisions& decisions)
      : pairing_(options.pending_limit),
        traits_(traits_of(quantized, common)),
        offering_(pairing_, decisions, traits_.size()),
        taking_(pairing_, decisions, traits_),
        inputs_(quantized.inputs) {
    open_ = [&] {
      float_session_.emplace(runtime, exec::emit(original.model, {joined(common.in_float, decisions.taps()), {}, {}}),
                             original.where, session_options(options));
      quantized_session_.emplace(runtime, quantized.model, quantized.low, joined(common.in_quantized, decisions.taps()),
                                 quantized.where, with_edits(session_options(options), decisions));
    };
  }

  /// Until the next run.
  void close() {
    float_session_.reset();
    quantized_session_.reset();
  }

  std::vector<data::Array> run(const data::Sample& sample) {
    if (!float_session_) open_();
    pairing_.reset();
    std::vector<data::Array> outputs;
    std::exception_ptr float_error;
    std::jthread other([&] {
      try {
        outputs =
            float_session_->run(sample.inputs, fmt::format("sample '{}', float model", sample.origin), &offering_);
      } catch (...) {
        float_error = std::current_exception();
      }
      pairing_.close(float_error);
    });
    try {
      quantized_session_->run(run::with_cache_of(sample.inputs, inputs_),
                              fmt::format("sample '{}', quantized model", sample.origin), &taking_);
    } catch (...) {
      pairing_.abandon(true);
      throw;
    }
    pairing_.abandon(false);
    other.join();
    if (float_error) std::rethrow_exception(float_error);
    return outputs;
  }
  const std::vector<run::PairSums>& sums() const { return taking_.sums(); }
  const std::vector<run::ValueTraits>& traits() const { return traits_; }

 private:
  static std::vector<run::ValueTraits> traits_of(const Side& quantized, const CommonValues& common) {
    const graph::Index index(quantized.model);
    std::vector<run::ValueTraits> traits;
    for (const auto& value : common.in_quantized) traits.emplace_back(run::stored_range(quantized.model, index, value));
    return traits;
  }

  run::Pairing pairing_;
  std::vector<run::ValueTraits> traits_;
  OfferingSide offering_;
  TakingSide taking_;
  const std::vector<data::InputSpec>& inputs_;  // of the quantized model
  std::function<void()> open_;
  std::optional<exec::Session> float_session_;
  std::optional<run::RoundedSession> quantized_session_;
};

void add_outputs(const std::vector<std::string>& names, const std::vector<data::Array>& x,
                 const std::vector<data::Array>& y, std::vector<run::SampleSums>& sums) {
  const auto judged = run::judged_outputs(run::types_of(x), run::types_of(y));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (judged[i]) sums[i].add(x[i], y[i]);
  }
}

// What both models give as floats, or as integers where there are no floats.
void judge_outputs(const Side& original, const Side& quantized, const graph::Index& index,
                   const std::vector<run::SampleSums>& sums, Comparison& comparison) {
  const auto& outputs = original.model.graph.outputs;
  std::size_t in_other_numbers = 0;
  std::vector<onnx::DataType> types, others;
  for (const auto& output : outputs) types.push_back(graph::type_of(original.model, original.types, output.name));
  for (const auto& output : quantized.model.graph.outputs) others.push_back(output.type);
  const auto wanted = run::judged_outputs(types, types), judged = run::judged_outputs(types, others);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& name = outputs[i].name;
    if (!wanted[i]) continue;
    if (!judged[i]) {
      ++in_other_numbers;
      continue;
    }
    const auto& all = sums[i].all;
    if (!all.has_ratio()) {
      comparison.notes.push_back(
          all.paired == 0
              ? fmt::format("output '{}' has no element in both models", name)
              : fmt::format(
                    "output '{}' is 0 everywhere in the float model: its error, {:.3g} at the most, has no SQNR", name,
                    all.max_abs));
      continue;
    }
    const int producer = index.producer(name);
    const std::string made_by =
        producer == graph::kNone ? "" : original.model.graph.nodes[static_cast<std::size_t>(producer)].label();
    comparison.outputs.push_back(fidelity(name, made_by, all));
    comparison.outputs.back().worst_sample_db = sums[i].worst_db;
  }
  if (in_other_numbers > 0)
    comparison.notes.push_back(
        fmt::format("not compared, since they are no floats in the quantized model, as an 8-bit cache: {}",
                    count_with_noun(in_other_numbers, "output")));
}

bool worse(const Fidelity& a, const Fidelity& b) {
  if (std::isnan(a.sqnr_db) != std::isnan(b.sqnr_db)) return std::isnan(a.sqnr_db);
  return a.sqnr_db < b.sqnr_db;
}

// Inner values, worst first.
std::vector<Fidelity> judge_layers(const Side& original, const graph::Index& index, const CommonValues& common,
                                   const LayerRun& run, const run::Applied& applied) {
  std::vector<Fidelity> layers;
  std::unordered_map<std::string, run::MeasuredValue> judged;
  for (std::size_t i = 0; i < common.in_float.size(); ++i) {
    if (run.sums()[i].paired == 0) continue;  // samples that hold no values
    layers.push_back(fidelity(common.in_float[i], common.made_by[i], run.sums()[i]));
    judged[common.in_float[i]] = {&run.traits()[i], layers.back().sqnr_db};
  }
  const auto scores = graph::attention_scores(original.model, index);
  const std::set<std::string> is_score(scores.begin(), scores.end());
  for (auto& layer : layers) {
    auto explained = run::explain(original.model, index, layer.name, judged, applied, is_score.contains(layer.name));
    layer.reason = std::move(explained.reason);
    layer.suggestion = std::move(explained.suggestion);
  }
  std::stable_sort(layers.begin(), layers.end(), worse);
  return layers;
}

// An error that hardly any output shows tells nothing of what to change: such values come last.
void put_harmless_last(const std::vector<Fidelity>& outputs, std::vector<Fidelity>& layers) {
  constexpr double kMuchCloser = 20;  // dB: a hundredth of the error's share
  if (outputs.empty()) return;
  const double worst_db = std::min_element(outputs.begin(), outputs.end(), worse)->sqnr_db;
  const auto reaches_outputs = [&](const Fidelity& layer) {
    return std::isinf(layer.sqnr_db) || !(layer.sqnr_db + kMuchCloser <= worst_db);
  };
  const auto harmless = std::stable_partition(layers.begin(), layers.end(), reaches_outputs);
  std::for_each(harmless, layers.end(), [](Fidelity& layer) {
    layer.reason = "hardly reaches the outputs";
    layer.suggestion.clear();
  });
}

exec::GuardOptions guard_of(const CompareOptions& options) {
  return {.threads = options.threads,
          .load_seconds = run::seconds_to_load(options.resources.time_limit),
          .stop = options.stop};
}

void note(Comparison& comparison, const std::vector<std::string>& lines) {
  comparison.notes.insert(comparison.notes.end(), lines.begin(), lines.end());
}

// Samples that there will be, as far as that is known.
std::uint64_t most_of(const data::SampleSource& source, const CompareOptions& options, std::uint64_t done) {
  const std::uint64_t count = std::max<std::uint64_t>(source.sample_count(), done);  // 0: of a stream it is not known
  return options.max_samples == 0 ? count : std::min<std::uint64_t>(count, options.max_samples);
}

struct Sides {
  std::optional<TempDir> place;  // of what is rewritten to round floats
  Side original, quantized;
};

Sides read_sides(const CompareOptions& options, const exec::Runtime& runtime) {
  std::optional<TempDir> place;
  if (options.round_floats) place.emplace();
  const auto directory_for = [&](const char* name) {
    if (!place) return std::optional<std::filesystem::path>();
    paths::make_folder(place->path() / name);
    return std::optional(place->path() / name);
  };
  const graph::UnfoldLimits limits{options.resources.memory_budget, options.stop};
  const auto ports_of = exec::guarded_ports(runtime, {.stop = options.stop});
  auto original = read_side(options.model, ports_of, directory_for("float"), limits);
  auto quantized = read_side(options.quantized_model, ports_of, directory_for("quantized"), limits);
  return {std::move(place), std::move(original), std::move(quantized)};
}

Comparison compare_within_time(const CompareOptions& options) {
  const exec::Runtime runtime(options.runtime, options.resources.sample_time_limit);
  auto sides = read_sides(options, runtime);
  Side& original = sides.original;
  Side& quantized = sides.quantized;
  const auto output_names = names_of(original.model.graph.outputs);
  require_same(names_of(original.model.graph.inputs), names_of(quantized.model.graph.inputs), "inputs");
  require_same(output_names, names_of(quantized.model.graph.outputs), "outputs");
  const auto inputs = run::with_dimensions_of(original.inputs, quantized.inputs);
  const auto source = run::open_samples(options, inputs);
  const auto tokens = run::find_tokens(inputs, output_names);

  exec::check_survives(runtime, run::model_file(options.quantized_model), guard_of(options));
  run::SharedDecisions decisions(runtime, original.model, quantized.model);
  run::DecisionPlayer player(decisions);
  const CommonValues common = options.outputs_only ? CommonValues() : common_values(original, quantized, decisions);
  Comparison comparison;
  LayerRun layers(original, quantized, runtime, options, common, decisions);
  const auto run_layers = [&](const data::Sample& sample) {
    auto outputs = layers.run(sample);
    ++comparison.samples;
    if (comparison.samples <= run::kMostSampleNames) comparison.sample_names.push_back(sample.origin);
    if (options.progress)
      options.progress("compare", comparison.samples, most_of(*source, options, comparison.samples));
    return outputs;
  };
  run::RoundedSession deployed(runtime, quantized.model, quantized.low, decisions.taps(), quantized.where,
                               with_edits({exec::SessionMode::deployed, options.threads, options.stop}, decisions));
  run::FloatResults waiting(options.resources.work_dir.value_or(default_work_dir()),
                            options.resources.disk_budget.value_or(std::numeric_limits<std::uint64_t>::max()));
  run::FloatRuns in_float({run_layers, [&] { layers.close(); }}, *source, std::numeric_limits<std::size_t>::max(),
                          {waiting, false, decisions, [&] { deployed.close(); }});

  std::vector<run::SampleSums> output_sums(output_names.size());
  run::NextTokenSums token_sums;
  while (const auto run = in_float.next()) {
    const auto& [sample, expected] = *run;
    const auto got = deployed.run(run::with_cache_of(sample.inputs, quantized.inputs),
                                  fmt::format("sample '{}', quantized model", sample.origin), &player);
    add_outputs(output_names, expected, got, output_sums);
    if (tokens) {
      token_sums.add(sample.inputs[tokens->ids], tokens->mask ? &sample.inputs[*tokens->mask] : nullptr,
                     expected[tokens->logits], got[tokens->logits]);
    }
  }
  if (comparison.samples == 0) throw bad_input("there are no samples to compare with");

  const graph::Index index(original.model);
  judge_outputs(original, quantized, index, output_sums, comparison);
  comparison.layers = judge_layers(original, index, common, layers, run::read_applied(quantized.model));
  put_harmless_last(comparison.outputs, comparison.layers);
  comparison.next_tokens = token_sums.result();
  if (!options.device.is_cpu())
    note(comparison,
         {run::inference_device_note(options.device, runtime, "the float model, and both for inner values,")});
  note(comparison, decisions.notes());
  note(comparison, source->notes());
  note(comparison, run::rounding_notes(quantized.low, deployed.overflows()));
  return comparison;
}

}  // namespace

Comparison compare(const CompareOptions& options) {
  config::validate(options, config::kCompare);
  shim::require_cuda(options.device.cuda);
  return run::within_time(options, compare_within_time);
}

}  // namespace detent
