#include "run/comparison/deployed_fidelity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "exec/emit.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/bodies.h"
#include "planning/memory.h"
#include "quantization/floats/half_values.h"
#include "run/comparison/outcome.h"
#include "run/comparison/pairing.h"
#include "run/comparison/segmented_runs.h"
#include "run/model/finish.h"
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

// Runs that wait for those of the other model, on disk but for a few MiB.
class WaitingRuns {
 public:
  WaitingRuns(const std::filesystem::path& parent, std::uint64_t disk)
      : most_(std::min(kOnDisk, disk)),
        directory_(parent),
        spool_({.directory = directory_.path(), .memory_bytes = kInMemory, .buffer_bytes = kInMemory}) {}

  /// Up to a limit of bytes; whether these are all.
  bool take(FloatRuns& runs) {
    while (bytes_ < most_) {
      auto run = runs.next();
      if (!run) return true;
      bytes_ += bytes_of(run->sample.inputs) + bytes_of(run->results);
      inputs_.push_back(run->sample.inputs.size());
      origins_.push_back(std::move(run->sample.origin));
      auto record = std::move(run->sample.inputs);
      std::move(run->results.begin(), run->results.end(), std::back_inserter(record));
      spool_.put(lane_, origins_.size() - 1, std::move(record));
    }
    return false;
  }

  /// Those that wait, and then the others.
  std::optional<FloatRun> next(FloatRuns& others) {
    if (told_ == origins_.size()) return others.next();
    auto record = spool_.get(lane_, told_);
    if (!record) throw resource_error(fmt::format("a working file in '{}' is damaged", directory_.path().string()));
    spool_.release(lane_, told_);
    const auto results = record->begin() + static_cast<std::ptrdiff_t>(inputs_[told_]);
    FloatRun run{{origins_[told_], {}}, {results, record->end()}};
    record->erase(results, record->end());
    run.sample.inputs = std::move(*record);
    ++told_;
    return run;
  }

 private:
  static constexpr std::uint64_t kInMemory = std::uint64_t{4} << 20, kOnDisk = std::uint64_t{64} << 20;

  std::uint64_t most_;
  TempDir directory_;
  store::Spool spool_;
  store::Spool::Lane lane_ = spool_.open("runs");
  std::vector<std::string> origins_;
  std::vector<std::size_t> inputs_;  // of each
  std::uint64_t bytes_ = 0;
  std::size_t told_ = 0;
};

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

void summarize(std::vector<OutputSums> outputs, const std::vector<ChannelSums>& channels, DeployedFidelity& found) {
  found.cache_db = drop_caches(outputs);
  found.outputs = outputs.size();
  tell_worst(outputs, found);
  tell_channels(channels, outputs, found);
}

// `receiver` (or null), which must outlive it, gets the taps of each run.
FloatModel model_of_session(std::function<exec::Session()> open, data::TapReceiver* receiver) {
  const auto session = std::make_shared<std::optional<exec::Session>>();
  return {[session, receiver, open = std::move(open)](const data::Sample& sample) {
            std::optional<LargeBlocksApart> apart;  // while it is read, and takes its memory in the first run
            if (!*session) {
              apart.emplace();
              session->emplace(open());
            }
            return (*session)->run(sample.inputs, fmt::format("sample '{}'", sample.origin), receiver);
          },
          [session] { session->reset(); }};
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
  const auto open_original = [&] {
    if (follows || raised || options.saves_memory)
      return open(runtime, original, decisions.taps(), options, mode);  // weights stay where they are mapped
    return exec::Session::of_file(runtime, float_model, {mode, options.threads, options.stop});  // takes a copy less
  };
  const auto runner = model_of_session(open_original, &recorder);
  FloatRuns in_float(runner, source, most, follows ? nullptr : kept);
  std::optional<SegmentedRuns> in_segments;
  if (!follows && SegmentedRuns::suits(original, options.disk)) {
    in_segments.emplace(runtime, original, options, model.parent_path(),
                        [&, left = most]() mutable { return left-- > 0 ? source.next() : std::nullopt; });
  }
  std::optional<WaitingRuns> waiting;  // so that the two models need not stand in memory together
  if (!follows && !in_segments) {
    waiting.emplace(model.parent_path(), options.disk);
    if (waiting->take(in_float)) runner.close();
  }
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
  while (const auto expected = in_segments ? in_segments->next()
                               : waiting   ? waiting->next(in_float)
                                           : in_float.next()) {
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
    if (found.samples <= kMostSampleNames) found.sample_names.push_back(sample.origin);
    if (told) told(found.samples);
  }
  if (found.samples == 0) throw bad_input("there are no samples to measure the results with");
  found.next_tokens = token_sums.result();
  summarize(with_ratios(names, judged, all), channels, found);
  return found;
}

std::vector<std::string> notes_on_uncompared_outputs(const DeployedFidelity& found) {
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

namespace {

std::uint64_t bytes_of(const FloatRun& made) { return run::bytes_of(made.sample.inputs) + run::bytes_of(made.results); }

}  // namespace

FloatRuns::FloatRuns(FloatModel model, data::SampleSource& source, std::size_t most, KeptFloatRuns* kept)
    : model_(std::move(model)), source_(source), left_(most), kept_(kept) {
  if (kept_ == nullptr) return;
  if (kept_->are_all) {
    ahead_.assign(kept_->runs.begin(), kept_->runs.end());
    ended_ = true;
    kept_ = nullptr;
  } else {
    kept_->runs.clear();  // of a comparison that broke off
  }
}

void FloatRuns::run_ahead(std::uint64_t bytes) {
  std::uint64_t taken = 0;
  while (taken < bytes) {
    auto next = run();
    if (!next) {
      model_.close();
      return;
    }
    taken += bytes_of(*next);
    ahead_.push_back(std::move(*next));
  }
}

std::optional<FloatRun> FloatRuns::next() {
  if (ahead_.empty()) return run();
  auto first = std::move(ahead_.front());
  ahead_.pop_front();
  return first;
}

std::optional<FloatRun> FloatRuns::run() {
  if (ended_) return std::nullopt;
  std::optional<FloatRun> next;
  auto sample = left_ > 0 ? source_.next() : std::nullopt;
  if (sample) {
    --left_;
    auto results = model_.run(*sample);
    next = FloatRun{std::move(*sample), std::move(results)};
  }
  ended_ = !next;
  keep(next);
  return next;
}

void FloatRuns::keep(const std::optional<FloatRun>& run) {
  if (kept_ == nullptr) return;
  if (!run) {
    kept_->are_all = true;
  } else if ((kept_bytes_ += bytes_of(*run)) <= kept_->limit) {
    kept_->runs.push_back(*run);
  } else {
    kept_->runs.clear();
    kept_ = nullptr;
  }
}

namespace {

using onnx::DataType;

constexpr std::size_t kPiece = std::size_t{1} << 16;  // values that a thread rounds at a time

std::vector<std::string> values_in_float16(const onnx::Model& model, const graph::ValueTypes& types) {
  std::vector<std::string> values;
  for (const auto& node : model.graph.nodes) {
    if (node.op_type() == onnx::kBodyInputs) continue;  // rounded where they were made
    for (const auto& output : node.outputs()) {
      if (!output.empty() && graph::type_of(model, types, output) == DataType::float16) values.push_back(output);
    }
  }
  return values;
}

// Which of the values are float16; the others are bfloat16.
std::function<bool(const std::string&)> half_values(const onnx::Model& model, const Has16BitFloats& has,
                                                    const exec::PortsOf& ports_of,
                                                    const std::filesystem::path& directory) {
  if (!has.half || !has.brain) return [half = has.half](const auto&) { return half; };
  auto other = model;
  graph::bfloat16_to_float32(other, file_store(directory, "bfloat"));
  auto types = exec::infer_value_types(ports_of, other);
  return [types = std::move(types)](const std::string& value) {
    const auto found = types.find(value);
    return found != types.end() && found->second.type == DataType::float16;
  };
}

}  // namespace

LowValues raise_for_rounding(onnx::Model& model, const exec::PortsOf& ports_of,
                             const std::filesystem::path& directory) {
  const auto has = find_16_bit_floats(model);
  if (!has.half && !has.brain) return {};
  const auto values = values_in_float16(model, low_types(model, has, ports_of));
  const auto is_half = half_values(model, has, ports_of, directory);
  graph::half_floats_to_float32(model, file_store(directory, "float"), true);
  const graph::Index index(model);
  LowValues low;
  for (const auto& value : values) {
    // A result of the model is a cast of what readers in the model see.
    const auto& node = model.graph.nodes[static_cast<std::size_t>(index.producer(value))];
    const bool is_result = index.is_output(value) && node.is("Cast");
    low.emplace_back(is_result ? node.inputs()[0] : value, is_half(value) ? FloatType::float16 : FloatType::bfloat16);
  }
  return low;
}

// Rounds, and hands on what others asked for.
class RoundedSession::Receiver : public data::TapReceiver {
 public:
  Receiver(std::vector<Tap>& taps, data::TapReceiver* next) : taps_(taps), next_(next) {}

  void receive(std::size_t at, const data::TensorView& tensor, const data::ParallelFor& parallel) override {
    auto& tap = taps_[at];
    if (tap.type && tensor.type == DataType::float32) round(tensor, tap, parallel);
    if (tap.position && next_ != nullptr) next_->receive(*tap.position, tensor, parallel);
  }

 private:
  static void round(const data::TensorView& tensor, Tap& tap, const data::ParallelFor& parallel) {
    const std::span<float> values(reinterpret_cast<float*>(tensor.passed_on.data()),
                                  tensor.passed_on.size() / sizeof(float));
    std::atomic<std::size_t> overflows = 0;
    parallel((values.size() + kPiece - 1) / kPiece, [&](std::size_t i) {
      const auto piece = values.subspan(i * kPiece, std::min(kPiece, values.size() - i * kPiece));
      overflows += quantization::round_to_16_bits(piece, *tap.type);
    });
    tap.overflows += overflows;
  }

  std::vector<Tap>& taps_;
  data::TapReceiver* next_;
};

std::vector<RoundedSession::Tap> RoundedSession::all_taps(const LowValues& low, const std::vector<std::string>& taps) {
  std::vector<Tap> all;
  std::unordered_map<std::string, std::size_t> known;
  for (const auto& [value, type] : low) {
    if (known.try_emplace(value, all.size()).second) all.push_back({.value = value, .type = type});
  }
  for (std::size_t position = 0; position < taps.size(); ++position) {
    const auto [found, is_new] = known.try_emplace(taps[position], all.size());
    if (is_new) all.push_back({.value = taps[position]});
    all[found->second].position = position;
  }
  return all;
}

exec::SessionOptions RoundedSession::with_edits(exec::SessionOptions options, bool edits) {
  options.edits = options.edits || edits;
  return options;
}

namespace {

template <class Tap>
std::vector<std::string> values_of(const std::vector<Tap>& taps) {
  std::vector<std::string> values;
  for (const auto& tap : taps) values.push_back(tap.value);
  return values;
}

}  // namespace

RoundedSession::RoundedSession(const exec::Runtime& runtime, const onnx::Model& model, const LowValues& low,
                               const std::vector<std::string>& taps, const std::string& where,
                               exec::SessionOptions options)
    : taps_(all_taps(low, taps)),
      session_(runtime, exec::emit(model, {values_of(taps_), {}, {}}), where,
               with_edits(std::move(options), !low.empty())) {}

std::vector<data::Array> RoundedSession::run(std::span<const data::Array> inputs, const std::string& where,
                                             data::TapReceiver* receiver) {
  Receiver rounding(taps_, receiver);
  // A model of 16-bit floats may have inputs of them where the float model has float32.
  std::vector<data::Array> own;
  const auto& ports = session_.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    own.push_back(i < ports.size() ? data::as_floats(inputs[i], ports[i].type.type) : inputs[i]);
  return session_.run(own, where, taps_.empty() ? nullptr : &rounding);
}

std::vector<std::string> RoundedSession::overflows() const {
  std::vector<std::string> values;
  for (const auto& tap : taps_) {
    if (tap.overflows > 0) values.push_back(tap.value);
  }
  return values;
}

std::vector<std::string> rounding_notes(const LowValues& low, const std::vector<std::string>& overflows) {
  constexpr std::size_t kNamed = 3;
  if (low.empty()) return {};
  const auto type = low.front().second;
  const bool one = std::all_of(low.begin(), low.end(), [&](const auto& each) { return each.second == type; });
  const auto* name = !one ? "their 16-bit type" : type == FloatType::bfloat16 ? "bfloat16" : "float16";
  std::vector<std::string> notes{
      fmt::format("rounded to {} where they are made, as devices with such kernels do: {} of the quantized model; "
                  "--no-round-floats leaves that out",
                  name, count_with_noun(low.size(), "value"))};
  if (overflows.empty()) return notes;
  const std::vector named(overflows.begin(),
                          overflows.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, overflows.size())));
  notes.push_back(fmt::format("{} values pass the range of {} and become infinite: {}{}", overflows.size(), name,
                              fmt::join(named, ", "), overflows.size() > kNamed ? ", …" : ""));
  return notes;
}

}  // namespace detent::run
