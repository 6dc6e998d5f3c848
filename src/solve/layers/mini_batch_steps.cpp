#include "solve/layers/mini_batch_steps.h"

#include <algorithm>
#include <utility>

#include "solve/algebra/vector_sums.h"

namespace detent::solve {
namespace {

/// Sum of |y − target|². Replaces y by factor · 2 (y − target), its slope by y.
double loss_and_slope(float* y, const float* target, std::size_t count, float factor) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float d = y[i] - target[i];
    sum += static_cast<double>(d) * d;
    y[i] = factor * 2 * d;
  }
  return sum;
}

}  // namespace

void MiniBatchSteps::run(RoundingVariables& variables, std::span<const MiniBatch> batches, std::size_t first,
                         std::span<double> losses, const std::function<void()>& check) {
  if (variables.settled(rows_)) {
    for (std::size_t i = 0; i < batches.size(); ++i)
      losses[i] += last_loss_ * static_cast<double>(batches[i].positions);
    return;
  }
  const std::size_t together = variables.part_size();
  values_.resize(rows_.count() * std::min(together, fan_in_));
  slope_.resize(values_.size());
  const auto outputs_for = [&](const MiniBatch& batch) { return Outputs(rows_.count() * batch.positions); };
  const auto for_each_part = [&](const auto& fn) {
    for (std::size_t at = 0; at < fan_in_; at += together) fn(Patches::Range{at, std::min(at + together, fan_in_)});
  };
  Outputs now = outputs_for(batches[0]);
  for_each_part([&](Patches::Range part) {
    variables.weights_over_scale(rows_, part, values_.data());
    add_outputs(batches[0], part, now);
  });
  std::vector<float> by_bias;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    check();
    const double loss = loss_and_slopes(variables, batches[i], now, by_bias);
    losses[i] += loss;
    if (batches[i].positions > 0) last_loss_ = loss / static_cast<double>(batches[i].positions);
    const bool goes_on = i + 1 < batches.size();
    Outputs next = goes_on ? outputs_for(batches[i + 1]) : Outputs();
    for_each_part([&](Patches::Range part) {
      if (!variables.settled(rows_, part)) slopes_by_weights(batches[i], now, part);
      variables.step(rows_, part, slope_.data(), first + i, goes_on ? values_.data() : nullptr);
      if (goes_on) add_outputs(batches[i + 1], part, next);
    });
    if (variables.trains_bias()) variables.step_bias(rows_, by_bias.data(), first + i);
    now = std::move(next);
  }
}

/// The inputs of weight `first` and those after it, as matrix B of `gemm`; its leading dimension.
std::pair<const float*, std::int64_t> MiniBatchSteps::inputs_of(const MiniBatch& batch, std::size_t first) const {
  if (batch.by_position) return {batch.inputs.data() + first, static_cast<std::int64_t>(fan_in_)};
  return {batch.inputs.data() + (first_input_ + first) * batch.positions, static_cast<std::int64_t>(batch.positions)};
}

void MiniBatchSteps::add_outputs(const MiniBatch& batch, Patches::Range weights, Outputs& outputs) const {
  if (batch.positions == 0) return;
  const auto count = static_cast<std::int64_t>(weights.last - weights.first);
  const auto positions = static_cast<std::int64_t>(batch.positions);
  const auto [inputs, leading] = inputs_of(batch, weights.first);
  Gemm shape;
  shape.transpose_b = batch.by_position;
  shape.m = static_cast<std::int64_t>(rows_.count());
  shape.n = positions;
  shape.k = count;
  shape.beta = weights.first > 0 ? 1 : 0;
  kernels_.gemm(shape, values_.data(), count, inputs, leading, outputs.data(), positions);
}

// Replaces outputs by the loss's slopes by them.
double MiniBatchSteps::loss_and_slopes(const RoundingVariables& variables, const MiniBatch& batch, Outputs& outputs,
                                       std::vector<float>& by_bias) const {
  const std::size_t n = batch.positions;
  const float factor = n > 0 ? 1 / static_cast<float>(n) : 0.0F;
  by_bias.assign(rows_.count(), 0.0F);
  double sum = 0;
  for (std::size_t r = 0; r < rows_.count(); ++r) {
    const std::size_t row = rows_.first + r;
    float* y = outputs.data() + r * n;
    const float scale = variables.scale(row);
    const float bias = variables.bias() == nullptr ? 0.0F : variables.bias()[row];
    for (std::size_t c = 0; c < n; ++c) y[c] = scale * y[c] + bias;
    sum += loss_and_slope(y, batch.targets.data() + row * n, n, factor);
    if (variables.trains_bias()) by_bias[r] += static_cast<float>(sum_double(y, n));
  }
  return sum;
}

void MiniBatchSteps::slopes_by_weights(const MiniBatch& batch, const Outputs& slopes, Patches::Range weights) {
  if (batch.positions == 0) {
    std::fill(slope_.begin(), slope_.end(), 0.0F);
    return;
  }
  const auto count = static_cast<std::int64_t>(weights.last - weights.first);
  const auto positions = static_cast<std::int64_t>(batch.positions);
  const auto [inputs, leading] = inputs_of(batch, weights.first);
  Gemm shape;
  shape.transpose_b = !batch.by_position;
  shape.m = static_cast<std::int64_t>(rows_.count());
  shape.n = count;
  shape.k = positions;
  kernels_.gemm(shape, slopes.data(), positions, inputs, leading, slope_.data(), count);
}

}  // namespace detent::solve
