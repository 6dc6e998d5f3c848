#include "run/comparison/lost_channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "data/floats.h"
#include "graph/traits.h"

namespace detent::run {
namespace {

constexpr std::size_t kMostChannels = 4096;
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

}  // namespace

ChannelSums::ChannelSums(const onnx::Model& model, const graph::Index& index, std::string output)
    : output_(std::move(output)), counts_(!are_probabilities(model, index, output_)) {}

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

void ChannelSums::add(const data::Array& in_float, const data::Array& quantized) {
  if (!counts_) return;
  if (!started_) start(in_float);
  if (axes_.empty()) return;
  std::vector<float> own_x, own_y;
  const auto x = data::floats_in(in_float, own_x), y = data::floats_in(quantized, own_y);
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

std::vector<std::string> ChannelSums::lost() const {
  std::vector<std::string> told;
  if (!counts_ || !may_be_lost_) return told;
  for (const auto& [axis, channels] : axes_) {
    float largest = 0;
    for (const auto& c : channels) largest = std::max(largest, c.largest());
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
      const auto which =
          end == first + 1 ? fmt::format("channel {} is", first) : fmt::format("channels {} to {} are", first, end - 1);
      told.push_back(fmt::format(
          "Output '{}', axis {}: {} lost, with errors of {:.0f} % of how they vary, since their values, which "
          "reach {:.3g}, share a scale with values to {:.3g}: give --accuracy-fallback int16, leave the node that "
          "makes them in float "
          "(--exclude-nodes), or make them an output of their own.",
          output_, axis, which, 100 * std::sqrt(errors / variation), own, largest));
      first = end;
    }
    if (!told.empty()) return told;
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
  if (!counts_) return worst;
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
