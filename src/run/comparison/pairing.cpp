#include "run/comparison/pairing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/numbers.h"
#include "graph/traits.h"
#include "quantization/formats.h"

namespace detent::run {
namespace {

// The part of a tensor that a shape of the same rank has too.
std::vector<float> part_of(const std::vector<float>& values, const std::vector<std::int64_t>& shape,
                           const std::vector<std::int64_t>& part) {
  std::vector<float> found;
  std::vector<std::int64_t> at(shape.size(), 0);
  for (const float value : values) {
    bool inside = true;
    for (std::size_t d = 0; d < shape.size(); ++d) inside = inside && at[d] < part[d];
    if (inside) found.push_back(value);
    for (std::size_t d = shape.size(); d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
  }
  return found;
}

DETENT_VECTOR_CLONES bool are_finite(std::span<const float> values) {
  unsigned others = 0;
  for (const float v : values) others |= std::isfinite(v) ? 0U : 1U;
  return others == 0;
}

}  // namespace

void PairSums::add(std::span<const float> x, std::span<const float> y) {
  const std::size_t count = std::min(x.size(), y.size());
  paired += count;
  unpaired += std::max(x.size(), y.size()) - count;
  const bool finite = are_finite(x) && are_finite(y);
  for (std::size_t i = 0; i < count; ++i) {
    const double a = x[i];
    const double b = y[i];
    if (!finite && (!std::isfinite(a) || !std::isfinite(b))) {
      const bool same = a == b || (std::isnan(a) && std::isnan(b));
      if (!same) noise = max_abs = std::numeric_limits<double>::infinity();
      if (std::isfinite(a)) signal += a * a;  // what is lost wholly has a signal as well
      continue;
    }
    signal += a * a;
    other += b * b;
    product += a * b;
    noise += (a - b) * (a - b);
    const double distance = std::abs(a - b);
    max_abs = distance > max_abs ? distance : max_abs;
  }
}

void PairSums::add(const data::Array& x, const data::Array& y) {
  if (x.shape != y.shape && x.shape.size() == y.shape.size()) {
    std::vector<std::int64_t> both = x.shape;
    for (std::size_t d = 0; d < both.size(); ++d) both[d] = std::min(both[d], y.shape[d]);
    const auto all_x = data::to_floats(x), all_y = data::to_floats(y);
    const auto of_x = part_of(all_x, x.shape, both), of_y = part_of(all_y, y.shape, both);
    add(std::span(of_x), std::span(of_y));
    unpaired += std::max(all_x.size(), all_y.size()) - of_x.size();
    return;
  }
  std::vector<float> own_x, own_y;
  add(data::floats_in(x, own_x), data::floats_in(y, own_y));
}

PairSums& PairSums::operator+=(const PairSums& more) {
  signal += more.signal;
  noise += more.noise;
  product += more.product;
  other += more.other;
  max_abs = std::max(max_abs, more.max_abs);
  paired += more.paired;
  unpaired += more.unpaired;
  return *this;
}

double PairSums::sqnr_db() const {
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(signal / noise);
}

double PairSums::cosine() const {
  if (signal == 0 && other == 0) return 1.0;
  const double length = std::sqrt(signal) * std::sqrt(other);
  return length == 0 ? 0.0 : product / length;
}

std::vector<bool> judged_outputs(const std::vector<onnx::DataType>& types, const std::vector<onnx::DataType>& others) {
  const bool by_floats = std::any_of(types.begin(), types.end(), data::holds_floats);
  const auto& counts = by_floats ? data::holds_floats : data::holds_numbers;
  std::vector<bool> judged;
  for (std::size_t i = 0; i < types.size(); ++i) judged.push_back(counts(types[i]) && counts(others[i]));
  return judged;
}

std::vector<onnx::DataType> types_of(const std::vector<data::Array>& arrays) {
  std::vector<onnx::DataType> types;
  for (const auto& array : arrays) types.push_back(array.type);
  return types;
}

void SampleSums::add(const data::Array& x, const data::Array& y) {
  PairSums one;
  one.add(x, y);
  all += one;
  if (one.has_ratio()) worst_db = std::min(worst_db.value_or(one.sqnr_db()), one.sqnr_db());
}

void Pairing::offer(std::size_t index, std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return taker_waits_ || taker_done_ || pending_.empty() || pending_bytes_ + bytes.size() <= limit_; });
  if (taker_failed_) throw internal_error("the other model's run failed");
  if (taker_done_) return;
  pending_[index].assign(bytes.begin(), bytes.end());
  pending_bytes_ += bytes.size();
  changed_.notify_all();
}

void Pairing::close(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

std::vector<std::byte> Pairing::take(std::size_t index) {
  std::unique_lock lock(mutex_);
  if (!pending_.contains(index)) {
    taker_waits_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return pending_.contains(index) || closed_; });
    taker_waits_ = false;
  }
  const auto found = pending_.find(index);
  if (found == pending_.end()) {
    if (error_) std::rethrow_exception(error_);
    throw internal_error("the float model never computed a value that both models have");
  }
  auto bytes = std::move(found->second);
  pending_bytes_ -= bytes.size();
  pending_.erase(found);
  changed_.notify_all();
  return bytes;
}

void Pairing::abandon(bool failed) {
  const std::lock_guard lock(mutex_);
  taker_done_ = true;
  taker_failed_ = failed;
  changed_.notify_all();
}

void Pairing::reset() {
  const std::lock_guard lock(mutex_);
  pending_.clear();
  pending_bytes_ = 0;
  taker_done_ = taker_failed_ = closed_ = false;
  error_ = nullptr;
}

namespace {

constexpr double kMask = 1e30;            // a finite stand-in for infinity
constexpr double kUnlike = 16;            // parts whose scales differ by 4 bits
constexpr double kMuchCut = 1e-3;         // of the values
constexpr double kFewLarge = 1e-3;        // of the values
constexpr std::size_t kFewChannels = 16;  // at most one in so many
constexpr double kInherited = 3;          // dB

// Of the model's metadata.
constexpr std::string_view kAppliedKey = "detent.applied";
constexpr std::string_view kEqualized = "channel ranges equalized";
constexpr std::string_view kTuned = "weights tuned";

// An initializer of one element.
const onnx::Tensor* scalar(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const int i = index.initializer(name);
  if (i == graph::kNone) return nullptr;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(i)];
  return tensor.count() == 1 ? &tensor : nullptr;
}

std::optional<quantization::IntRange> integers_of(onnx::DataType type) {
  for (const auto candidate : {QuantType::int8, QuantType::uint8, QuantType::int16, QuantType::uint16}) {
    if (quantization::data_type(candidate) == type) return quantization::full_range(candidate);
  }
  return std::nullopt;
}

// The parts of a Concat with the largest and the smallest magnitude.
std::optional<std::pair<double, double>> parts(const onnx::Node& node,
                                               const std::unordered_map<std::string, MeasuredValue>& values) {
  if (node.op_type() != "Concat") return std::nullopt;
  double largest = 0, smallest = std::numeric_limits<double>::infinity();
  for (const auto& input : node.inputs()) {
    const auto found = values.find(input);
    if (found == values.end()) return std::nullopt;
    largest = std::max(largest, found->second.traits->magnitude());
    smallest = std::min(smallest, found->second.traits->magnitude());
  }
  return std::pair(largest, smallest);
}

// What is wrong with the range of a quantized value.
Explanation of_range(const onnx::Node& node, const std::string& value, const ValueTraits& traits,
                     const std::unordered_map<std::string, MeasuredValue>& values, bool is_score) {
  const auto& [low, high] = *traits.range();
  const std::string leave = fmt::format("--preset balanced, or --exclude-nodes {}", node.id());
  if (std::max(-low, high) > kMask) return {fmt::format("a mask constant of {:.2g} sets the range", low), leave};
  const auto unlike = parts(node, values);
  if (unlike && unlike->first > kUnlike * unlike->second)
    return {fmt::format("shared scale: {:.3g} against {:.3g}", unlike->first, unlike->second), leave};
  if (traits.share_cut() > kMuchCut && !is_score) {
    return {fmt::format("{:.2g} % of the values lie beyond the range of {:.3g} to {:.3g}", 100 * traits.share_cut(),
                        low, high),
            fmt::format("--set tensor-method={}=minmax", value)};
  }
  if (traits.share_large() < kFewLarge) {
    return {fmt::format("the range is set by {:.0f} values in 10^6", std::ceil(1e6 * traits.share_large())),
            fmt::format("--set tensor-method={}=mse", value)};
  }
  if (traits.large_channels() * kFewChannels <= traits.channels()) {
    return {fmt::format("{} of {} channels hold the range", traits.large_channels(), traits.channels()),
            "--activation-type uint16, or --exclude-nodes with its consumers"};
  }
  return {};
}

}  // namespace

std::optional<std::pair<double, double>> stored_range(const onnx::Model& quantized, const graph::Index& index,
                                                      const std::string& value) {
  const int producer = index.producer(value);
  if (producer == graph::kNone) return std::nullopt;
  const auto& node = quantized.graph.nodes[static_cast<std::size_t>(producer)];
  if (!graph::is_dequantize_linear(node) || node.inputs().size() < 3) return std::nullopt;
  const auto* scale = scalar(quantized, index, node.inputs()[1]);
  const auto* zero = scalar(quantized, index, node.inputs()[2]);
  if (scale == nullptr || zero == nullptr || scale->type != onnx::DataType::float32) return std::nullopt;
  const auto bounds = integers_of(zero->type);
  if (!bounds) return std::nullopt;
  const double step = onnx::to_doubles(*scale).front();
  const auto middle = static_cast<double>(onnx::to_int64s(*zero).front());
  return std::pair((bounds->min - middle) * step, (bounds->max - middle) * step);
}

void ValueTraits::add(std::span<const float> values, std::span<const std::int64_t> shape) {
  const std::size_t axis = shape.size() >= 4 ? 1 : shape.empty() ? 0 : shape.size() - 1;
  const std::size_t channels = shape.empty() ? 1 : static_cast<std::size_t>(shape[axis]);
  if (channels_.size() != channels) channels_.assign(channels, 0);
  std::size_t run = 1;
  for (std::size_t d = axis + 1; d < shape.size(); ++d) run *= static_cast<std::size_t>(shape[d]);
  const double reach = range_ ? std::max(-range_->first, range_->second) : 0;
  const auto large = static_cast<float>(reach / kUnlike);
  // Rounding reaches half a step beyond the ends, so no value there counts as cut.
  const double slack = range_ ? (range_->second - range_->first) / 256 : 0;
  const auto low = static_cast<float>(range_ ? range_->first - slack : -HUGE_VAL);
  const auto high = static_cast<float>(range_ ? range_->second + slack : HUGE_VAL);
  for (std::size_t at = 0, c = 0; at < values.size(); at += run, c = (c + 1) % channels) {
    float most = channels_[c];
    for (const float v : values.subspan(at, std::min(run, values.size() - at))) {
      const float size = std::abs(v);
      most = std::max(most, size);
      large_ += size > large ? 1 : 0;
      cut_ += v < low || v > high ? 1 : 0;
      low_ = std::min<double>(low_, v);
      high_ = std::max<double>(high_, v);
    }
    channels_[c] = most;
  }
  count_ += values.size();
}

std::size_t ValueTraits::large_channels() const {
  return static_cast<std::size_t>(
      std::count_if(channels_.begin(), channels_.end(), [&](float most) { return most > magnitude() / 2; }));
}

Applied read_applied(const onnx::Model& quantized) {
  const auto text = quantized.metadata(kAppliedKey);
  return {text.find(kEqualized) != std::string::npos, text.find(kTuned) != std::string::npos};
}

void write_applied(const Applied& applied, onnx::Model& quantized) {
  std::vector<std::string_view> words;
  if (applied.equalized) words.push_back(kEqualized);
  if (applied.tuned) words.push_back(kTuned);
  if (!words.empty()) quantized.add_metadata(kAppliedKey, fmt::format("{}", fmt::join(words, ", ")));
}

Explanation explain(const onnx::Model& original, const graph::Index& index, const std::string& value,
                    const std::unordered_map<std::string, MeasuredValue>& values, const Applied& applied,
                    bool is_score) {
  const auto& judged = values.at(value);
  const int producer = index.producer(value);
  if (producer == graph::kNone || !std::isfinite(judged.sqnr_db)) return {};
  const auto& node = original.graph.nodes[static_cast<std::size_t>(producer)];
  if (judged.traits->range()) {
    auto found = of_range(node, value, *judged.traits, values, is_score);
    if (!found.reason.empty()) return found;
  }
  const std::string* worst = nullptr;
  double least = 0;
  for (const auto& input : node.inputs()) {
    const auto found = values.find(input);
    if (found == values.end() || (worst != nullptr && found->second.sqnr_db >= least)) continue;
    worst = &found->first;
    least = found->second.sqnr_db;
  }
  if (worst != nullptr && least < judged.sqnr_db + kInherited)
    return {fmt::format("inherited from '{}' ({:.1f} dB)", *worst, least), ""};
  if (!judged.traits->range()) return {};
  return {"rounding of the values and weights here",
          applied.tuned ? "--accuracy-target" : "--finetune gptq, or --accuracy-target"};
}

}  // namespace detent::run
