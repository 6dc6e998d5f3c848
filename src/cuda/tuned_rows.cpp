#include "cuda/tuned_rows.h"

#include "cuda/launch.h"

namespace detent::cuda {

using finetune::LayerGeometry;
using finetune::QuantizedWeights;
using finetune::RoundingVariables;
using finetune::RowRange;

StepNumbers step_numbers(const FinetuneConfig& config) {
  StepNumbers numbers;
  for (std::size_t i = 0; i < config.num_iterations; ++i) {
    const auto soft = finetune::SoftStep::at(config, i);
    numbers.soft.push_back({soft.adam.rate, soft.adam.scale, soft.regularizer, soft.beta});
    const auto through = finetune::through_adam(config, i);
    numbers.through.push_back({through.rate, through.scale});
  }
  return numbers;
}

TunedRows::TunedRows(Device& device, const QuantizedWeights& weights, const LayerGeometry& geometry, RowRange rows,
                     Way way, DevicePrecision precision, const FinetuneConfig& config, double input_power,
                     const StepNumbers& steps)
    : weights_(weights),
      soft_(config.rounding == Rounding::adaround),
      pass_(device, weights, geometry, rows, way, precision),
      variable_(pass_.array<float>(pass_.values())),
      mean_(pass_.array<float>(pass_.values())),
      square_(pass_.array<float>(pass_.values())),
      rounded_(pass_.array<float>(pass_.values())),
      iteration_(pass_.array<unsigned>(1)) {
  const Stream& stream = device.stream();
  if (soft_) {
    // The gradient by h is scale times that by the weight.
    std::vector<SoftRowNumbers> numbers;
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      numbers.push_back({weights.scale[m], finetune::certainty_weight(weights.scale[m], input_power)});
    }
    soft_numbers_ = pass_.array<SoftRowNumbers>(numbers.size());
    upload<SoftRowNumbers>(stream, soft_numbers_, numbers);
    soft_steps_ = pass_.array<SoftNumbers>(steps.soft.size());
    upload<SoftNumbers>(stream, soft_steps_, steps.soft);
    const finetune::SoftRounding start(weights);
    std::vector<float> base(pass_.values());
    for (std::size_t i = 0; i < base.size(); ++i) {
      const std::size_t m = rows.first + i / weights.columns;
      base[i] = static_cast<float>(start.base()[rows.first * weights.columns + i] - weights.zero[m]);
    }
    base_ = pass_.array<float>(base.size());
    upload<float>(stream, base_, base);
    stream.wait();
    return;
  }
  std::vector<ThroughRowNumbers> numbers;
  for (std::size_t m = rows.first; m < rows.last; ++m) {
    const float scale = weights.scale[m];  // a row whose scale is 0 stays as it is
    numbers.push_back({1.0F, static_cast<float>(weights.lowest - weights.zero[m]),
                       static_cast<float>(weights.highest - weights.zero[m]), scale == 0 ? 0.0F : 1 / scale});
  }
  through_numbers_ = pass_.array<ThroughRowNumbers>(numbers.size());
  upload<ThroughRowNumbers>(stream, through_numbers_, numbers);
  through_steps_ = pass_.array<ThroughNumbers>(steps.through.size());
  upload<ThroughNumbers>(stream, through_steps_, steps.through);
  stream.wait();
}

// In the order of RoundingVariables::visit_state(): four arrays of weights, then three of biases.
template <class Copy>
void TunedRows::each(RoundingVariables& variables, const Copy& copy) {
  const DeviceArray<float>* const arrays[] = {&variable_, &mean_,      &square_,     &rounded_,
                                              &bias_,     &bias_mean_, &bias_square_};
  const RowRange rows = pass_.range();
  std::size_t i = 0;
  const auto visit = [&](std::vector<float>& all) {
    const std::size_t width = i < 4 ? pass_.columns() : 1;
    const DeviceArray<float>& array = *arrays[i++];
    if (!all.empty()) copy(std::span(all).subspan(rows.first * width, rows.count() * width), array);
  };
  variables.visit_state(visit);
}

void TunedRows::put(RoundingVariables& variables, std::size_t iteration) {
  const Stream& stream = pass_.device().current().stream();
  trains_bias_ = variables.trains_bias();
  if (variables.bias() != nullptr && bias_.size() == 0) {
    for (auto* array : {&bias_, &bias_mean_, &bias_square_}) *array = pass_.array<float>(pass_.count());
    by_bias_ = pass_.array<double>(pass_.count());
  }
  each(variables, [&](std::span<float> host, const DeviceArray<float>& array) { upload<float>(stream, array, host); });
  const auto number = static_cast<unsigned>(iteration);
  upload<unsigned>(stream, iteration_, std::span(&number, 1));
  stream.wait();
}

void TunedRows::get(RoundingVariables& variables) {
  const Stream& stream = pass_.device().current().stream();
  each(variables,
       [&](std::span<float> host, const DeviceArray<float>& array) { download<float>(stream, host, array); });
  stream.wait();
}

void TunedRows::begin(std::span<const LayerSample> batch) {
  pass_.device().current();
  chosen_ = &pass_.pass_for(batch);
  pass_.fill_filter(*chosen_, soft_ ? base_.data() : nullptr, rounded_.data());
  if (trains_bias_) clear(pass_.device().stream(), by_bias_);
}

void TunedRows::add(const LayerSample& sample, std::size_t columns) {
  pass_.device().current();
  PassRows::Task task;
  task.bias = bias_.size() > 0 ? bias_.data() : nullptr;
  task.factor = 1 / static_cast<float>(columns);
  task.weight = 1 / static_cast<double>(columns);
  task.row_sums = trains_bias_ ? by_bias_.data() : nullptr;
  task.backward = true;
  pass_.run(*chosen_, sample, task);
}

void TunedRows::end() {
  const Stream& stream = pass_.device().current().stream();
  // Six arrays are read and four written; the gradient's own order was brought about before.
  constexpr std::size_t kStepArrays = 10;
  pass_.device().clock().queued(stream, DeviceLane::compute, "steps", {kStepArrays * sizeof(float) * pass_.values(), 0},
                                [&] { queue_step(); });
}

void TunedRows::queue_step() {
  const Stream& stream = pass_.device().stream();
  const float* const slope = pass_.gradient(*chosen_);
  const unsigned blocks = blocks_for(pass_.values() / (pass_.columns() % 4 == 0 ? 4 : 1));
  if (soft_) {
    launch(stream,
           SoftStepKernel{variable_.data(), mean_.data(), square_.data(), rounded_.data(), nullptr, slope, nullptr,
                          soft_numbers_.data(), soft_steps_.data(), iteration_.data(), pass_.count(), pass_.columns()},
           blocks);
  } else {
    launch(stream,
           ThroughStepKernel{variable_.data(), mean_.data(), square_.data(), rounded_.data(), nullptr, nullptr, nullptr,
                             slope, nullptr, through_numbers_.data(), through_steps_.data(), iteration_.data(),
                             pass_.count(), pass_.columns()},
           blocks);
  }
  if (trains_bias_) {
    launch(stream,
           BiasStepKernel{bias_.data(), bias_mean_.data(), bias_square_.data(), by_bias_.data(), through_steps_.data(),
                          iteration_.data(), pass_.count()},
           blocks_for(pass_.count()));
  }
  skip();
}

void TunedRows::skip() { launch(pass_.device().current().stream(), AdvanceKernel{iteration_.data()}, 1); }

}  // namespace detent::cuda
