#include "calibration/observers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "calibration/methods.h"

namespace detent::calibration {
namespace {

// Smaller tensors are not worth waking threads for.
constexpr std::size_t kPartAtLeast = std::size_t{32} << 10;

std::span<const float> floats(const data::TensorView& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)};
}

}  // namespace

Observers::Observers(std::vector<Observed> values, const ObserverOptions& options)
    : values_(std::move(values)),
      options_(options),
      summaries_(values_.size()),
      parts_(std::max<std::size_t>(options.threads, 1)) {}

void Observers::reduce(std::span<const float> values, Part& part) const {
  part.extremes = scan(values);
  part.nan_count = part.inf_count = 0;
  if (part.extremes.finite()) {
    if (options_.histogram) part.scratch.count(values);
    return;
  }
  std::vector<float> finite;
  finite.reserve(values.size());
  for (const float v : values) {
    if (std::isnan(v)) {
      ++part.nan_count;
    } else if (std::isinf(v)) {
      ++part.inf_count;
    } else {
      finite.push_back(v);
    }
  }
  part.extremes = scan(finite);
  if (options_.histogram) part.scratch.count(finite);
}

void Observers::receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) {
  if (tensor.type != onnx::DataType::float32)
    throw internal_error("an observer was given a tensor that is not float32");
  const auto values = floats(tensor);
  const std::size_t count = std::clamp<std::size_t>(values.size() / kPartAtLeast, 1, parts_.size());
  const std::span<Part> parts(parts_.data(), count);
  if (count == 1) {
    reduce(values, parts[0]);
  } else {
    const std::size_t length = (values.size() + count - 1) / count;
    parallel(count, [&](std::size_t p) {
      const std::size_t begin = std::min(p * length, values.size());
      reduce(values.subspan(begin, std::min(length, values.size() - begin)), parts[p]);
    });
  }
  KeyRange extremes;
  std::uint64_t nan_count = 0, inf_count = 0;
  for (const auto& part : parts) {
    extremes.merge(part.extremes);
    nan_count += part.nan_count;
    inf_count += part.inf_count;
  }
  Summary run = run_summary(values.size(), extremes, nan_count, inf_count);
  check_finite(run, values_[tap], sample_, options_);
  Summary& summary = summaries_.at(tap);
  // Votes need the histogram of this run alone.
  Histogram& histogram = options_.votes ? run.histogram : summary.histogram;
  for (auto& part : parts) part.scratch.drain(histogram);
  if (options_.votes) count_best_scales(run);
  summary.merge(run);
}

Statistics Observers::statistics() {
  Statistics statistics;
  for (std::size_t i = 0; i < values_.size(); ++i) statistics.tensors[values_[i].value] = summaries_[i];
  return statistics;
}

Summary run_summary(std::uint64_t count, const KeyRange& extremes, std::uint64_t nan_count, std::uint64_t inf_count) {
  Summary run;
  run.count = count;
  run.extremes = extremes;
  run.nan_count = nan_count;
  run.inf_count = inf_count;
  if (!run.has_values()) return run;
  run.runs = 1;
  run.sum_of_minima.add(run.extremes.lowest());
  run.sum_of_maxima.add(run.extremes.highest());
  return run;
}

void check_finite(const Summary& run, const Observed& observed, const std::string& sample,
                  const ObserverOptions& options) {
  if (options.allow_nonfinite || run.nan_count + run.inf_count == 0) return;
  throw bad_input(fmt::format("tensor '{}' ({}) holds {} NaN and {} infinite values for sample '{}'", observed.value,
                              observed.made_by, run.nan_count, run.inf_count, sample),
                  "correct the sample or the model, or leave such values out with --set allow-nonfinite");
}

void count_best_scales(Summary& run) {
  if (!run.has_values() || run.all_zero()) return;
  run.votes_8_bit[best_power_of_two(run, 8)] = 1;
  run.votes_16_bit[best_power_of_two(run, 16)] = 1;
}

namespace {

constexpr int kLowestExponent = -16;  // of the bins
constexpr unsigned kMantissaBits = 23, kBinMantissaBits = 3;

// The largest number that a scale is multiplied by.
double most_of(KvCacheType type) {
  switch (type) {
    case KvCacheType::int8: return 127;
    case KvCacheType::int4: return 7;
    case KvCacheType::float8e4m3fn: return 448;
    case KvCacheType::keep: break;
  }
  throw internal_error("a cache that stays as it is has no scales");
}

// The channel that one is rotated with.
std::size_t partner_of(const CacheValue& value, std::size_t channel) {
  const auto rotated = static_cast<std::size_t>(value.rotated);
  if (channel >= rotated) return channel;
  if (value.neighbours) return channel ^ 1U;
  const std::size_t half = rotated / 2;
  return channel < half ? channel + half : channel - half;
}

}  // namespace

CacheObserver::CacheObserver(std::vector<CacheValue> values, bool per_channel)
    : values_(std::move(values)), per_channel_(per_channel) {
  for (const auto& value : values_) {
    const auto parts = per_channel_ ? value.heads * value.channels : value.heads;
    counts_.emplace_back(static_cast<std::size_t>(parts));
  }
}

std::size_t CacheObserver::bin_of(float magnitude) {
  constexpr std::uint32_t kShift = kMantissaBits - kBinMantissaBits;
  constexpr auto kFirst = static_cast<std::int64_t>(127 + kLowestExponent) << kBinMantissaBits;
  const auto place = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(magnitude) >> kShift) - kFirst;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(place, 0, kBins - 1));
}

double CacheObserver::middle_of(std::size_t bin) {
  const auto octave = static_cast<int>(bin / kPerOctave);
  const double step = 1.0 / kPerOctave;
  return std::ldexp(1 + (static_cast<double>(bin % kPerOctave) + 0.5) * step, octave + kLowestExponent);
}

// Whether all of it is finite.
bool CacheObserver::count_head(const CacheValue& value, std::span<const float> positions,
                               std::span<Counts> counts) const {
  const auto channels = static_cast<std::size_t>(value.channels);
  std::vector<std::size_t> partners(channels);
  for (std::size_t c = 0; c < channels; ++c) partners[c] = partner_of(value, c);
  for (std::size_t at = 0; at < positions.size(); at += channels) {
    for (std::size_t c = 0; c < channels; ++c) {
      float magnitude = std::abs(positions[at + c]);
      if (partners[c] != c) {  // hypot() is a symbol of newer C libraries than wheels run on
        const double a = magnitude, b = positions[at + partners[c]];
        magnitude = static_cast<float>(std::sqrt(a * a + b * b));
      }
      if (!std::isfinite(magnitude)) return false;
      auto& found = counts[per_channel_ ? c : 0];
      if (magnitude == 0) {
        ++found.zeros;
        continue;
      }
      ++found.bins[bin_of(magnitude)];
      found.largest = std::max(found.largest, magnitude);
    }
  }
  return true;
}

void CacheObserver::receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) {
  const auto& value = values_[tap];
  const auto& shape = tensor.shape;
  const bool fits = tensor.type == onnx::DataType::float32 && shape.size() == 4 && shape[1] == value.heads &&
                    shape[3] == value.channels;
  if (!fits) throw internal_error(fmt::format("'{}' is no cache of the shape that was expected", value.value));
  const auto heads = static_cast<std::size_t>(value.heads);
  const auto of_head = static_cast<std::size_t>(shape[2] * shape[3]);
  const std::span values(reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float));
  auto& counts = counts_[tap];
  std::vector<char> finite(heads, 1);
  parallel(heads, [&](std::size_t head) {
    const std::size_t each = counts.size() / heads;
    const auto own = std::span(counts).subspan(head * each, each);
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      const auto first = (static_cast<std::size_t>(row) * heads + head) * of_head;
      finite[head] = static_cast<char>(finite[head] != 0 && count_head(value, values.subspan(first, of_head), own));
    }
  });
  if (std::count(finite.begin(), finite.end(), 0) == 0) return;
  throw bad_input(fmt::format("sample '{}' makes NaN or infinite values in the cache '{}'", sample_, value.value),
                  "mend the sample, or leave it out");
}

// The squared error of a magnitude below the limit is a twelfth of the squared scale on average.
float CacheObserver::best_scale(const Counts& counts, double most) {
  if (counts.largest == 0) return 1;
  const std::size_t last = bin_of(counts.largest);
  double best = std::numeric_limits<double>::infinity(), scale = counts.largest / most;
  double clipped_count = 0, clipped_sum = 0, clipped_squares = 0;  // of the bins above
  double inside = static_cast<double>(counts.zeros);
  for (const auto bin : counts.bins) inside += static_cast<double>(bin);
  for (std::size_t bin = last + 1; bin-- > 0;) {
    const double limit = bin == last ? counts.largest : middle_of(bin);
    const double clipping = clipped_squares - 2 * limit * clipped_sum + limit * limit * clipped_count;
    const double error = clipping + inside * (limit / most) * (limit / most) / 12;
    if (error < best) {
      best = error;
      scale = limit / most;
    }
    const auto count = static_cast<double>(counts.bins[bin]);
    const double middle =
        std::min<double>(bin == last && bin == kBins - 1 ? counts.largest : middle_of(bin), counts.largest);
    inside -= count;
    clipped_count += count;
    clipped_sum += count * middle;
    clipped_squares += count * middle * middle;
  }
  return static_cast<float>(scale);
}

std::vector<float> CacheObserver::scales(std::size_t value, KvCacheType type) const {
  std::vector<Counts> merged(1);
  const auto* parts = &counts_[value];
  if (!per_channel_) {
    for (const auto& head : *parts) {
      for (std::size_t bin = 0; bin < kBins; ++bin) merged.front().bins[bin] += head.bins[bin];
      merged.front().zeros += head.zeros;
      merged.front().largest = std::max(merged.front().largest, head.largest);
    }
    parts = &merged;
  }
  const double most = most_of(type);
  const bool clips = type != KvCacheType::float8e4m3fn;
  std::vector<float> scales;
  for (const auto& part : *parts) {
    const float covering = part.largest > 0 ? static_cast<float>(part.largest / most) : 1.0F;
    scales.push_back(clips ? best_scale(part, most) : covering);
  }
  return scales;
}

}  // namespace detent::calibration
