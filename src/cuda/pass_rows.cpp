#include "cuda/pass_rows.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "cuda/launch.h"
#include "solve/layers/device_memory.h"
#include "store/aligned_buffer.h"

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

}  // namespace detent::cuda
