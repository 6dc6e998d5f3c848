#include "finetune/streamed.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "finetune/batch_gradient.h"
#include "finetune/column_steps.h"
#include "finetune/iterations.h"
#include "finetune/lanes.h"
#include "finetune/mini_batches.h"
#include "finetune/rounding_variables.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kPowerSamples = 8;  // that the inputs' mean square is taken from

}  // namespace

double input_power(LayerSamples& samples) {
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < std::min(samples.count(), kPowerSamples); ++i) {
    const SampleRef sample = samples.get(i);
    sum += dot_double(sample.input.data(), sample.input.data(), sample.input.size());
    count += static_cast<double>(sample.input.size());
  }
  return count > 0 ? sum / count : 0;
}

namespace {

/// Rows that go their way by convolutions: weights and gradients as a whole, one iteration at a time.
class ConvolutionSteps {
 public:
  ConvolutionSteps(RowRange rows, const LayerGeometry& geometry, const Activation& activation, const Kernels& kernels)
      : rows_(rows),
        fan_in_(static_cast<std::size_t>(geometry.fan_in())),
        gradient_(geometry, rows, activation, kernels),
        weights_(rows.count() * fan_in_),
        by_weights_(weights_.size()),
        by_bias_(rows.count()) {}

  double run(RoundingVariables& variables, const MiniBatch& batch, std::size_t iteration) {
    variables.values(rows_, {0, fan_in_}, weights_.data());
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] *= variables.scale(rows_.first + i / fan_in_);
    std::fill(by_weights_.begin(), by_weights_.end(), 0.0F);
    std::fill(by_bias_.begin(), by_bias_.end(), 0.0F);
    std::size_t columns = 0;
    for (const auto& drawn : batch) columns += drawn->columns;
    if (columns == 0) return 0;
    const float* bias = variables.bias() == nullptr ? nullptr : variables.bias() + rows_.first;
    float* by_bias = variables.trains_bias() ? by_bias_.data() : nullptr;
    double loss = 0;
    for (const auto& drawn : batch) {
      loss += gradient_.add(drawn->sample.input_shape, drawn->input(), drawn->sample.target.data(), weights_.data(),
                            bias, 1 / static_cast<float>(columns), by_weights_.data(), by_bias);
    }
    variables.step(rows_, {0, fan_in_}, by_weights_.data(), iteration, nullptr);
    if (by_bias != nullptr) variables.step_bias(rows_, by_bias, iteration);
    return loss;
  }

 private:
  RowRange rows_;
  std::size_t fan_in_;
  BatchGradient gradient_;
  std::vector<float> weights_, by_weights_, by_bias_;
};

class Problem final : public StreamedIterations {
 public:
  Problem(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
          LayerSamples& samples, const Activation& activation, const FinetuneConfig& config, const Kernels& kernels,
          const SolveControl& control)
      : control_(control),
        variables_(weights, bias, config, input_power(samples)),
        by_columns_(has_columns(geometry, samples.get(0).input_shape, config.batch_size)),
        batches_(samples, geometry, config, control.threads, by_columns_) {
    const auto groups = static_cast<std::size_t>(geometry.groups);
    for (const RowRange rows : row_ranges(weights.rows, groups, weights.columns)) {
      if (by_columns_) {
        column_steps_.emplace_back(rows, geometry, activation, kernels);
      } else {
        convolution_steps_.emplace_back(rows, geometry, activation, kernels);
      }
    }
  }

  double iterate(std::size_t first, std::size_t end) override {
    double sum = 0;
    for (std::size_t at = first; at < end;) {
      check_stop(control_);
      const std::vector<MiniBatch> batches = batches_.load(at, end);
      sum += run(batches, at);
      at += batches.size();
    }
    return sum / static_cast<double>(end - first);
  }

  RoundingVariables& variables() override { return variables_; }
  std::uint64_t& choice() override { return choice_; }
  void changed() override {}

 private:
  double run(const std::vector<MiniBatch>& batches, std::size_t first) {
    const std::size_t pieces = column_steps_.size() + convolution_steps_.size();
    std::vector<std::vector<double>> losses(pieces, std::vector<double>(batches.size()));
    parallel_for(pieces, control_.threads, [&](std::size_t i) {
      if (by_columns_) {
        column_steps_[i].run(variables_, batches, first, losses[i], [&] { check_stop(control_); });
      } else {
        losses[i][0] = convolution_steps_[i].run(variables_, batches[0], first);
      }
    });
    double sum = 0;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      double loss = 0;
      std::size_t columns = 0;
      for (const auto& piece : losses) loss += piece[b];
      for (const auto& drawn : batches[b]) columns += drawn->columns;
      sum += columns > 0 ? loss / static_cast<double>(columns) : 0;
    }
    return sum;
  }

  const SolveControl& control_;
  RoundingVariables variables_;
  std::uint64_t choice_ = 0;  // by arithmetic alone
  bool by_columns_;
  MiniBatches batches_;
  std::vector<ColumnSteps> column_steps_;
  std::vector<ConvolutionSteps> convolution_steps_;
};

}  // namespace

Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                        LayerSamples& samples, const Activation& activation, const FinetuneConfig& config,
                        const Kernels& kernels, const SolveControl& control) {
  if (config.rounding == Rounding::gptq) throw usage_error("GPTQ has no streamed form", "let the form be chosen");
  if (config.rounding == Rounding::nearest || samples.count() == 0) return nearest(weights, bias);
  Problem problem(weights, geometry, bias, samples, activation, config, kernels, control);
  Solution solution = run(problem, config, control);
  if (config.rounding == Rounding::adaround && config.update_bias && !bias.empty() &&
      activation.kind == ActivationKind::none) {
    solution.bias = streamed_bias(weights, geometry, solution, samples, kernels, control);
  }
  return solution;
}

}  // namespace detent::finetune
