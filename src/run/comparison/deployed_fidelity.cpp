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
#include "base/paths.h"
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
#include "run/files/run_directory.h"
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
                                   FloatResults* kept) {
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
    constexpr std::uint64_t kLarge = std::uint64_t{8} << 20;  // of smaller files, mapped weights take more
    if (follows || raised || options.saves_memory || paths::size_of(float_model) >= kLarge)
      return open(runtime, original, decisions.taps(), options, mode);
    return exec::Session::of_file(runtime, float_model, {mode, options.threads, options.stop});  // takes a copy less
  };
  const auto runner = model_of_session(open_original, &recorder);
  const auto inputs = input_specs(quantized);
  std::optional<exec::GuardedSession> deployed;
  std::optional<exec::Session> following;
  const auto run_deployed = [&](const data::Sample& sample) {
    if (!deployed) deployed.emplace(runtime, model, options);
    exec::give_back_unused(runtime);
    return deployed->run(with_cache_of(sample.inputs, inputs), fmt::format("sample '{}'", sample.origin));
  };
  // Results of other decisions cannot be compared: then the file's own run shows only that it runs.
  const auto run_following = [&](const data::Sample& sample) {
    deployed.reset();
    if (!following) following.emplace(open(runtime, quantized, decisions.taps(), options));
    return following->run(with_cache_of(sample.inputs, inputs), fmt::format("sample '{}'", sample.origin), &player);
  };
  std::optional<FloatResults> waiting;
  if (kept == nullptr) kept = &waiting.emplace(model.parent_path(), options.disk);
  ModelTurns turns{*kept, !waiting && !follows, decisions, [&] { deployed.reset(), following.reset(); }};
  if (follows) turns.run_first = [&](const data::Sample& sample) { (void)run_deployed(sample); };
  FloatRuns in_float(runner, source, most, turns);
  std::optional<SegmentedRuns> in_segments;
  if (!follows && SegmentedRuns::suits(original, options.disk)) {
    in_segments.emplace(runtime, original, options, model.parent_path(),
                        [&, left = most]() mutable { return left-- > 0 ? source.next() : std::nullopt; });
  }
  std::vector<std::string> names;
  for (const auto& output : original.graph.outputs) names.push_back(output.name);
  const auto tokens = find_tokens(input_specs(original), names);
  std::vector<SampleSums> all(names.size());
  std::vector<bool> judged(names.size());
  auto channels = channels_of(original, names);
  NextTokenSums token_sums;
  DeployedFidelity found;
  while (const auto expected = in_segments ? in_segments->next() : in_float.next()) {
    const auto& [sample, x] = *expected;
    const auto y = follows ? run_following(sample) : run_deployed(sample);
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

FloatResults::FloatResults(const std::filesystem::path& parent, std::uint64_t disk, std::uint64_t turns)
    : has_room_(disk >= turns),
      most_(std::max(std::min(disk, turns), kInMemory) / 2),
      directory_(parent),
      spool_({.directory = directory_.path(), .memory_bytes = kInMemory, .buffer_bytes = kInMemory}),
      results_(spool_.open("results")),
      turn_(spool_.open("samples")) {}

bool FloatResults::keep(const std::string& key, const std::vector<data::Array>& results) {
  const auto bytes = run::bytes_of(results);
  if (holds(key) || bytes > most_ - bytes_) return holds(key);
  bytes_ += bytes;
  spool_.put(results_, kept_.size(), results);
  kept_.emplace(key, kept_.size());
  return true;
}

store::Record FloatResults::read(store::Spool::Lane lane, std::size_t record) {
  auto found = spool_.get(lane, record);
  if (!found) throw resource_error(fmt::format("a working file in '{}' is damaged", directory_.path().string()));
  return std::move(*found);
}

std::optional<FloatRun> FloatRuns::next() {
  if (told_ == turn_.size()) take_turn();
  if (turn_.empty()) return std::nullopt;
  auto& results = turns_.waiting;
  const auto& waiting = turn_[told_];
  auto record = results.read(results.turn_, told_);
  results.spool_.release(results.turn_, told_++);
  const auto decided = record.begin() + static_cast<std::ptrdiff_t>(waiting.inputs);
  const auto made = decided + static_cast<std::ptrdiff_t>(turns_.decisions.taps().size());
  turns_.decisions.recall({decided, made});
  return FloatRun{{waiting.origin, {record.begin(), decided}},
                  waiting.kept ? results.get(*waiting.kept) : std::vector(made, record.end())};
}

void FloatRuns::take_turn() {
  auto& waiting = turns_.waiting;
  waiting.spool_.close(waiting.turn_);
  waiting.turn_ = waiting.spool_.open("samples");
  waiting.turn_bytes_ = told_ = 0;
  turn_.clear();
  if (ended_) return;
  if (waiting.has_room_) turns_.close_other();
  for (; turn_.empty() || waiting.turn_bytes_ < waiting.most_; --left_) {
    const auto sample = left_ > 0 ? source_.next() : std::nullopt;
    ended_ = !sample;
    if (ended_) break;
    turn_.push_back(run(*sample));
  }
  if (ended_ || waiting.has_room_) model_.close();
  for (std::size_t i = 0; turns_.run_first && i < turn_.size(); ++i) {
    auto inputs = waiting.read(waiting.turn_, i);
    inputs.resize(turn_[i].inputs);
    turns_.run_first({turn_[i].origin, std::move(inputs)});
  }
}

FloatRuns::Waiting FloatRuns::run(const data::Sample& sample) {
  auto& results = turns_.waiting;
  Waiting waiting{sample.origin, sample.inputs.size()};
  auto record = sample.inputs;
  if (turns_.shared) waiting.kept = fingerprint_of(sample).text();
  if (!waiting.kept || !results.holds(*waiting.kept)) {
    const auto made = model_.run(sample);
    const auto decided = turns_.decisions.recorded();
    record.insert(record.end(), decided.begin(), decided.end());
    if (waiting.kept && !results.keep(*waiting.kept, made)) waiting.kept.reset();
    if (!waiting.kept) record.insert(record.end(), made.begin(), made.end());
  }
  results.turn_bytes_ += run::bytes_of(record);
  results.spool_.put(results.turn_, turn_.size(), std::move(record));
  return waiting;
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
      open_(
          [&runtime, &model, where, values = values_of(taps_), options = with_edits(std::move(options), !low.empty())] {
            return exec::Session(runtime, exec::emit(model, {values, {}, {}}), where, options);
          }) {}

std::vector<data::Array> RoundedSession::run(std::span<const data::Array> inputs, const std::string& where,
                                             data::TapReceiver* receiver) {
  if (!session_) session_.emplace(open_());
  Receiver rounding(taps_, receiver);
  // A model of 16-bit floats may have inputs of them where the float model has float32.
  std::vector<data::Array> own;
  const auto& ports = session_->inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    own.push_back(i < ports.size() ? data::as_floats(inputs[i], ports[i].type.type) : inputs[i]);
  return session_->run(own, where, taps_.empty() ? nullptr : &rounding);
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
