#include "run/comparison/lost_channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/bytes.h"
#include "data/floats.h"
#include "graph/traits.h"
#include "run/comparison/outcome.h"

namespace detent::run {
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

// An output of the name and shape of an input, but for an ending: a recurrent model's state, which it reads again.
bool is_state(const onnx::Model& model, const std::string& output) {
  const auto info = std::find_if(model.graph.outputs.begin(), model.graph.outputs.end(),
                                 [&](const auto& o) { return o.name == output; });
  if (info == model.graph.outputs.end()) return false;
  return std::any_of(model.graph.inputs.begin(), model.graph.inputs.end(), [&](const auto& input) {
    const bool is_named_so = output.starts_with(input.name) || output.ends_with(input.name);
    return is_named_so && input.type == info->type && input.shape && info->shape &&
           input.shape->size() == info->shape->size();
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
      return fmt::format("Output '{}', axis {}: the scores among it ({}, of 0 to 1) have {:.1f} dB.", output_, axis,
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

}  // namespace detent::run
