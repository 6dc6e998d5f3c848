#include "cuda/pass_rows.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "cuda/launch.h"
#include "solve/layers/layer_solver.h"

namespace detent::cuda {
namespace {

using solve::kLossBlocks;
using solve::LayerGeometry;
using solve::QuantizedWeights;
using solve::RowRange;
using solve::Shape;

}  // namespace

PassRows::PassRows(Device& device, const QuantizedWeights& weights, const LayerGeometry& geometry, RowRange rows,
                   PassKind way, DevicePrecision precision)
    : device_(device.current()),
      geometry_(geometry),
      rows_(rows),
      fan_in_(weights.fan_in),
      by_patches_(patch_pass(device, geometry, rows, precision)),
      staging_(device),
      blocks_(scale_blocks_of(weights)),
      scale_(array<float>(rows.count() * weights.blocks())),
      filter_(array<float>(values())),
      filter_gradient_(array<float>(values())),
      losses_(array<double>(kLossBlocks)) {
  check_size(count(), fan_in_);
  if (way == PassKind::nchw || way == PassKind::nhwc) {
    const auto layout = way == PassKind::nchw ? DeviceLayout::nchw : DeviceLayout::nhwc;
    by_convolutions_ = convolution_pass(device, geometry, rows, layout, precision);
  }
  upload<float>(device.stream(), scale_, blocks_of_rows<float>(weights.scale, weights, rows));
  clear(device.stream(), losses_);
  device.stream().wait();
}

LayerPass& PassRows::pass_for(std::span<const LayerSample> samples) {
  const bool all = by_convolutions_ && std::all_of(samples.begin(), samples.end(), [&](const LayerSample& s) {
                     return Convolution::supports(geometry_, *s.shape);
                   });
  return all ? *by_convolutions_ : *by_patches_;
}

void PassRows::fill_filter(const LayerPass& pass, const float* base, const float* soft) {
  launch(device_.stream(),
         WeightsToFilterKernel{base, soft, scale_.data(), filter_.data(), pass.order(), blocks_, count(), fan_in_},
         blocks_for(values()));
  fresh_ = true;
}

PassRows::Staged PassRows::stage(const LayerSample& sample) {
  if (sample.resting == nullptr) {
    const float* const at = staging_.put(std::array{sample.input, sample.target});
    return {at, at + sample.input.size()};
  }
  const std::byte* const at = staging_.read(*reader_, *sample.resting);
  const auto part = [&](std::size_t i) { return reinterpret_cast<const float*>(at + sample.resting->parts[i].begin); };
  return {part(0), part(1)};
}

void PassRows::run(LayerPass& pass, const LayerSample& sample, const Task& task) {
  const Staged staged = stage(sample);
  device_.clock().queued(device_.stream(), DeviceLane::compute, task.backward ? "mini-batches" : "errors",
                         amount(*sample.shape, task.backward), [&] { queue(pass, sample, staged, task); });
}

// Forward one product of weights and inputs, backward another. The least that passes memory: input and target once,
// the outputs written, made slopes and read, the filter or its gradient each time.
DeviceAmount PassRows::amount(const Shape& shape, bool backward) const {
  const auto elements = [](const Shape& of) {
    return static_cast<std::uint64_t>(std::accumulate(of.begin(), of.end(), std::int64_t{1}, std::multiplies<>()));
  };
  const auto all = static_cast<std::uint64_t>(geometry_.outputs);
  const std::uint64_t outputs = elements(geometry_.output_shape(shape)) / all * count(), times = backward ? 2 : 1;
  return {sizeof(float) * (times * (elements(shape) + values()) + (3 + times) * outputs),
          2.0 * static_cast<double>(times) * static_cast<double>(outputs) * static_cast<double>(fan_in_)};
}

void PassRows::queue(LayerPass& pass, const LayerSample& sample, const Staged& staged, const Task& task) {
  const auto [input, target] = staged;
  const Stream& stream = device_.stream();
  for (std::size_t piece = 0; piece < pass.pieces(*sample.shape); ++piece) {
    pass.begin(*sample.shape, input, target, piece);
    const OutputPlace& place = pass.outputs();
    const std::size_t outputs = place.samples * place.rows * place.positions;
    if (outputs == 0) continue;
    pass.forward(filter_.data());
    launch(stream, LossKernel{place, task.bias, losses_.data(), task.factor, task.weight},
           blocks_for(outputs, kLossBlocks), kSumBytes);
    if (task.row_sums != nullptr) {
      launch(stream, OutputSumsKernel{place, task.row_sums}, static_cast<unsigned>(place.rows), kSumBytes);
    }
    if (!task.backward) continue;
    pass.backward(filter_gradient_.data(), !fresh_);
    fresh_ = false;
  }
}

const float* PassRows::gradient(const LayerPass& pass) {
  if (fresh_) clear(device_.stream(), filter_gradient_);  // samples without outputs
  if (pass.is_matrix()) return filter_gradient_.data();
  if (slope_.size() == 0) slope_ = array<float>(values());
  launch(device_.stream(),
         FilterToWeightsKernel{filter_gradient_.data(), slope_.data(), pass.order(), count(), fan_in_},
         blocks_for(values()));
  return slope_.data();
}

double PassRows::take_losses() {
  std::vector<double> losses(losses_.size());
  download<double>(device_.stream(), losses, losses_);
  clear(device_.stream(), losses_);
  device_.stream().wait();
  device_.clock().report_finished_work();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

double PassRows::time(LayerPass& pass, const LayerSample& sample) {
  constexpr int kTimes = 5;
  const Staged staged = stage(sample);
  const Stream& stream = device_.stream();
  stream.clear(filter_.data(), values() * sizeof(float));
  const auto once = [&] {
    pass.begin(*sample.shape, staged.input, staged.target, 0);
    pass.forward(filter_.data());
    pass.backward(filter_gradient_.data(), false);
  };
  once();  // the first loads code and allocates
  stream.wait();
  Event begin(true), end(true);
  begin.record(stream);
  for (int i = 0; i < kTimes; ++i) once();
  end.record(stream);
  end.wait();
  fresh_ = true;
  return end.milliseconds_since(begin) / kTimes;
}

using solve::RoundingVariables;

StepNumbers step_numbers(const FinetuneConfig& config) {
  StepNumbers numbers;
  for (std::size_t i = 0; i < config.num_iterations; ++i) {
    const auto adaround = solve::AdaRoundStep::at(config, i);
    numbers.adaround.push_back({adaround.adam.rate, adaround.adam.scale, adaround.regularizer, adaround.beta});
    const auto adaquant = solve::adaquant_adam(config, i);
    numbers.adaquant.push_back({adaquant.rate, adaquant.scale});
  }
  return numbers;
}

AdaQuantBlockNumbers adaquant_block_numbers(const QuantizedWeights& weights, std::size_t block, float factor,
                                            float relative) {
  const float scale = weights.scale[block];
  const std::int32_t zero = weights.zero[block];
  return {factor, static_cast<float>(weights.lowest - zero), static_cast<float>(weights.highest - zero),
          scale == 0 ? 0.0F : 1 / scale, relative};
}

TunedRows::TunedRows(Device& device, const QuantizedWeights& weights, const LayerGeometry& geometry, RowRange rows,
                     PassKind way, DevicePrecision precision, const FinetuneConfig& config, double input_power,
                     const StepNumbers& steps)
    : weights_(weights),
      adaround_(config.solver == WeightSolver::adaround),
      pass_(device, weights, geometry, rows, way, precision),
      variable_(pass_.array<float>(pass_.values())),
      mean_(pass_.array<float>(pass_.values())),
      square_(pass_.array<float>(pass_.values())),
      rounded_(pass_.array<float>(pass_.values())),
      iteration_(pass_.array<unsigned>(1)) {
  const Stream& stream = device.stream();
  if (adaround_) {
    // The gradient by h is scale times that by the weight.
    std::vector<AdaRoundBlockNumbers> numbers;
    for (const float scale : blocks_of_rows<float>(weights.scale, weights, rows)) {
      numbers.push_back({scale, solve::certainty_weight(scale, input_power), 1.0F});
    }
    adaround_numbers_ = pass_.array<AdaRoundBlockNumbers>(numbers.size());
    upload<AdaRoundBlockNumbers>(stream, adaround_numbers_, numbers);
    adaround_steps_ = pass_.array<AdaRoundNumbers>(steps.adaround.size());
    upload<AdaRoundNumbers>(stream, adaround_steps_, steps.adaround);
    const solve::AdaRoundVariables start(weights);
    std::vector<float> base(pass_.values());
    for (std::size_t i = 0; i < base.size(); ++i) {
      const std::int32_t zero = weights.zero_of(rows.first + i / weights.fan_in, i % weights.fan_in);
      base[i] = static_cast<float>(start.base()[rows.first * weights.fan_in + i] - zero);
    }
    base_ = pass_.array<float>(base.size());
    upload<float>(stream, base_, base);
    stream.wait();
    return;
  }
  std::vector<AdaQuantBlockNumbers> numbers;
  for (std::size_t b = rows.first * weights.blocks(); b < rows.last * weights.blocks(); ++b) {
    numbers.push_back(adaquant_block_numbers(weights, b, 1.0F, 1.0F));
  }
  adaquant_numbers_ = pass_.array<AdaQuantBlockNumbers>(numbers.size());
  upload<AdaQuantBlockNumbers>(stream, adaquant_numbers_, numbers);
  adaquant_steps_ = pass_.array<AdaQuantNumbers>(steps.adaquant.size());
  upload<AdaQuantNumbers>(stream, adaquant_steps_, steps.adaquant);
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
    const std::size_t width = i < 4 ? pass_.fan_in() : 1;
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
  pass_.fill_filter(*chosen_, adaround_ ? base_.data() : nullptr, rounded_.data());
  if (trains_bias_) clear(pass_.device().stream(), by_bias_);
}

void TunedRows::add(const LayerSample& sample, std::size_t positions) {
  pass_.device().current();
  PassRows::Task task;
  task.bias = bias_.size() > 0 ? bias_.data() : nullptr;
  task.factor = 1 / static_cast<float>(positions);
  task.weight = 1 / static_cast<double>(positions);
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
  const ScaleBlocks& scales = pass_.scale_blocks();
  const unsigned blocks = blocks_for_packs(pass_.count(), pass_.fan_in(), scales);
  if (adaround_) {
    launch(stream,
           AdaRoundStepKernel{variable_.data(), mean_.data(), square_.data(), rounded_.data(), nullptr, nullptr, slope,
                              nullptr, adaround_numbers_.data(), adaround_steps_.data(), iteration_.data(), scales,
                              pass_.count(), pass_.fan_in()},
           blocks);
  } else {
    launch(stream,
           AdaQuantStepKernel{variable_.data(), mean_.data(), square_.data(), rounded_.data(), nullptr, nullptr,
                              nullptr, slope, nullptr, adaquant_numbers_.data(), adaquant_steps_.data(),
                              iteration_.data(), scales, pass_.count(), pass_.fan_in()},
           blocks);
  }
  if (trains_bias_) {
    launch(stream,
           BiasStepKernel{bias_.data(), bias_mean_.data(), bias_square_.data(), by_bias_.data(), adaquant_steps_.data(),
                          iteration_.data(), pass_.count()},
           blocks_for(pass_.count()));
  }
  skip();
}

void TunedRows::skip() { launch(pass_.device().current().stream(), AdvanceKernel{iteration_.data()}, 1); }

}  // namespace detent::cuda
