#include "calibration/observers.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

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

}  // namespace detent::calibration
