#include "calibrate/observers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace detent::calibration {
namespace {

// Smaller tensors are not worth waking threads for.
constexpr std::size_t kPartAtLeast = std::size_t{32} << 10;

std::span<const float> floats(const exec::TensorView& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)};
}

}  // namespace

Observers::Observers(std::vector<Observed> values, const ObserverOptions& options)
    : values_(std::move(values)),
      options_(options),
      summaries_(values_.size()),
      parts_(std::max<std::size_t>(options.threads, 1)) {}

void Observers::begin_sample(const std::string& origin) {
  sample_ = origin;
  ++samples_;
}

void Observers::reduce(std::span<const float> values, HistogramScratch& scratch, Summary& summary) const {
  const KeyRange range = scan(values);
  summary.count += values.size();
  if (range.finite()) {
    summary.extremes.merge(range);
    if (options_.histogram) scratch.count(values, summary.histogram);
    return;
  }
  std::vector<float> finite;
  finite.reserve(values.size());
  for (const float v : values) {
    if (std::isnan(v)) {
      ++summary.nan_count;
    } else if (std::isinf(v)) {
      ++summary.inf_count;
    } else {
      finite.push_back(v);
    }
  }
  summary.extremes.merge(scan(finite));
  if (options_.histogram) scratch.count(finite, summary.histogram);
}

void Observers::receive(std::size_t tap, const exec::TensorView& tensor, const exec::ParallelFor& parallel) {
  if (tensor.type != onnx::DataType::float32)
    throw internal_error("an observer was given a tensor that is not float32");
  const auto values = floats(tensor);
  const std::size_t count = std::clamp<std::size_t>(values.size() / kPartAtLeast, 1, parts_.size());
  Summary& summary = summaries_.at(tap);
  const std::uint64_t nan_before = summary.nan_count;
  const std::uint64_t inf_before = summary.inf_count;
  if (count == 1) {
    reduce(values, parts_.front().scratch, summary);
  } else {
    const std::size_t length = (values.size() + count - 1) / count;
    parallel(count, [&](std::size_t p) {
      const std::size_t begin = std::min(p * length, values.size());
      reduce(values.subspan(begin, std::min(length, values.size() - begin)), parts_[p].scratch, parts_[p].summary);
    });
    for (std::size_t p = 0; p < count; ++p) {
      summary.merge(parts_[p].summary);
      parts_[p].summary = {};
    }
  }
  const std::uint64_t nan_count = summary.nan_count - nan_before;
  const std::uint64_t inf_count = summary.inf_count - inf_before;
  if (!options_.allow_nonfinite && nan_count + inf_count > 0) {
    throw bad_input(fmt::format("tensor '{}' ({}) holds {} NaN and {} infinite values for sample '{}'",
                                values_[tap].value, values_[tap].made_by, nan_count, inf_count, sample_),
                    "correct the sample or the model, or leave such values out with --allow-nonfinite");
  }
}

Statistics Observers::statistics() const {
  Statistics statistics;
  statistics.samples = samples_;
  for (std::size_t i = 0; i < values_.size(); ++i) statistics.tensors[values_[i].value] = summaries_[i];
  return statistics;
}

}  // namespace detent::calibration
