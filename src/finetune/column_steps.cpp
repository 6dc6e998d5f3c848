#include "finetune/column_steps.h"

#include <algorithm>
#include <utility>

#include "finetune/lanes.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kTogether = 256;  // columns of weights that get their step together

/// The layer's inputs from weight `first` on, as matrix B of `gemm`; its leading dimension.
std::pair<const float*, std::int64_t> inputs_of(const Drawn& drawn, std::size_t first, std::size_t fan_in) {
  if (drawn.gathered.empty()) return {drawn.input() + first, static_cast<std::int64_t>(fan_in)};
  const auto columns = static_cast<std::int64_t>(drawn.columns);
  return {drawn.gathered.data() + static_cast<std::int64_t>(first) * columns, columns};
}

}  // namespace

void ColumnSteps::run(RoundingVariables& variables, std::span<const MiniBatch> batches, std::size_t first,
                      std::span<double> losses, const std::function<void()>& check) {
  values_.resize(rows_.count() * std::min(kTogether, fan_in_));
  slope_.resize(values_.size());
  const auto outputs_for = [&](const MiniBatch& batch) {
    Outputs outputs;
    for (const auto& drawn : batch) outputs.emplace_back(rows_.count() * drawn->columns);
    return outputs;
  };
  const auto for_each_part = [&](const auto& fn) {
    for (std::size_t at = 0; at < fan_in_; at += kTogether) fn(Patches::Range{at, std::min(at + kTogether, fan_in_)});
  };
  Outputs now = outputs_for(batches[0]);
  for_each_part([&](Patches::Range part) {
    variables.values(rows_, part, values_.data());
    add_outputs(batches[0], part, now);
  });
  std::vector<float> by_bias;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    check();
    losses[i] += loss_and_slopes(variables, batches[i], now, by_bias);
    const bool goes_on = i + 1 < batches.size();
    Outputs next = goes_on ? outputs_for(batches[i + 1]) : Outputs();
    for_each_part([&](Patches::Range part) {
      slopes_by_weights(batches[i], now, part);
      variables.step(rows_, part, slope_.data(), first + i, goes_on ? values_.data() : nullptr);
      if (goes_on) add_outputs(batches[i + 1], part, next);
    });
    if (variables.trains_bias()) variables.step_bias(rows_, by_bias.data(), first + i);
    now = std::move(next);
  }
}

void ColumnSteps::add_outputs(const MiniBatch& batch, Patches::Range columns, Outputs& outputs) const {
  const auto count = static_cast<std::int64_t>(columns.last - columns.first);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const auto [inputs, leading] = inputs_of(*batch[s], columns.first, fan_in_);
    const auto positions = static_cast<std::int64_t>(batch[s]->columns);
    Gemm shape;
    shape.transpose_b = batch[s]->gathered.empty();
    shape.m = static_cast<std::int64_t>(rows_.count());
    shape.n = positions;
    shape.k = count;
    shape.beta = columns.first > 0 ? 1 : 0;
    kernels_.gemm(shape, values_.data(), count, inputs, leading, outputs[s].data(), positions);
  }
}

// Replaces outputs by the loss's slopes by them.
double ColumnSteps::loss_and_slopes(const RoundingVariables& variables, const MiniBatch& batch, Outputs& outputs,
                                    std::vector<float>& by_bias) const {
  std::size_t columns = 0;
  for (const auto& drawn : batch) columns += drawn->columns;
  const float factor = columns > 0 ? 1 / static_cast<float>(columns) : 0.0F;
  by_bias.assign(rows_.count(), 0.0F);
  double sum = 0;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const std::size_t n = batch[s]->columns;
    for (std::size_t r = 0; r < rows_.count(); ++r) {
      const std::size_t row = rows_.first + r;
      float* y = outputs[s].data() + r * n;
      const float scale = variables.scale(row);
      const float bias = variables.bias() == nullptr ? 0.0F : variables.bias()[row];
      for (std::size_t c = 0; c < n; ++c) y[c] = scale * y[c] + bias;
      sum += loss_and_gradient(activation_, y, batch[s]->targets.data() + row * n, n, factor);
      if (variables.trains_bias()) by_bias[r] += static_cast<float>(sum_double(y, n));
    }
  }
  return sum;
}

void ColumnSteps::slopes_by_weights(const MiniBatch& batch, const Outputs& slopes, Patches::Range columns) {
  const auto count = static_cast<std::int64_t>(columns.last - columns.first);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const auto [inputs, leading] = inputs_of(*batch[s], columns.first, fan_in_);
    const auto positions = static_cast<std::int64_t>(batch[s]->columns);
    Gemm shape;
    shape.transpose_b = !batch[s]->gathered.empty();
    shape.m = static_cast<std::int64_t>(rows_.count());
    shape.n = count;
    shape.k = positions;
    shape.beta = s > 0 ? 1 : 0;
    kernels_.gemm(shape, slopes[s].data(), positions, inputs, leading, slope_.data(), count);
  }
}

}  // namespace detent::finetune
