// Channel equalization (SmoothQuant): for values whose channels differ so much that one scale does not serve them.
// Each candidate is run with its value and the weights that read it rounded: as they are, with the best of the ranges,
// and with channel ranges equalized. The model is rewritten where that takes away half of an error that matters.
#include "remedies/equalization.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "calibration/methods.h"
#include "graph/traits.h"
#include "quantization/assignment.h"
#include "remedies/remedies.h"

namespace detent::remedies {
namespace {

using graph::ChannelScaling;

constexpr std::size_t kMostSamples = 4;
constexpr std::size_t kSamplesForEach = 16;  // of them one, where each is tried
// Of them one, where all together are judged: not those that each was judged on.
constexpr std::size_t kJudgingEvery = 8;
// Trials for each sample that looking for harmful values may take, and the same for what can be done about them.
constexpr double kLookingPerSample = 1;
constexpr double kTryingPerSample = 2;
constexpr std::ptrdiff_t kLeastTrials = 32;
constexpr std::size_t kMostOfChannels = 64;  // samples whose channels are looked at, and for which trials are counted
constexpr double kUneven = 2;                // below, there is nothing to gain
constexpr double kWorthDoing = 0.01;         // share of the error of all candidates
constexpr double kImprovement = 0.5;

struct Candidate {
  ChannelScaling scaling;
  ChannelExtremes extremes;
  calibration::Range range;  // as it is
  calibration::Range scaled_range;
  double unevenness = 1;
  double error = 0;              // as it is
  std::vector<Roundings> plain;  // by each of the ranges that says something new, its own first
  Roundings scaled;
  const Roundings* best_plain = nullptr;

  bool is_between_products() const { return scaling.maker && !scaling.readers.empty(); }
  /// Nothing but its own rounding gets better: other ranges have nothing to say.
  bool keeps_range() const { return scaling.readers.empty(); }
};

const onnx::Tensor& weight_of(const onnx::Model& model, const graph::Index& index,
                              const ChannelScaling::Reader& reader) {
  return model.graph.initializers[static_cast<std::size_t>(index.initializer(reader.weight))];
}

quantization::ValueAssignment weight_rounding(const onnx::Tensor& weight, const quantization::Mark& mark,
                                              const QuantConfig& config) {
  auto assigned = quantization::assign_constant(mark, quantization::scan_constant(weight, mark), config);
  quantization::search_power_of_two(weight, mark, config, assigned);
  return assigned;
}

// The value is rounded as `of_value` says once its channels are divided.
Roundings scaled_roundings(const onnx::Model& model, const graph::Index& index,
                           const quantization::Placement& placement, const ChannelScaling& scaling,
                           const quantization::ValueAssignment& of_value, const QuantConfig& config) {
  Roundings roundings;
  auto& value = roundings[scaling.value];
  value = {of_value, {}, scaling.last_axis ? -1 : 1};
  for (const float f : scaling.factors) value.factors.push_back(1 / f);
  for (const auto& reader : scaling.readers) {
    const auto* mark = placement.find(reader.weight);
    if (mark == nullptr) continue;  // its weights stay in float
    const auto& weight = weight_of(model, index, reader);
    const auto scaled = graph::scaled_along(weight, reader.axis, scaling.factors);
    const auto tensor = onnx::make_tensor<float>(weight.name, weight.type, weight.dims, std::span(scaled));
    roundings[reader.weight] = {weight_rounding(tensor, *mark, config), scaling.factors,
                                static_cast<std::ptrdiff_t>(reader.axis)};
  }
  return roundings;
}

class Equalization : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    draft_ = &draft;
    evaluator_ = &evaluator;
    samples_ = evaluator.samples();
    index_.emplace(draft.prepared.model);
    for (auto& scaling : equalizable(draft.prepared.model, *index_, draft.assignment.placement)) {
      const auto range = draft.proposals.ranges.find(scaling.value);
      if (!values().contains(scaling.value) || range == draft.proposals.ranges.end()) continue;
      Candidate candidate;
      candidate.scaling = std::move(scaling);
      candidate.range = range->second.range;
      candidates_.push_back(std::move(candidate));
    }
    if (candidates_.empty()) return false;
    collect_extremes();
    keep_uneven();
    keep_harmful();
    keep_improved();
    return !candidates_.empty();
  }

  bool is_better(const Draft&, Evaluator&) override {
    std::vector<Trial> trials(2);
    for (const auto& candidate : candidates_) {
      trials[0].merge(trial_of(*candidate.best_plain));
      trials[1].merge(trial_of(candidate.scaled));
    }
    const auto count = std::clamp<std::size_t>(samples_ / kJudgingEvery, 1, kMostSamples);
    const auto results = evaluator_->run(*draft_, rounded_by(trials), trials, {count, samples_ - count});
    const auto before = errors_of(results[0]), after = errors_of(results[1]);
    return mean_error_ratio(before, after) < kImprovement && worst_of(after) <= worst_of(before);
  }

  // Rewrites the model. A value that is read with its channels scaled has a name of its own there.
  void keep(Draft& draft, Evaluator& evaluator) override {
    std::vector<ChannelScaling> scalings;
    for (auto& candidate : candidates_) scalings.push_back(std::move(candidate.scaling));
    const auto names = graph::scale_channels(draft.prepared.model, draft.prepared.types, scalings,
                                             run::file_store(evaluator.env().weights, "equalized"));
    auto& ranges = draft.proposals.ranges;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool is_kept = scalings[i].readers.empty();
      const auto own = ranges.find(draft.result.equalized.emplace_back(std::move(done_[i])).value);
      std::string origin(calibration::method_name(CalibrationMethod::minmax));
      if (is_kept && own != ranges.end()) origin = own->second.origin;
      ranges[names[i]] = {candidates_[i].scaled_range, std::move(origin)};
    }
    auto placement = run::place_qdq_pairs(draft.prepared, evaluator.options().config);
    draft.proposals.constants =
        quantization::scan_weights(draft.prepared.model, placement, evaluator.options().allow_nonfinite);
    draft.assign(std::move(placement), evaluator.options().config);
    draft.sensitivities.reset();
    evaluator.model_changed();
  }

 private:
  void collect_extremes() {
    std::map<std::string, Candidate*> by_value;
    quantization::AssignedValues tapped;
    for (auto& candidate : candidates_) {
      const auto& value = candidate.scaling.value;
      by_value[value] = &candidate;
      tapped[value] = values().at(value);
    }
    const auto add = [&](const std::string& mark, const data::TensorView& tensor) {
      auto& candidate = *by_value.at(mark);
      candidate.extremes.add({reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)},
                             tensor.shape, candidate.scaling.last_axis);
    };
    evaluator_->run(*draft_, tapped, {}, {std::min(samples_, kMostOfChannels)}, add);
  }

  // Those with the most uneven channels, as many as the inferences allow; first those that no product makes for
  // another, whose weights have less to give.
  void keep_uneven() {
    std::erase_if(candidates_, [](const auto& c) { return c.extremes.channels() == 0; });
    for (auto& candidate : candidates_) {
      candidate.scaling.factors =
          equalizing_factors(model(), *index_, candidate.scaling, candidate.extremes, candidate.range);
      candidate.unevenness =
          candidate.keeps_range() ? 1 / root_mean_square(candidate.scaling.factors) : candidate.extremes.unevenness();
    }
    std::erase_if(candidates_, [](const auto& c) { return c.unevenness < kUneven; });
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.is_between_products(), -a.unevenness) < std::pair(b.is_between_products(), -b.unevenness);
    });
    const auto most = allowed(kLookingPerSample);
    if (std::ssize(candidates_) > most) candidates_.erase(candidates_.begin() + most, candidates_.end());
    for (auto& candidate : candidates_) add_plain(candidate, values());
  }

  std::ptrdiff_t allowed(double per_sample) const {
    const auto samples = static_cast<double>(std::min(samples_, kMostOfChannels));
    return std::max(static_cast<std::ptrdiff_t>(per_sample * samples), kLeastTrials);
  }

  static double root_mean_square(const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * v;
    return std::sqrt(sum / static_cast<double>(values.size()));
  }

  // Ranges that give the same integers as one before are no news.
  void add_plain(Candidate& candidate, const quantization::AssignedValues& assigned) {
    const auto found = assigned.find(candidate.scaling.value);
    if (found == assigned.end()) return;
    const auto& channel = found->second.slices.front();
    for (const auto& other : candidate.plain) {
      const auto& earlier = other.at(candidate.scaling.value).params.slices.front();
      if (earlier.scale == channel.scale && earlier.zero_point == channel.zero_point) return;
    }
    auto& roundings = candidate.plain.emplace_back();
    roundings[candidate.scaling.value] = {found->second};
    for (const auto& reader : candidate.scaling.readers) {
      if (assigned.contains(reader.weight)) roundings[reader.weight] = {assigned.at(reader.weight)};
    }
  }

  void make_scaled(Candidate& candidate) {
    const auto& scaling = candidate.scaling;
    candidate.scaled_range = scaled_range(scaling, candidate.extremes, candidate.range);
    const auto& placement = draft_->assignment.placement;
    const auto& config = evaluator_->options().config;
    const auto assigned =
        quantization::assign_activation(*placement.find(scaling.value), {candidate.scaled_range, {}}, config);
    candidate.scaled = scaled_roundings(model(), *index_, placement, scaling, assigned, config);
  }

  // Keeps those whose error at the model's results is worth something, the worst first, as many as the inferences
  // allow.
  void keep_harmful() {
    if (candidates_.empty()) return;
    std::vector<Trial> trials;
    for (const auto& candidate : candidates_) trials.push_back(trial_of(candidate.plain.front()));
    const auto results = run_near(trials);
    double all = 0;
    for (std::size_t i = 0; i < results.size(); ++i) all += candidates_[i].error = worst_error_of(results[i]);
    std::erase_if(candidates_, [&](const auto& c) { return c.error < std::max(kNegligibleError, kWorthDoing * all); });
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const auto& a, const auto& b) { return a.error > b.error; });
    std::ptrdiff_t runs = 0;
    const auto most = allowed(kTryingPerSample);
    const auto is_too_much = [&](const auto& candidate) {
      runs += candidate.keeps_range() ? 1 : 1 + std::ssize(draft_->proposals.others);
      return runs > most;
    };
    candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_too_much), candidates_.end());
    for (const auto& [method, ranges] : draft_->proposals.others) {
      const auto other = assigned_by(ranges);
      for (auto& candidate : candidates_) {
        if (!candidate.keeps_range()) add_plain(candidate, other);
      }
    }
    for (auto& candidate : candidates_) make_scaled(candidate);
  }

  // Keeps those whose error falls far enough below that with the best of the ranges.
  void keep_improved() {
    if (candidates_.empty()) return;
    std::vector<Trial> trials;
    for (const auto& candidate : candidates_) {
      for (const auto& plain : candidate.plain) trials.push_back(trial_of(plain));
      trials.push_back(trial_of(candidate.scaled));
    }
    const auto results = run_near(trials);
    std::vector<Candidate> kept;
    std::size_t at = 0;
    for (auto& candidate : candidates_) {
      const auto first = results.begin() + static_cast<std::ptrdiff_t>(at);
      const auto scaled = first + std::ssize(candidate.plain);
      const auto best = std::min_element(
          first, scaled, [](const auto& a, const auto& b) { return mean_error_ratio(errors_of(b), errors_of(a)) < 1; });
      at += candidate.plain.size() + 1;
      if (mean_error_ratio(errors_of(*best), errors_of(*scaled)) > kImprovement) continue;
      candidate.best_plain = &candidate.plain[static_cast<std::size_t>(best - first)];
      done_.push_back({candidate.scaling.value, worst_error_of(*best), worst_error_of(*scaled)});
      kept.push_back(std::move(candidate));
    }
    candidates_ = std::move(kept);
  }

  quantization::AssignedValues assigned_by(const quantization::ActivationRanges& ranges) const {
    const quantization::Proposals other{ranges, {}, {}, draft_->proposals.constants};
    return quantization::assign(model(), draft_->assignment.placement, other, evaluator_->options().config).values;
  }

  static quantization::AssignedValues rounded_by(const std::vector<Trial>& trials) {
    quantization::AssignedValues tapped;
    for (const auto& trial : trials) {
      for (const auto& [mark, rounding] : trial) tapped.try_emplace(mark, rounding->params);
    }
    return tapped;
  }

  std::vector<TrialResult> run_near(const std::vector<Trial>& trials) {
    const auto count = std::clamp<std::size_t>(samples_ / kSamplesForEach, 1, kMostSamples);
    return evaluator_->run_near(*draft_, rounded_by(trials), trials, {count});
  }

  const onnx::Model& model() const { return draft_->prepared.model; }
  const quantization::AssignedValues& values() const { return draft_->assignment.values; }

  const Draft* draft_ = nullptr;
  Evaluator* evaluator_ = nullptr;
  std::size_t samples_ = 1;  // that may be read, at the beginning of the source
  std::optional<graph::Index> index_;
  std::vector<Candidate> candidates_;
  std::vector<EqualizedValue> done_;  // for each of them
};

// Measured on sentence encoders, where 0.7 to 0.8 lose least; the paper's range is 0.5 to 0.75.
constexpr float kMigration = 0.75F;
// Channels and weights below this share of the largest count as that share: they could be larger in other samples.
constexpr float kFloor = 1.0F / 256;
// Where no weights set a limit: 4 bits more for a channel. The errors of others are larger then.
constexpr float kLeastShare = 1.0F / 16;
// What is left to be cut of values that further samples may bring: a little is better cut than made room for.
constexpr float kCut = 1.3F;
constexpr float kMostHeadroom = 4;

bool is_private_constant(const onnx::Model& model, const graph::Index& index, const std::string& name) {
  const int i = index.initializer(name);
  return i != graph::kNone && index.consumers(name).size() == 1 && !index.is_output(name) && !index.is_captured(name) &&
         model.graph.initializers[static_cast<std::size_t>(i)].type == onnx::DataType::float32;
}

std::optional<ChannelScaling::Reader> reader_of(const onnx::Model& model, const graph::Index& index, int position,
                                                const std::string& value) {
  const auto& node = model.graph.nodes[static_cast<std::size_t>(position)];
  const auto& inputs = node.inputs();
  if (!graph::is_product(node) || node.is("ConvTranspose") || std::count(inputs.begin(), inputs.end(), value) != 1 ||
      inputs[0] != value) {
    return std::nullopt;
  }
  if (!is_private_constant(model, index, inputs[1])) return std::nullopt;
  const auto& tensor = model.graph.initializers[static_cast<std::size_t>(index.initializer(inputs[1]))];
  if (tensor.count() == 0) return std::nullopt;
  if (node.is("Conv")) {
    const auto groups = node.int_or("group", 1);
    const bool depthwise = groups > 1 && tensor.dims[1] == 1 && tensor.dims[0] == groups;
    if (tensor.dims.size() < 3 || (groups != 1 && !depthwise)) return std::nullopt;
    return ChannelScaling::Reader{position, inputs[1], depthwise ? 0U : 1U};
  }
  if (tensor.dims.size() != 2 || node.int_or("transA", 0) != 0) return std::nullopt;
  return ChannelScaling::Reader{position, inputs[1], node.int_or("transB", 0) != 0 ? 1U : 0U};
}

// The quantized convolution that a value comes from. Its weights have a scale for each output, so that dividing these
// by factors changes none of their integers.
std::optional<ChannelScaling::Maker> maker_of(const onnx::Model& model, const graph::Index& index,
                                              const quantization::Placement& placement, const std::string& value) {
  int position = index.producer(value);
  if (position == graph::kNone) return std::nullopt;
  const auto* node = &model.graph.nodes[static_cast<std::size_t>(position)];
  if (node->is("Relu")) {
    const auto& before = node->inputs()[0];
    position = index.producer(before);
    if (position == graph::kNone || index.consumers(before).size() != 1 || index.is_output(before) ||
        index.is_captured(before) || placement.find(before) != nullptr)
      return std::nullopt;
    node = &model.graph.nodes[static_cast<std::size_t>(position)];
  }
  const auto& inputs = node->inputs();
  if (!node->is("Conv") || !placement.selected[static_cast<std::size_t>(position)]) return std::nullopt;
  const bool has_bias = inputs.size() > 2 && !inputs[2].empty();
  if (!is_private_constant(model, index, inputs[1]) || (has_bias && !is_private_constant(model, index, inputs[2])))
    return std::nullopt;
  const auto* mark = placement.find(inputs[1]);
  if (mark == nullptr || mark->granularity != quantization::Granularity::along(0)) return std::nullopt;
  return ChannelScaling::Maker{inputs[1], has_bias ? inputs[2] : ""};
}

// The scaling of a value, or nothing when a quantized node needs it as it is.
std::optional<ChannelScaling> scaling_of(const onnx::Model& model, const graph::Index& index,
                                         const quantization::Placement& placement, const quantization::Mark& mark) {
  ChannelScaling scaling{mark.value, true, {}, {}, {}};
  std::int64_t channels = -1;
  if (!mark.float_readers_unrounded) {
    scaling.maker = maker_of(model, index, placement, mark.value);
    if (!scaling.maker) return std::nullopt;
    const int weight = index.initializer(scaling.maker->weight);
    channels = model.graph.initializers[static_cast<std::size_t>(weight)].dims[0];
    scaling.last_axis = false;
  }
  for (const int position : index.consumers(mark.value)) {
    if (!placement.selected[static_cast<std::size_t>(position)]) continue;
    auto reader = reader_of(model, index, position, mark.value);
    if (!reader) return std::nullopt;
    const auto& weight = model.graph.initializers[static_cast<std::size_t>(index.initializer(reader->weight))];
    const bool last_axis = !model.graph.nodes[static_cast<std::size_t>(position)].is("Conv");
    const std::int64_t wanted = weight.dims[reader->axis];
    if (channels >= 0 && (wanted != channels || last_axis != scaling.last_axis)) return std::nullopt;
    channels = wanted;
    scaling.last_axis = last_axis;
    scaling.readers.push_back(std::move(*reader));
  }
  if ((scaling.readers.empty() && !scaling.maker) || channels < 2) return std::nullopt;
  return scaling;
}

std::vector<float> raised_to_floor(std::vector<float> values) {
  const float least = *std::max_element(values.begin(), values.end()) * kFloor;
  for (float& value : values) value = std::max({value, least, std::numeric_limits<float>::min()});
  return values;
}

std::vector<float> weight_magnitudes(const onnx::Model& model, const graph::Index& index,
                                     const ChannelScaling& scaling) {
  std::vector<float> largest;
  for (const auto& reader : scaling.readers) {
    const auto extremes =
        quantization::weight_extremes(weight_of(model, index, reader), quantization::Granularity::along(reader.axis));
    largest.resize(extremes.size());
    for (std::size_t c = 0; c < extremes.size(); ++c) {
      largest[c] = std::max({largest[c], std::abs(extremes[c].lowest()), std::abs(extremes[c].highest())});
    }
  }
  return largest;
}

// Each bound by the value in its place.
DETENT_VECTOR_CLONES void widen_each(const float* values, std::size_t count, float* low, float* high) {
  for (std::size_t i = 0; i < count; ++i) {
    low[i] = values[i] < low[i] ? values[i] : low[i];
    high[i] = values[i] > high[i] ? values[i] : high[i];
  }
}

}  // namespace

std::unique_ptr<Remedy> equalization() { return std::make_unique<Equalization>(); }

void ChannelExtremes::add(std::span<const float> values, std::span<const std::int64_t> shape, bool last_axis) {
  if (shape.empty() || (!last_axis && shape.size() < 2)) throw bad_input("a value without channels");
  const auto count = static_cast<std::size_t>(last_axis ? shape.back() : shape[1]);
  if (samples_ == 0) halves_.fill({std::vector<float>(count), std::vector<float>(count)});
  if (count != channels()) throw bad_input(fmt::format("a value of {} channels has {} now", channels(), count));
  auto& [low, high] = halves_[samples_++ % 2];
  std::size_t run = 1;
  for (std::size_t d = 2; !last_axis && d < shape.size(); ++d) run *= static_cast<std::size_t>(shape[d]);
  if (count == 0 || run == 0) return;
  if (run == 1) {
    for (std::size_t at = 0; at < values.size(); at += count)
      widen_each(values.data() + at, count, low.data(), high.data());
    return;
  }
  for (std::size_t at = 0, c = 0; at < values.size(); at += run, c = (c + 1) % count) {
    const auto bounds = widened({low[c], high[c]}, values.subspan(at, run));
    low[c] = bounds.min;
    high[c] = bounds.max;
  }
}

double ChannelExtremes::unevenness() const {
  double sum = 0, largest = 0;
  for (std::size_t c = 0; c < channels(); ++c) {
    sum += magnitude(c);
    largest = std::max<double>(largest, magnitude(c));
  }
  return sum > 0 ? largest * static_cast<double>(channels()) / sum : 1;
}

float ChannelExtremes::headroom() const {
  if (samples_ < 2) return kMostHeadroom;
  double growth = 0;
  std::size_t counted = 0;
  for (const auto& [low, high] : halves_) {
    for (std::size_t c = 0; c < channels(); ++c) {
      const double half = std::max(high[c], -low[c]), all = magnitude(c);
      if (all == 0) continue;
      growth += half > 0 ? std::min<double>(std::log(all / half), std::log(kMostHeadroom)) : std::log(kMostHeadroom);
      ++counted;
    }
  }
  if (counted == 0) return 1;
  const auto reach = static_cast<float>(std::exp(2 * growth / static_cast<double>(counted)));
  return std::clamp(reach / kCut, 1.0F, kMostHeadroom);
}

std::vector<ChannelScaling> equalizable(const onnx::Model& model, const graph::Index& index,
                                        const quantization::Placement& placement) {
  std::vector<ChannelScaling> found;
  for (const auto& mark : placement.marks) {
    if (mark.is_constant || mark.shares || placement.fixed_ranges.contains(mark.value)) continue;
    const bool is_shared = std::any_of(placement.marks.begin(), placement.marks.end(),
                                       [&](const auto& other) { return other.shares == mark.value; });
    if (is_shared) continue;
    if (auto scaling = scaling_of(model, index, placement, mark)) found.push_back(std::move(*scaling));
  }
  return found;
}

std::vector<float> equalizing_factors(const onnx::Model& model, const graph::Index& index,
                                      const ChannelScaling& scaling, const ChannelExtremes& extremes,
                                      const calibration::Range& range) {
  std::vector<float> factors(extremes.channels());
  if (scaling.readers.empty()) {
    const float headroom = extremes.headroom();
    for (std::size_t c = 0; c < factors.size(); ++c) {
      const float below = range.min < 0 ? extremes.low(c) / range.min : 0;
      const float above = range.max > 0 ? extremes.high(c) / range.max : 0;
      factors[c] = std::clamp(headroom * std::max(below, above), kLeastShare, 1.0F);
    }
    return factors;
  }
  std::vector<float> magnitudes(factors.size());
  for (std::size_t c = 0; c < magnitudes.size(); ++c) magnitudes[c] = extremes.magnitude(c);
  magnitudes = raised_to_floor(std::move(magnitudes));
  const auto weights = raised_to_floor(weight_magnitudes(model, index, scaling));
  std::vector<double> logs(magnitudes.size());
  double mean = 0;
  for (std::size_t c = 0; c < logs.size(); ++c) {
    logs[c] = kMigration * std::log(magnitudes[c]) - (1 - kMigration) * std::log(weights.at(c));
    mean += logs[c] / static_cast<double>(logs.size());
  }
  for (std::size_t c = 0; c < logs.size(); ++c) factors[c] = static_cast<float>(std::exp(logs[c] - mean));
  return factors;
}

calibration::Range scaled_range(const ChannelScaling& scaling, const ChannelExtremes& extremes,
                                const calibration::Range& range) {
  if (scaling.readers.empty()) return range;
  const float headroom = extremes.headroom();
  calibration::Range scaled{0, 0};
  for (std::size_t c = 0; c < extremes.channels(); ++c) {
    scaled.min = std::min(scaled.min, headroom * extremes.low(c) / scaling.factors.at(c));
    scaled.max = std::max(scaled.max, headroom * extremes.high(c) / scaling.factors[c]);
  }
  return scaled;
}

}  // namespace detent::remedies
