#include "run/comparison/outcome.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "run/comparison/latency.h"
#include "run/comparison/lost_channels.h"

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
    outcome.reasons.push_back(fmt::format("Accuracy was measured on {} only; {} or more say more of other inputs.",
                                          count_with_noun(a.samples, "sample"), kFewSamples));
  }
  const auto different = r.samples - std::min(r.samples, r.repeated_samples);
  if (a.samples >= kFewSamples && r.repeated_samples > 0 && different < kFewSamples) {
    lower(outcome.answer, Answer::look);
    outcome.reasons.push_back(
        fmt::format("{} of the {} samples repeat{} others: {} or more different ones say more of other inputs.",
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

std::string latency_text(const QuantizeResult& r, Outcome& outcome) {
  if (!r.latency) return {};
  const auto& after = r.latency->after;
  if (r.latency->before.is_doubtful() || after.is_doubtful()) return {};  // a busy machine tells nothing of speed
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
    return {
        .answer = Answer::look,
        .headline = "Nothing was quantized.",
        .reasons = {"What was asked for takes all weights in float: a lower --accuracy-target or --max-size makes the "
                    "model smaller."}};
  return {.answer = Answer::look,
          .headline = "Nothing was quantized.",
          .reasons = {faster.empty() ? "No selected operator can be: the notes say why, --op-types and --weights-only "
                                       "select others."
                                     : "This machine runs all products faster in float: --optimize-for size makes the "
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

}  // namespace detent::run
