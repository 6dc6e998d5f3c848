#include "run/comparison/proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <sstream>

#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "config/formats.h"
#include "config/presets.h"
#include "data/given_inputs.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "onnx/write.h"
#include "planning/memory.h"
#include "run/command.h"
#include "run/comparison/latency.h"
#include "run/comparison/pairing.h"
#include "run/comparison/segmented_runs.h"
#include "run/context.h"
#include "run/files/outputs.h"
#include "run/model/finish.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::run {
namespace {

namespace fs = std::filesystem;

// What a runtime says of operators that it knows without having them for a type.
bool lacks_kernels(const Error& e) {
  const std::string_view text = e.what();
  constexpr std::array kTexts{"Could not find an implementation", "Failed to find kernel", "has no kernel of"};
  return std::any_of(kTexts.begin(), kTexts.end(), [&](const char* words) { return text.find(words) != text.npos; });
}

bool has_died(const Error& e) { return dynamic_cast<const exec::SessionDied*>(&e) != nullptr; }

std::string hint_of(const Error& e, const WeightsOnlyConfig& blocks) {
  if (lacks_kernels(e) && blocks.enabled && blocks.form == WeightForm::qdq)
    return "give --set weights-form=matmul-nbits, which leaves the model's opset as it is";
  return e.hint().empty() ? "leave the named node in float (--exclude-nodes), or choose another format" : e.hint();
}

// The file goes by a temporary name, which says nothing to users.
std::string by_name_of(const fs::path& output, const fs::path& file, std::string text) {
  for (const auto& name : {paths::absolute(file).string(), file.string()}) {
    for (auto at = text.find(name); at != text.npos; at = text.find(name, at + output.string().size()))
      text.replace(at, name.size(), output.string());
  }
  return text;
}

// A made-up picture or sequence, where a model takes any: few cannot take the smaller one.
constexpr Prover::Lengths kLengths[] = {{64, 16}, {224, 128}};
constexpr data::MadeUp kSizes[] = {{0, 1}, {-2, 2}, {-1.0 / 256, 1.0 / 256, true}};

double worst_db(const Prover::Pair& pair) {
  double worst = std::numeric_limits<double>::infinity();
  const auto judged = judged_outputs(types_of(pair.expected), types_of(pair.found));
  for (std::size_t i = 0; i < judged.size(); ++i) {
    PairSums sums;
    if (judged[i]) sums.add(pair.expected[i], pair.found[i]);
    if (judged[i] && sums.has_ratio()) worst = std::min(worst, sums.sqnr_db());
  }
  return worst;
}

std::vector<Prover::Pair>::const_iterator worst_of(const std::vector<Prover::Pair>& pairs) {
  return std::min_element(pairs.begin(), pairs.end(),
                          [](const auto& a, const auto& b) { return worst_db(a) < worst_db(b); });
}

std::string words_of_pair(const Prover::Pair& pair) {
  const double db = worst_db(pair);
  if (std::isfinite(db))
    return fmt::format("on {} the worst output is {:.1f} dB from the float model's", pair.where, db);
  return fmt::format("on {} an output is infinite or NaN where the float model's is not", pair.where);
}

// The node that computes a value and those that read it, and none that only converts it.
void add_nodes_at(const onnx::Model& model, const graph::Index& index, const std::string& value,
                  std::vector<std::string>& nodes) {
  const auto node_at = [&](int n) -> const onnx::Node& { return model.graph.nodes[static_cast<std::size_t>(n)]; };
  auto made = value;
  int maker = index.producer(made);
  while (maker != graph::kNone && node_at(maker).is("Cast")) {
    made = node_at(maker).inputs()[0];
    maker = index.producer(made);
  }
  if (maker != graph::kNone) nodes.push_back(node_at(maker).id());
  std::vector<std::string> read{made};
  for (std::size_t i = 0; i < read.size(); ++i) {
    for (const int reader : index.consumers(read[i])) {
      if (node_at(reader).is("Cast")) {
        read.push_back(node_at(reader).outputs()[0]);
      } else {
        nodes.push_back(node_at(reader).id());
      }
    }
  }
}

// Which of the values that it hears of are not finite, in the order in which they are made.
class NotFinite : public data::TapReceiver {
 public:
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    const data::Array array{tensor.type, {tensor.shape.begin(), tensor.shape.end()}, tensor.bytes, nullptr};
    std::vector<float> owned;
    const auto values = data::floats_in(array, owned);
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) taps_.push_back(tap);
  }
  std::vector<std::string> of(const std::vector<std::string>& values) const {
    std::vector<std::string> found;
    for (const auto tap : taps_) found.push_back(values[tap]);
    return found;
  }

 private:
  std::vector<std::size_t> taps_;
};

// Which of these values of a model are not finite.
std::vector<std::string> not_finite(const exec::Runtime& runtime, const onnx::Model& model,
                                    const std::vector<std::string>& values, const std::vector<data::Array>& inputs,
                                    const exec::GuardOptions& guard) {
  exec::Session session(runtime, exec::emit(model, {values, {}, {}}), fmt::format("model '{}'", model.path.string()),
                        {exec::SessionMode::lean, guard.threads, guard.stop});
  NotFinite heard;
  session.run(inputs, "made-up inputs", &heard);
  return heard.of(values);
}

// Of the main graph.
std::vector<std::string> float_values(const exec::PortsOf& ports_of, const onnx::Model& model) {
  const auto types = exec::infer_value_types(ports_of, model);
  std::vector<std::string> values;
  for (const auto& node : model.graph.nodes) {
    if (node.body() != 0) continue;
    for (const auto& value : node.outputs()) {
      const auto type = types.find(value);
      if (type != types.end() && data::holds_floats(type->second.type)) values.push_back(value);
    }
  }
  return values;
}

// What the file says is computed without optimizations as well, and its kernels are found.
exec::GuardedSession open_once(const exec::Runtime& runtime, const fs::path& file, exec::GuardOptions guard,
                               std::vector<std::string>& notes) {
  const double seconds = seconds_of_pairs(file);
  if (seconds < kSlowToLoad) return {runtime, file, guard};
  guard.optimizes = false;
  try {
    exec::GuardedSession opened(runtime, file, guard);
    notes.push_back(fmt::format(
        "the written file was run without ONNX Runtime's optimizations, with which it takes about {:.0f} s to load",
        seconds));
    return opened;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
  }
  guard.optimizes = true;
  return {runtime, file, guard};
}

}  // namespace

std::string reason_against_proof(const QuantizeOptions& options) {
  if (options.config.float_type == FloatType::bfloat16) return "ONNX Runtime's CPU has no kernels of bfloat16";
  return std::string(config::kind_of(options).reason_against_running);
}

std::optional<exec::Runtime> runtime_if_there(const QuantizeOptions& options) {
  try {
    return exec::Runtime(options.runtime, options.resources.sample_time_limit);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::device || options.runtime) throw;
    return std::nullopt;
  }
}

exec::GuardOptions guard_options(const QuantizeOptions& options) {
  constexpr double kSecondsToRun = 3000;
  return {.threads = options.threads,
          .load_seconds = seconds_to_load(options.resources.time_limit),
          .run_seconds = options.resources.sample_time_limit.value_or(kSecondsToRun),
          .stop = options.stop,
          .saves_memory = options.resources.memory_budget.has_value(),
          .disk = options.resources.disk_budget.value_or(std::numeric_limits<std::uint64_t>::max())};
}

void Prover::judge(data::SampleSource& source, std::size_t skipped, std::size_t count, FloatResults* kept) {
  judged_ = Judged{&source, skipped, count, kept};
}

void Prover::operator()(const fs::path& file) {
  prove(file);
  if (check_) check_(file);
}

void Prover::prove(const fs::path& file) {
  if (options_.stop.stop_requested()) throw interrupted();
  if (runtime_ == nullptr) {
    notes_.emplace_back("the written file was not run: there is no ONNX Runtime");
    return;
  }
  if (const auto needed = memory_of(file); needed > memory_for_samples(options_.resources)) {
    notes_.push_back(fmt::format("the written file was not run: it would take about {}", format_size(needed)));
    return;
  }
  trim_heap();  // the file runs in a process beside this one
  std::vector<Pair> pairs;
  try {
    if (judged_) {
      const auto tell = [&](std::uint64_t done) {
        if (options_.progress) options_.progress("proof", done, judged_->count);
      };
      tell(0);
      judged_->source->rewind();
      judged_->source->skip(judged_->skipped);
      fidelity_ = deployed_fidelity(*runtime_, options_.model, file, *judged_->source, judged_->count,
                                    guard_options(options_), tell, judged_->kept);
    } else {
      pairs = run_beside(file);
    }
  } catch (const Error& e) {
    if (!excuse_.empty() && lacks_kernels(e)) {
      notes_.push_back("the written file was not run, but its graph was accepted: " + excuse_);
      return;
    }
    if (e.kind() != ErrorKind::bad_input) throw;
    if (!has_died(e)) check_original();
    throw device_error(fmt::format("the quantized model does not run in ONNX Runtime {}, so nothing was written: {}",
                                   runtime_->version(), by_name_of(options_.output, file, e.what())),
                       hint_of(e, options_.weights_only));
  }
  judge_pairs(file, pairs);
}

// Where no stage before had to load the float model: that the runtime refuses it is no fault of the quantized one.
void Prover::check_original() const {
  try {
    const exec::GuardedSession loaded(*runtime_, options_.model, guard_options(options_));
  } catch (const Error& e) {
    if (!has_died(e) && (e.kind() == ErrorKind::bad_input || e.kind() == ErrorKind::interrupted)) throw;
  }
}

// Read, turned, and packed for kernels, in a process with a runtime of its own.
std::uint64_t Prover::memory_of(const fs::path& file) const {
  constexpr std::uint64_t kProcess = std::uint64_t{40} << 20;
  return kProcess + 3 * size_on_disk(onnx::read_model(file)) + runtime_->peak_activation_bytes();
}

// On made-up inputs. Nobody asked for it, unless 16-bit floats are to be judged by it. Empty: it is done.
std::string Prover::reason_against_comparison(const fs::path& file) const {
  const bool decides = find_16_bit_floats(file).half;
  const auto needed = memory_of(options_.model), usual = std::max(memory_of(file), kUnaskedBytes);
  const auto most = memory_for_samples(options_.resources);
  // A budget that is large enough changes nothing.
  if (needed <= (decides ? most : std::min(most, usual))) return {};
  return fmt::format(
      "the written file was not compared with the float model, which would take about {}: detent compare does that on "
      "samples",
      format_size(needed));
}

// Where there are some that can be read again.
std::optional<data::Sample> Prover::first_sample() const {
  if (!config::has_samples(options_)) return std::nullopt;
  if (options_.samples != nullptr) options_.samples->rewind();
  return open_first(options_, input_specs(onnx::read_model(options_.model), options_.config.input_shapes), 1)->next();
}

std::vector<Prover::Pair> Prover::run_beside(const fs::path& file) {
  std::optional<data::Sample> sample;
  try {
    sample = first_sample();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    const auto loaded = open_once(*runtime_, file, guard_options(options_), notes_);
    notes_.push_back(fmt::format("the written file was loaded, but not run: {}", e.what()));
    return {};
  }
  return sample ? run_on(file, std::move(*sample)) : run_on_made_up(file);
}

std::vector<Prover::Pair> Prover::run_on(const fs::path& file, data::Sample sample) {
  std::vector<Pair> pairs{{fmt::format("sample '{}'", sample.origin), std::move(sample.inputs)}};
  auto& pair = pairs.front();
  {
    auto session = open_once(*runtime_, file, guard_options(options_), notes_);
    pair.found = session.run(with_cache_of(pair.inputs, input_specs(onnx::read_model(file))), pair.where);
  }
  // Under a budget the float model may run in segments alone. What is found decides nothing but the form of weights in
  // blocks, and only there has to be the same under any budget.
  const bool limited = options_.resources.memory_budget.has_value();
  if (limited && !has_other_form_) return {};
  const auto kept = limited ? runtime_->peak_activation_bytes() : 0;
  if (memory_of(options_.model) + kept > memory_for_samples(options_.resources)) return {};
  (void)run_float(pairs);
  return pairs;
}

// The float model's results. What it cannot take is left out: then this says why.
std::string Prover::run_float(std::vector<Pair>& pairs) const {
  const auto guard = guard_options(options_);
  try {
    if (auto model = onnx::read_model(options_.model); SegmentedRuns::suits(model, guard.disk)) {
      const auto next = [&, at = pairs.begin()]() mutable -> std::optional<data::Sample> {
        if (at == pairs.end()) return std::nullopt;
        return data::Sample{at->where, at++->inputs};
      };
      SegmentedRuns runs(*runtime_, std::move(model), guard, options_.output.parent_path(), next);
      for (auto& pair : pairs) pair.expected = runs.next().value().results;
      return {};
    }
    exec::GuardedSession session(*runtime_, options_.model, guard);
    for (auto& pair : pairs) pair.expected = session.run(pair.inputs, pair.where);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    std::erase_if(pairs, [](const auto& pair) { return pair.expected.empty(); });
    return e.what();
  }
  return {};
}

// Inputs need not be what the model can take: then the float model says so as well.
std::vector<Prover::Pair> Prover::run_on_made_up(const fs::path& file) {
  std::string refused;
  const auto alone = reason_against_comparison(file);
  for (const auto& size : kLengths) {
    std::vector<Pair> pairs;
    std::exception_ptr failed;
    {
      auto session = open_once(*runtime_, file, guard_options(options_), notes_);
      try {
        const auto specs = input_specs(onnx::read_model(file));
        pairs = made_up_pairs(size, specs);
        for (auto& pair : pairs) pair.found = session.run(with_cache_of(pair.inputs, specs), pair.where);
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::interrupted) throw;
        failed = std::current_exception();
        refused = e.what();
      }
    }
    if (!alone.empty()) {
      if (failed) continue;
      notes_.push_back(alone);
      return {};
    }
    if (const auto words = run_float(pairs); !words.empty()) refused = words;
    if (pairs.empty()) continue;
    if (failed && pairs.back().found.empty()) std::rethrow_exception(failed);
    return pairs;
  }
  notes_.push_back(
      fmt::format("the written file was loaded, but not run: {}", by_name_of(options_.output, file, refused)));
  return {};
}

// Of several sizes, with values around zero, and with silence.
std::vector<Prover::Pair> Prover::made_up_pairs(const Lengths& lengths,
                                                const std::vector<data::InputSpec>& specs) const {
  const auto inputs =
      with_dimensions_of(input_specs(onnx::read_model(options_.model), options_.config.input_shapes), specs);
  std::vector<Pair> pairs;
  for (auto size : kSizes) {
    size.pixels = lengths.pixels;
    size.steps = lengths.steps;
    size.cached = 0;  // no text leaves what would be made up in a decoder's cache
    pairs.push_back({fmt::format("made-up inputs from {} to {}", size.from, size.to),
                     data::synthetic_inputs(inputs, {}, options_.input_values, size)});
    // Integers are the same each time.
    const auto is_float = [](const auto& array) { return data::holds_floats(array.type) && !array.bytes.empty(); };
    if (std::none_of(pairs.front().inputs.begin(), pairs.front().inputs.end(), is_float)) break;
  }
  return pairs;
}

void Prover::judge_pairs(const fs::path& file, const std::vector<Pair>& pairs) {
  if (pairs.empty()) return;
  if (!config::has_samples(options_) && find_16_bit_floats(file).half) judge_rounded(file, pairs);
  const auto worst = worst_of(pairs);
  const double db = worst_db(*worst);
  if (db >= kUselessDb) return;
  const auto is_lost = [&](double otherwise) { return otherwise >= kUselessDb && otherwise > db + kUselessDb; };
  const auto tell = [&](std::string_view how, std::string_view without, double otherwise, bool in_int8) {
    const auto words = fmt::format(
        "ONNX Runtime {} computes something else than the file says: {} the worst output has {:.1f} dB on {}, {} "
        "{:.1f}",
        runtime_->version(), how, db, worst->where, without, otherwise);
    if (has_other_form_) throw LostInRuntime(words, in_int8);
    notes_.push_back(words);
  };
  if (const double in_float = db_without_int8(file, *worst); is_lost(in_float))
    return tell("with weights in blocks multiplied in int8", "in float", in_float, true);
  if (const double plain = db_of(file, *worst, false); is_lost(plain))
    return tell("at its default optimizations", "without them", plain, false);
  notes_.push_back(words_of_pair(*worst));
}

// As devices compute it that have kernels of 16-bit floats. Samples would have decided what may have 16 bits.
void Prover::judge_rounded(const fs::path& file, const std::vector<Pair>& pairs) {
  std::vector<Pair> rounded;
  std::vector<std::string> beyond;
  try {
    rounded = run_rounded(file, pairs, beyond);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    notes_.push_back(fmt::format("16-bit floats were not looked at as devices compute them: {}",
                                 by_name_of(options_.output, file, e.what())));
    return;
  }
  const auto worst = worst_of(rounded);
  if (worst == rounded.end() || worst_db(*worst) >= kUselessDb) return;
  if (beyond.empty()) {
    notes_.push_back("where devices compute in 16-bit floats: " + words_of_pair(*worst));
    return;
  }
  const auto words =
      fmt::format("16-bit floats do not hold what node '{}' computes: {}", beyond.front(), words_of_pair(*worst));
  throw BeyondFloat16(words, std::move(beyond));
}

// `beyond`: nodes at values that pass the type, or no longer are numbers where the float model's are.
std::vector<Prover::Pair> Prover::run_rounded(const fs::path& file, std::vector<Pair> pairs,
                                              std::vector<std::string>& beyond) const {
  const auto guard = guard_options(options_);
  const auto ports_of = exec::guarded_ports(*runtime_, guard);
  const TempDir directory(file.parent_path());
  auto model = onnx::read_model(file);
  const auto specs = input_specs(model);
  graph::unfold(model);
  graph::lift_constants(model);
  const auto low = raise_for_rounding(model, ports_of, directory.path());
  if (low.empty()) return {};
  const auto values = float_values(ports_of, model);
  std::vector<std::string> lost, passing;
  double worst_so_far = std::numeric_limits<double>::infinity();
  {
    RoundedSession session(*runtime_, model, low, values, fmt::format("model '{}'", file.string()),
                           {exec::SessionMode::lean, guard.threads, guard.stop});
    for (auto& pair : pairs) {
      NotFinite heard;
      pair.found = session.run(with_cache_of(pair.inputs, specs), pair.where, &heard);
      if (worst_db(pair) < worst_so_far) lost = heard.of(values);
      worst_so_far = std::min(worst_so_far, worst_db(pair));
    }
    passing = session.overflows();
  }
  const auto worst = worst_of(pairs);
  if (worst_db(*worst) >= kUselessDb) return pairs;
  const graph::Index index(model);
  for (const auto& value : passing) add_nodes_at(model, index, value, beyond);
  if (!beyond.empty() || lost.empty()) return pairs;
  const auto original = onnx::read_model(options_.model);
  const graph::Index of_original(original);
  auto both = lost;
  std::erase_if(both, [&](const auto& value) { return of_original.producer(value) == graph::kNone; });
  both = not_finite(*runtime_, original, both, worst->inputs, guard);
  std::erase_if(lost, [&](const auto& v) { return std::find(both.begin(), both.end(), v) != both.end(); });
  if (!lost.empty()) add_nodes_at(model, index, lost.front(), beyond);
  return pairs;
}

// Without optimizations the runtime computes what the file says.
double Prover::db_of(const fs::path& file, const Pair& pair, bool optimizes) const {
  try {
    auto options = guard_options(options_);
    options.optimizes = optimizes;
    exec::GuardedSession session(*runtime_, file, options);
    auto again = pair;
    again.found = session.run(with_cache_of(pair.inputs, input_specs(onnx::read_model(file))), pair.where);
    return worst_db(again);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    return -std::numeric_limits<double>::infinity();
  }
}

// Of the same file with products in blocks that multiply what they read as it is; where there are none, no number.
double Prover::db_without_int8(const fs::path& file, const Pair& pair) const {
  constexpr auto kNone = -std::numeric_limits<double>::infinity();
  if (!options_.weights_only.enabled) return kNone;
  auto model = onnx::read_model(file);
  bool any = false;
  for (auto& node : model.graph.nodes) {
    if (node.op_type() != "MatMulNBits" || node.int_or("accuracy_level", 0) == 0) continue;
    node.set_attribute(onnx::Attribute::of_int("accuracy_level", 0));
    any = true;
  }
  if (!any) return kNone;
  const TempDir directory(file.parent_path());
  const auto other = directory.path() / "in-float.onnx";
  onnx::write_model(model, other);
  return db_of(other, pair, true);
}

namespace {

constexpr const char* kWhatItDoes = "it gets a model's path as its last argument and prints the score";

std::optional<double> last_number(const std::string& text) {
  std::optional<double> last;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    double value = 0;
    const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (status == std::errc() && end == word.data() + word.size()) last = value;
  }
  return last;
}

}  // namespace

double score_by_command(const std::string& command, const std::filesystem::path& model, const std::stop_token& stop) {
  const std::string line = command + " " + quoted(paths::absolute(model).string());
  const auto [status, output] = run_command(line, stop);
  if (status != 0)
    throw bad_input(fmt::format("--accuracy-command: '{}' ended with status {}", line, status), kWhatItDoes);
  const auto score = last_number(output);
  if (!score) throw bad_input(fmt::format("--accuracy-command: '{}' printed no number", line), kWhatItDoes);
  return *score;
}

double share_of_float_score(double score, double float_score) {
  if (float_score == 0 || !std::isfinite(float_score))
    throw bad_input(fmt::format("the float model's score is {}, and a target is a share of it", float_score),
                    "let the command or function give a score that is finite and not zero for the float model");
  return float_score > 0 ? score / float_score : 2 - score / float_score;
}

double share_of_float_score(const AccuracyConfig& accuracy, const std::filesystem::path& float_model,
                            const std::filesystem::path& model, std::optional<double>& float_score,
                            const std::stop_token& stop) {
  const auto score_of = [&](const std::filesystem::path& path) {
    return accuracy.score ? accuracy.score(path) : score_by_command(accuracy.command, path, stop);
  };
  if (!float_score) float_score = score_of(float_model);
  return share_of_float_score(score_of(model), *float_score);
}

}  // namespace detent::run
