#include "run/comparison/outcome.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "data/given_inputs.h"
#include "graph/traits.h"
#include "run/comparison/latency.h"

namespace detent::run {
namespace {

using Answer = Outcome::Answer;

constexpr double kGoodScore = 0.99, kPoorScore = 0.95;  // shares of the float model's
constexpr double kSameLatency = 0.05;                   // what two runs of one model may differ by
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string percent_text(double share) {
  const double percent = 100 * share;
  return fmt::format("{:.{}f} %", percent, percent < 9.95 ? 1 : 0);
}

void lower(Answer& answer, Answer to) { answer = std::max(answer, to); }

std::string accuracy_text(const QuantizeResult& r, Outcome& outcome) {
  if (!r.accuracy) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.emplace_back("Accuracy was not measured: detent compare does that on samples.");
    return {};
  }
  const auto& a = *r.accuracy;
  if (a.samples == 0 && !a.score) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.emplace_back("Accuracy was not measured: no result has numbers to compare.");
    return {};
  }
  if (a.samples < kFewSamples) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.push_back(fmt::format("Accuracy was measured on {} only; {} or more say more about other inputs.",
                                          count_with_noun(a.samples, "sample"), kFewSamples));
  }
  const auto different = r.samples - std::min(r.samples, r.repeated_samples);
  if (a.samples >= kFewSamples && r.repeated_samples > 0 && different < kFewSamples) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.push_back(
        fmt::format("{} of the {} samples repeat{} others: {} or more different ones say more about other inputs.",
                    r.repeated_samples, r.samples, r.repeated_samples == 1 ? "s" : "", kFewSamples));
  }
  if (a.score) {  // the application's own metric decides alone
    if (*a.score < kGoodScore) {
      lower(outcome.answer, *a.score < kPoorScore ? Answer::no : Answer::look);
      outcome.reasons.push_back(fmt::format("The score is {:.1f} % of the float model's.", 100 * *a.score));
    }
    return fmt::format("the score is {:.1f} % of the float model's", 100 * *a.score);
  }
  if (!a.lost_channels.empty()) lower(outcome.answer, Answer::look);
  outcome.reasons.insert(outcome.reasons.end(), a.lost_channels.begin(), a.lost_channels.end());
  if (a.lost_channels.empty() && a.worst_channels && a.worst_channels->sqnr_db < kFarDb) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.push_back(fmt::format("SQNR of {} is {:.1f} dB, since their values are of another size.",
                                          channel_group_text(*a.worst_channels), a.worst_channels->sqnr_db));
  }
  if (a.rounded_db && *a.rounded_db < std::min(a.sqnr_db, kCloseDb)) {
    lower(outcome.answer, *a.rounded_db < kFarDb ? Answer::no : Answer::look);
    outcome.reasons.push_back(fmt::format("Devices that compute in 16-bit floats reach {:.1f} dB.", *a.rounded_db));
  }
  if (a.sqnr_db == -kInfinity) {
    lower(outcome.answer, Answer::no);
    outcome.reasons.emplace_back("An output is infinite or NaN where the float model's is not.");
    return "an output is not finite";
  }
  if (a.sqnr_db == kInfinity) return "the compared outputs are those of the float model";
  if (a.sqnr_db < kCloseDb) {
    lower(outcome.answer, a.sqnr_db < kFarDb ? Answer::no : Answer::look);
    outcome.reasons.push_back(fmt::format(
        "SQNR is {:.1f} dB: test it with the application's own metric, or give --accuracy-target.", a.sqnr_db));
    return fmt::format("the worst output is {} off the float model's", percent_text(error_of(a.sqnr_db)));
  }
  return fmt::format("the outputs stay within {} of the float model's", percent_text(error_of(a.sqnr_db)));
}

std::string times_text(double factor) { return fmt::format("{:.{}f} times", factor, factor < 9.95 ? 1 : 0); }

// A busy machine tells nothing of speed.
bool is_doubtful(const LatencyChange& latency) { return latency.before.is_doubtful() || latency.after.is_doubtful(); }

std::string latency_text(const QuantizeResult& r, Outcome& outcome) {
  if (!r.latency || !r.latency->of_target || is_doubtful(*r.latency)) return {};
  const auto& after = r.latency->after;
  const double ratio = after.ratio;
  if (ratio > 1 + kSameLatency) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.push_back(fmt::format("It is {} than the float model on this machine.", speed_words(ratio)));
    return {};
  }
  if (ratio > 1 - kSameLatency) return "it is as fast";
  return fmt::format("it is {} as fast", times_text(1 / ratio));
}

std::string size_text(const QuantizeResult& r) {
  if (r.model_bytes_before == 0 || r.model_bytes_after == 0) return {};
  const auto times = static_cast<double>(r.model_bytes_before) / static_cast<double>(r.model_bytes_after);
  if (times < 1 + kSameLatency) return {};
  return fmt::format("{} smaller", times_text(times));
}

// What would change the size.
std::string size_hint(const QuantizeResult& r) {
  if (!r.faster_in_float.empty()) return "--optimize-for size quantizes what this machine runs faster in float";
  if (!r.weights.empty())
    return "blocks hold weights of matrix products and tables; --op-types MatMul,Gemm,Gather,Conv,ConvTranspose stores "
           "filters as well, and without --weights-only, with --calibration-data, convolutions are quantized";
  if (r.floats) return "the notes say what stays in float32";
  if (r.nodes_in_float > r.nodes_quantized) return "the notes say what stays in float, and what would change it";
  return "the notes say what stays in float; --weights-only stores weights in 4 or 8 bits";
}

// A file that is hardly smaller is what has to be known first.
std::string size_first(const QuantizeResult& r, Outcome& outcome) {
  constexpr double kHardly = 0.9;
  if (r.model_bytes_before == 0 || r.model_bytes_after == 0) return {};
  if (!r.kv_scales.empty() && r.weights.empty()) return {};  // it is the cache that shrinks
  const double left = static_cast<double>(r.model_bytes_after) / static_cast<double>(r.model_bytes_before);
  if (left <= kHardly) return {};
  const bool is_faster = r.latency && r.latency->after.ratio < 1 - kSameLatency;
  if (!is_faster) lower(outcome.answer, Answer::look);
  const auto [before, after] = format_sizes(r.model_bytes_before, r.model_bytes_after);
  const char* change = left > 1 ? "The file is larger than the float model's" : "The file is hardly smaller";
  return fmt::format("{} ({} -> {}): {}. ", change, before, after, size_hint(r));
}

// Where the result is the float model, what it is beside it says little.
bool is_untouched(const QuantizeResult& r) { return r.nodes_quantized == 0 && r.nodes_in_float > 0 && !r.floats; }

Outcome untouched(const QuantizeResult& r) {
  const auto& faster = r.faster_in_float;
  if (r.bits_plan)
    return {.answer = Answer::look,
            .headline = "Nothing was quantized.",
            .reasons = {"The given limits need all weights in float: a lower --accuracy-target or --max-size makes the "
                        "model smaller."}};
  return {.answer = Answer::look,
          .headline = "Nothing was quantized.",
          .reasons = {faster.empty() ? "No selected operator can be: the notes say why, --op-types and --weights-only "
                                       "select others."
                                     : "This machine runs all layers faster in float: --optimize-for size makes the "
                                       "model smaller all the same."}};
}

}  // namespace

double error_of(double sqnr_db) noexcept { return std::pow(10.0, -sqnr_db / 20); }

Outcome outcome_of(const QuantizeResult& result) {
  if (is_untouched(result)) return untouched(result);
  Outcome outcome{.answer = Answer::yes, .headline = {}, .reasons = {}};
  const auto first = size_first(result, outcome);
  if (!result.conditions.empty()) lower(outcome.answer, Answer::look);
  outcome.reasons.insert(outcome.reasons.end(), result.conditions.begin(), result.conditions.end());
  const auto accuracy = accuracy_text(result, outcome);
  std::vector<std::string> gains;
  if (auto text = latency_text(result, outcome); !text.empty()) gains.push_back(std::move(text));
  if (auto text = size_text(result); !text.empty()) gains.push_back(gains.empty() ? "it is " + text : std::move(text));
  std::vector<std::string> parts;
  if (!accuracy.empty()) parts.push_back(accuracy);
  if (!gains.empty()) parts.push_back(fmt::format("{}", fmt::join(gains, " and ")));
  auto text = fmt::format("{}", fmt::join(parts, ", and "));
  if (!text.empty()) text = fmt::format(": {}.", text);
  switch (outcome.answer) {
    case Answer::yes: outcome.headline = "Ready to use" + text; break;
    case Answer::look: outcome.headline = "Look at it before you use it" + text; break;
    case Answer::no: outcome.headline = "Not close to the float model" + text; break;
  }
  if (text.empty()) outcome.headline += '.';
  if (result.latency && result.latency->of_target && is_doubtful(*result.latency))
    outcome.headline += " Its speed was not measured: the machine was busy.";
  outcome.headline = first + outcome.headline;
  return outcome;
}

std::vector<KeptNode> kept_nodes(const QuantizeResult& result) {
  std::vector<KeptNode> all;
  if (result.accuracy) {
    for (const auto& n : result.accuracy->float_nodes) all.push_back({n.node, "in float, for accuracy", &n});
    for (const auto& n : result.accuracy->wide_nodes) all.push_back({n.node, "16-bit activations, for accuracy", &n});
  }
  for (const auto& name : result.faster_in_float) all.push_back({name, "in float, faster so on this machine"});
  return all;
}

namespace {

constexpr std::size_t kMostChannels = 4096, kMostClasses = 1 << 20;
constexpr float kMuchLarger = 16;
constexpr double kLeastRatio = 3;  // of how the channels vary to the errors: a constant has 1 at most

// Through nodes that only move values.
bool are_probabilities(const onnx::Model& model, const graph::Index& index, const std::string& output) {
  std::string value = output;
  for (std::size_t steps = 0; steps < model.graph.nodes.size(); ++steps) {
    const int producer = index.producer(value);
    if (producer == graph::kNone) return false;
    const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
    for (const auto* type : {"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid"})
      if (node.is(type)) return true;
    if (!graph::has_trait(node, graph::Trait::rearranges) || node.inputs().empty()) return false;
    value = node.inputs().front();
  }
  return false;
}

std::vector<std::int64_t> without_ones(const std::vector<onnx::Dim>& shape) {
  std::vector<std::int64_t> sizes;
  for (const auto& dim : shape) {
    if (dim.value != 1) sizes.push_back(dim.value);
  }
  return sizes;
}

// An output of the name and shape of an input, but for an ending: a recurrent model's state, which it reads again.
bool is_state(const onnx::Model& model, const std::string& output) {
  const auto info = std::find_if(model.graph.outputs.begin(), model.graph.outputs.end(),
                                 [&](const auto& o) { return o.name == output; });
  if (info == model.graph.outputs.end()) return false;
  return std::any_of(model.graph.inputs.begin(), model.graph.inputs.end(), [&](const auto& input) {
    if (input.type != info->type || !input.shape || !info->shape) return false;
    const bool is_named_so = output.starts_with(input.name) || output.ends_with(input.name);
    if (is_named_so && input.shape->size() == info->shape->size()) return true;
    constexpr std::size_t kLetters = 4;  // "states" and "stateN", with an axis more for a batch
    const auto alike = std::ranges::mismatch(output, input.name).in1 - output.begin();
    return std::cmp_greater_equal(alike + 1, std::max(kLetters, std::min(output.size(), input.name.size()))) &&
           without_ones(*input.shape) == without_ones(*info->shape);
  });
}

}  // namespace

ChannelSums::ChannelSums(const onnx::Model& model, const graph::Index& index, std::string output)
    : output_(std::move(output)),
      counts_(!are_probabilities(model, index, output_)),
      is_state_(is_state(model, output_)) {}

void ChannelSums::start(const data::Array& in_float) {
  started_ = true;
  const auto rank = in_float.shape.size();
  may_be_lost_ = rank > 2;
  constexpr float kNone = std::numeric_limits<float>::infinity();
  if (rank < 2) return;
  for (const auto axis : std::set<std::size_t>{1, rank - 1}) {
    const auto count = static_cast<std::size_t>(in_float.shape[axis]);
    if (count < 2 || count > kMostChannels) continue;
    axes_.push_back({axis, std::vector<Channel>(count, {kNone, -kNone})});
  }
}

// Rows of the last axis, as long as they are distributions.
void ChannelSums::add_decisions(std::span<const float> x, std::span<const float> y, std::size_t classes) {
  constexpr double kOne = 0.01;  // what sums of float16 and of rounded results may differ from 1 by
  if (classes < 2 || classes > kMostClasses || x.size() % classes != 0) are_rows_ = false;
  if (are_rows_ && chosen_.empty()) {
    chosen_.resize(classes);
    changed_.resize(classes);
  }
  if (!are_rows_ || chosen_.size() != classes) return;
  for (std::size_t row = 0; row < x.size() && are_rows_; row += classes) {
    const auto of_x = x.subspan(row, classes), of_y = y.subspan(row, classes);
    const double sum = std::accumulate(of_x.begin(), of_x.end(), 0.0);
    const auto best = std::max_element(of_x.begin(), of_x.end());
    are_rows_ = std::abs(sum - 1) <= kOne && *std::min_element(of_x.begin(), of_x.end()) >= 0;
    const auto chosen = static_cast<std::size_t>(best - of_x.begin());
    ++chosen_[chosen];
    if (std::max_element(of_y.begin(), of_y.end()) - of_y.begin() != best - of_x.begin()) ++changed_[chosen];
  }
}

void ChannelSums::add(const data::Array& in_float, const data::Array& quantized) {
  std::vector<float> own_x, own_y;
  const auto x = data::floats_in(in_float, own_x), y = data::floats_in(quantized, own_y);
  if (x.size() == y.size() && !in_float.shape.empty() && are_rows_)
    add_decisions(x, y, static_cast<std::size_t>(in_float.shape.back()));
  if (!counts_) return;
  if (!started_) start(in_float);
  if (axes_.empty()) return;
  if (!x.empty()) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    low_ = counted_ == 0 ? *low : std::min(low_, *low);
    high_ = counted_ == 0 ? *high : std::max(high_, *high);
    counted_ += x.size();
  }
  for (auto& [axis, channels] : axes_) {
    if (x.size() != y.size() || axis >= in_float.shape.size() ||
        static_cast<std::size_t>(in_float.shape[axis]) != channels.size()) {
      counts_ = false;
      return;
    }
    std::size_t inner = 1;
    for (std::size_t a = axis + 1; a < in_float.shape.size(); ++a) inner *= static_cast<std::size_t>(in_float.shape[a]);
    for (std::size_t i = 0; i < x.size(); ++i) {
      auto& channel = channels[i / inner % channels.size()];
      channel.low = std::min(channel.low, x[i]);
      channel.high = std::max(channel.high, x[i]);
      const double value = x[i], error = value - static_cast<double>(y[i]);
      channel.count += 1;
      channel.sum += value;
      channel.squares += value * value;
      channel.errors += error * error;
    }
  }
}

bool ChannelSums::is_lost(const Channel& channel, float largest) {
  return channel.low < channel.high && channel.errors * kLeastRatio > channel.variation() &&
         channel.largest() * kMuchLarger <= largest;
}

// The likeliest class of all, as the blank of a recognizer, says nothing: it is the others that are read.
std::string ChannelSums::other_classes() const {
  constexpr double kMuch = 0.02;
  constexpr std::uint64_t kFewRows = 50;
  if (!are_rows_ || chosen_.empty()) return {};
  const auto usual = std::max_element(chosen_.begin(), chosen_.end()) - chosen_.begin();
  const auto all = std::accumulate(chosen_.begin(), chosen_.end(), std::uint64_t{0});
  const auto changed = std::accumulate(changed_.begin(), changed_.end(), std::uint64_t{0});
  const auto read = all - chosen_[static_cast<std::size_t>(usual)] + changed_[static_cast<std::size_t>(usual)];
  if (all < kFewRows || read == 0 || static_cast<double>(changed) <= kMuch * static_cast<double>(read)) return {};
  return fmt::format("Output '{}': {:.1f} % of the {} rows whose class is not the usual one have another class.",
                     output_, 100 * static_cast<double>(changed) / static_cast<double>(read), read);
}

// Scores beside values of another size, as those of a detector beside its boxes: what is looked at goes by them.
std::string ChannelSums::far_scores() const {
  for (const auto& [axis, channels] : axes_) {
    double squares = 0, errors = 0;
    std::size_t count = 0;
    const bool has_others =
        std::any_of(channels.begin(), channels.end(), [](const auto& c) { return c.largest() > kMuchLarger; });
    for (const auto& c : channels) {
      if (!has_others || c.low < 0 || c.high > 1 || c.high <= c.low) continue;
      squares += c.squares;
      errors += c.errors;
      ++count;
    }
    if (count == 0 || count == channels.size() || !(squares > 0) || !(errors > 0)) continue;
    const double db = 10 * std::log10(squares / errors);
    if (db < kCloseDb)
      return fmt::format("Output '{}', axis {}: its scores ({}, from 0 to 1) have {:.1f} dB.", output_, axis,
                         count_with_noun(count, "channel"), db);
  }
  return {};
}

std::vector<std::string> ChannelSums::lost() const {
  std::vector<std::string> told;
  if (auto classes = other_classes(); !classes.empty()) told.push_back(std::move(classes));
  if (!counts_ || !may_be_lost_ || is_state_ || are_scores()) return told;
  if (auto scores = far_scores(); !scores.empty()) told.push_back(std::move(scores));
  for (const auto& [axis, channels] : axes_) {
    float largest = 0;
    for (const auto& c : channels) largest = std::max(largest, c.largest());
    std::size_t runs = 0;  // of neighbouring channels that are lost; the figures are those of the first
    std::string which;
    double share = 0;
    float reach = 0;
    for (std::size_t first = 0; first < channels.size(); ++first) {
      std::size_t end = first;
      float own = 0;
      double variation = 0, errors = 0;
      for (; end < channels.size() && is_lost(channels[end], largest); ++end) {
        own = std::max(own, channels[end].largest());
        variation += channels[end].variation();
        errors += channels[end].errors;
      }
      if (end == first) continue;
      ++runs;
      if (runs == 1) {
        which = end == first + 1 ? fmt::format("channel {}", first) : fmt::format("channels {} to {}", first, end - 1);
        share = std::sqrt(errors / variation);
        reach = own;
      }
      first = end;
    }
    if (runs == 0) continue;
    if (runs > 1) which += fmt::format(" and {} more", count_with_noun(runs - 1, "group"));
    told.push_back(fmt::format(
        "Output '{}', axis {}: {} lost, with errors of {:.0f} % of how they vary, since values that reach {:.3g} share "
        "a scale with values to {:.3g}: give --accuracy-fallback int16, leave the node that makes them in float "
        "(--exclude-nodes), or make them an output of their own.",
        output_, axis, which + (which.starts_with("channel ") && runs == 1 ? " is" : " are"), 100 * share, reach,
        largest));
    return told;
  }
  return told;
}

std::optional<ChannelGroup> ChannelSums::worst_of(const Axis& axis) const {
  const auto& channels = axis.channels;
  std::optional<ChannelGroup> worst;
  for (std::size_t first = 0, end = 0; first < channels.size(); first = end) {
    float least = channels[first].largest(), most = least;
    double squares = 0, errors = 0;
    for (; end < channels.size(); ++end) {
      const float own = channels[end].largest();
      if (std::max(most, own) > kMuchLarger * std::min(least, own)) break;
      least = std::min(least, own);
      most = std::max(most, own);
      squares += channels[end].squares;
      errors += channels[end].errors;
    }
    end = std::max(end, first + 1);  // values that are not finite are not of one size with themselves
    if (end - first == channels.size()) return std::nullopt;
    const double db = 10 * std::log10(squares / errors);
    if (squares > 0 && errors > 0 && (!worst || db < worst->sqnr_db)) worst = {output_, axis.axis, first, end - 1, db};
  }
  return worst;
}

std::optional<ChannelGroup> ChannelSums::worst() const {
  std::optional<ChannelGroup> worst;
  if (!counts_ || is_state_ || are_scores()) return worst;
  for (const auto& axis : axes_) {
    const auto found = worst_of(axis);
    if (found && (!worst || found->sqnr_db < worst->sqnr_db)) worst = found;
  }
  return worst;
}

std::string channel_group_text(const ChannelGroup& group) {
  const auto which = group.first == group.last ? fmt::format("channel {}", group.first)
                                               : fmt::format("channels {} to {}", group.first, group.last);
  return fmt::format("{} of '{}', axis {}", which, group.output, group.axis);
}

namespace {

constexpr std::size_t kNamed = 3;

std::string some_of(std::vector<std::string> names) {
  const bool more = names.size() > kNamed;
  if (more) names.resize(kNamed);
  return fmt::format("{}{}", fmt::join(names, ", "), more ? ", …" : "");
}

bool makes(const graph::Index& index, const onnx::Model& model, const std::string& value) {
  const int producer = index.producer(value);
  return producer != graph::kNone && model.graph.nodes[static_cast<std::size_t>(producer)].body() == 0;
}

// Puts the copies before the nodes that read them.
void insert_copies(onnx::Model& model, const std::vector<graph::Operand>& operands) {
  std::vector<onnx::Node> nodes, copies;
  for (const auto& operand : operands) copies.push_back(graph::copy_node(model, operand));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    auto& node = model.graph.nodes[static_cast<std::size_t>(operands[i].node)];
    node.set_input(operands[i].input, copies[i].outputs()[0]);
  }
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].node == static_cast<int>(n)) nodes.push_back(std::move(copies[i]));
    }
    nodes.push_back(std::move(model.graph.nodes[n]));
  }
  model.graph.nodes = std::move(nodes);
}

// The best of many come out in an order: rows that are as good as equal change places, and are no other rows for that.
std::vector<std::string> nodes_that_sort(const onnx::Model& model, const graph::Decisions& decisions) {
  std::vector<std::string> labels;
  for (const auto& node : model.graph.nodes) {
    if (!node.is("TopK") || node.body() != 0 || node.outputs().size() < 2) continue;
    if (std::find(decisions.held.begin(), decisions.held.end(), node.outputs()[1]) != decisions.held.end())
      labels.push_back(node.label());
  }
  return labels;
}

}  // namespace

std::vector<std::string> decision_notes(const onnx::Model& model, const graph::Decisions& decisions) {
  std::vector<std::string> notes;
  if (const auto choosing = nodes_that_sort(model, decisions); !choosing.empty() && decisions.sizing.empty())
    notes.push_back(fmt::format(
        "values decide which rows come out, and in which order ({}): for the comparison, both models take the float "
        "model's rows",
        some_of(choosing)));
  if (!decisions.sizing.empty())
    notes.push_back(
        fmt::format("sizes depend on values ({}): for the comparison, both models decide as the float model does{}",
                    some_of(decisions.sizing),
                    decisions.judged.empty() ? std::string()
                                             : "; the deciding values are compared too: " + some_of(decisions.judged)));
  if (!decisions.drawn.empty())
    notes.push_back(
        fmt::format("the model draws random numbers ({}): for the comparison, both models get those of the float model",
                    some_of(decisions.drawn)));
  return notes;
}

SharedDecisions::SharedDecisions(const exec::Runtime& runtime, onnx::Model& first, onnx::Model& second) {
  // Types take a session to find out.
  const auto any = [](const graph::Decisions& found) { return !found.empty() || !found.apart.empty(); };
  if (!any(graph::find_decisions(first, {}, graph::DecisionKind::all))) return;
  const auto types = exec::infer_value_types(runtime, first);
  auto sizes = graph::find_decisions(first, types, graph::DecisionKind::sizes);
  apart_ = std::move(sizes.apart);
  const auto decisions = graph::find_decisions(first, types, graph::DecisionKind::all);
  if (sizes.sizing.empty() && sizes.drawn.empty() && nodes_that_sort(first, decisions).empty()) return;
  const graph::Index index(second);
  for (const auto& value : decisions.held) {
    if (makes(index, second, value)) taps_.push_back(value);
  }
  for (const auto& value : decisions.judged) {
    if (makes(index, second, value)) judged_.push_back(value);
  }
  add_copies(decisions.operands, first, second);
  held_.resize(taps_.size());
  notes_ = decision_notes(first, decisions);
}

void SharedDecisions::add_copies(const std::vector<graph::Operand>& operands, onnx::Model& first, onnx::Model& second) {
  const graph::Index index(second);
  std::vector<graph::Operand> of_first, of_second;
  for (const auto& operand : operands) {
    const auto& node = first.graph.nodes[static_cast<std::size_t>(operand.node)];
    const int other = index.producer(node.outputs().at(0));
    if (other == graph::kNone) continue;
    const auto& twin = second.graph.nodes[static_cast<std::size_t>(other)];
    const bool same = twin.op_type() == node.op_type() && twin.body() == 0 && twin.inputs().size() > operand.input;
    if (!same || twin.inputs()[operand.input].empty()) continue;
    of_first.push_back(operand);
    of_second.push_back({other, operand.input});
    taps_.push_back(graph::operand_copy_name(first, operand));
  }
  insert_copies(first, of_first);
  insert_copies(second, of_second);
}

void SharedDecisions::record(std::size_t tap, const data::TensorView& tensor) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
  const std::lock_guard lock(mutex_);
  held_.at(tap) = {tensor.type, {tensor.shape.begin(), tensor.shape.end()}, *bytes, bytes};
}

void SharedDecisions::apply_recorded(std::size_t tap, const data::TensorView& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto held = data::as_floats(held_.at(tap), tensor.type);
  if (held.type == tensor.type && held.bytes.size() == tensor.passed_on.size())
    std::copy(held.bytes.begin(), held.bytes.end(), tensor.passed_on.begin());
}

std::vector<data::Array> SharedDecisions::recorded() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void SharedDecisions::recall(std::vector<data::Array> recorded) {
  const std::lock_guard lock(mutex_);
  held_ = std::move(recorded);
}

namespace {

constexpr std::string_view kMask = "attention_mask";
constexpr std::string_view kLogits = "logits";

std::vector<std::int64_t> integers(const data::Array& array) {
  const auto read = [&]<class T>(T) {
    std::vector<std::int64_t> values;
    values.reserve(array.bytes.size() / sizeof(T));
    for (std::size_t at = 0; at + sizeof(T) <= array.bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, array.bytes.data() + at, sizeof(T));
      values.push_back(static_cast<std::int64_t>(value));
    }
    return values;
  };
  if (array.type == onnx::DataType::int64) return read(std::int64_t{});
  if (array.type == onnx::DataType::int32) return read(std::int32_t{});
  throw bad_input("a decoder's token ids and mask must be int64 or int32");
}

// log(sum(exp(x))).
double log_sum(std::span<const float> x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

// The positions of each row that are text: all, or those that the last columns of the mask say.
std::vector<bool> text_positions(const data::Array& ids, const data::Array* mask) {
  const auto rows = static_cast<std::size_t>(ids.shape[0]), length = static_cast<std::size_t>(ids.shape[1]);
  std::vector<bool> text(rows * length, true);
  if (mask == nullptr || mask->shape.size() != 2 || mask->shape[1] < ids.shape[1]) return text;
  const auto marks = integers(*mask);
  const auto columns = static_cast<std::size_t>(mask->shape[1]);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t at = 0; at < length; ++at)
      text[row * length + at] = marks[row * columns + columns - length + at] != 0;
  }
  return text;
}

}  // namespace

std::optional<TokenPlaces> find_tokens(const std::vector<data::InputSpec>& inputs,
                                       const std::vector<std::string>& outputs) {
  const auto logits = std::find(outputs.begin(), outputs.end(), kLogits);
  if (!data::is_decoder(inputs) || logits == outputs.end()) return std::nullopt;
  const auto place = [&](std::string_view name) {
    return static_cast<std::size_t>(
        std::find_if(inputs.begin(), inputs.end(), [&](const auto& input) { return input.name == name; }) -
        inputs.begin());
  };
  TokenPlaces places{place(data::kTokenIds), std::nullopt, static_cast<std::size_t>(logits - outputs.begin())};
  if (place(kMask) < inputs.size()) places.mask = place(kMask);
  return places;
}

void NextTokenSums::add(const data::Array& ids, const data::Array* mask, const data::Array& float_logits,
                        const data::Array& quantized_logits) {
  const auto& shape = float_logits.shape;
  if (shape != quantized_logits.shape) throw bad_input("the models' logits differ in shape");
  if (ids.shape.size() != 2 || shape.size() != 3 || shape[0] != ids.shape[0] || shape[1] != ids.shape[1]) return;
  const auto rows = static_cast<std::size_t>(shape[0]), length = static_cast<std::size_t>(shape[1]);
  const auto vocabulary = static_cast<std::size_t>(shape[2]);
  const auto tokens = integers(ids);
  const auto text = text_positions(ids, mask);
  const auto x = data::to_floats(float_logits), y = data::to_floats(quantized_logits);
  for (std::size_t at = 0; at + 1 < rows * length; ++at) {
    if ((at + 1) % length == 0 || !text[at] || !text[at + 1]) continue;
    const auto next = static_cast<std::size_t>(tokens[at + 1]);
    if (next >= vocabulary) {
      throw bad_input(fmt::format("token {} is not in the vocabulary of {}", tokens[at + 1], vocabulary),
                      "use token ids of the model's own tokenizer");
    }
    add_position(std::span(x).subspan(at * vocabulary, vocabulary), std::span(y).subspan(at * vocabulary, vocabulary),
                 next);
  }
}

void NextTokenSums::add_position(std::span<const float> x, std::span<const float> y, std::size_t next) {
  const double x_sum = log_sum(x), y_sum = log_sum(y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double told = x[i] - x_sum, share = std::exp(told);
    if (share > 0) divergence_ += share * (told - (y[i] - y_sum));
  }
  float_loss_ += x_sum - x[next];
  quantized_loss_ += y_sum - y[next];
  agreeing_ += std::max_element(x.begin(), x.end()) - x.begin() == std::max_element(y.begin(), y.end()) - y.begin();
  ++positions_;
}

std::optional<NextTokens> NextTokenSums::result() const {
  if (positions_ == 0) return std::nullopt;
  const auto count = static_cast<double>(positions_);
  return NextTokens{positions_, std::exp(float_loss_ / count), std::exp(quantized_loss_ / count),
                    static_cast<double>(agreeing_) / count, divergence_ / count};
}

}  // namespace detent::run
