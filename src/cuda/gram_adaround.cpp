// AdaRound in Gram form: an iteration is one product h A and one fused kernel. See solve/solvers/adaround.cpp for the
// arithmetic.
#include <numeric>

#include "cuda/gram_iterations.h"
#include "cuda/gram_methods.h"
#include "cuda/row_kernels.h"
#include "solve/layers/iterations.h"

namespace detent::cuda {
namespace {

using solve::AdaRoundStep;
using solve::AdaRoundVariables;
using solve::Quadratic;
using solve::QuantizedWeights;
using solve::SolveControl;

constexpr std::size_t kStepArrays = 10;  // of a step six arrays are read and four written

/// The rows of one device.
class Rows {
 public:
  Rows(GramRows& rows, const QuantizedWeights& weights, const Quadratic& quadratic, const AdaRoundVariables& variables,
       std::span<const AdaRoundNumbers> steps)
      : rows_(rows),
        v_(rows.array<float>(rows.values())),
        mean_(rows.array<float>(rows.values())),
        square_(rows.array<float>(rows.values())),
        h_(rows.array<float>(rows.values())),
        scaled_(rows.array<float>(rows.scale_blocks().blocks > 1 ? rows.values() : 0)),
        slope_(rows.array<float>(rows.values())),
        offset_(rows.array<float>(rows.values())),
        narrow_(rows.array<Bfloat16>(rows.narrow() ? rows.values() : 0)),
        numbers_(rows.array<AdaRoundBlockNumbers>(rows.count() * rows.scale_blocks().blocks)),
        half_factor_(rows.array<float>(rows.count())),
        one_(rows.array<float>(rows.count())),
        dots_(rows.array<double>(rows.count())),
        iterations_(rows, steps) {
    const Stream& stream = rows.device().stream();
    std::vector<AdaRoundBlockNumbers> numbers;
    std::vector<float> half, to_offset;
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) {
      const double unit = weights.row_scale(m), power = quadratic.input_power(quadratic.group_of(m));
      const auto factor = static_cast<float>(2 * unit * unit / quadratic.positions());
      for (std::size_t b = m * weights.blocks(); b < (m + 1) * weights.blocks(); ++b) {
        numbers.push_back({factor, solve::certainty_weight(weights.scale[b], power), weights.relative_scale(b)});
      }
      half.push_back(factor / 2);
      to_offset.push_back(static_cast<float>(2 * unit / quadratic.positions()));
    }
    const std::vector<float> ones(rows.count(), 1.0F);
    upload<AdaRoundBlockNumbers>(stream, numbers_, numbers);
    upload<float>(stream, half_factor_, half);
    upload<float>(stream, one_, ones);
    const auto base = rows.uploaded<std::int32_t>(variables.base(), rows.fan_in());
    const auto factor = rows.array<float>(rows.count());
    upload<float>(stream, factor, to_offset);
    rows.residual(base.data(), factor.data(), offset_.data());
    stream.wait();
    base_error_ = rows.error_sum(base.data());
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) base_error_ += quadratic.constant(m);
  }

  GramRows& rows() noexcept { return rows_; }
  double base_error() const noexcept { return base_error_; }

  /// The variables as the host has them.
  void put(AdaRoundVariables& variables) {
    const Stream& stream = rows_.device().stream();
    copy_variables(variables, rows_, {&v_, &mean_, &square_, &h_},
                   [&](std::span<float> host, const DeviceArray<float>& array) { upload<float>(stream, array, host); });
    if (rows_.narrow() || scaled_.size() > 0) {
      launch(stream,
             RowUnitsKernel<AdaRoundBlockNumbers>{h_.data(), nullptr, scaled(), narrow_.data(), numbers_.data(),
                                                  rows_.scale_blocks(), rows_.count(), rows_.fan_in()},
             blocks_for(h_.size()));
    }
    stream.wait();
  }
  void get(AdaRoundVariables& variables) {
    const Stream& stream = rows_.device().stream();
    copy_variables(
        variables, rows_, {&v_, &mean_, &square_, &h_},
        [&](std::span<float> host, const DeviceArray<float>& array) { download<float>(stream, host, array); });
    stream.wait();
  }

  void iterate(std::size_t first, std::size_t last, const SolveControl& control) {
    iterations_.run(first, last, "AdaRound", kStepArrays, control, [&] { queue_iteration(); });
  }

  /// Sum over these rows of the loss above that of the base.
  double loss_above_base() {
    const Stream& stream = rows_.device().stream();
    rows_.product(in_row_units(), slope_.data());
    launch(stream,
           RowDotKernel{in_row_units(), slope_.data(), offset_.data(), half_factor_.data(), one_.data(), dots_.data(),
                        rows_.fan_in()},
           static_cast<unsigned>(rows_.count()), kSumBytes);
    std::vector<double> dots(rows_.count());
    download<double>(stream, dots, dots_);
    stream.wait();
    return std::accumulate(dots.begin(), dots.end(), 0.0);
  }

 private:
  float* scaled() const noexcept { return scaled_.size() > 0 ? scaled_.data() : nullptr; }
  /// h in units of each row's scale.
  const float* in_row_units() const noexcept { return scaled_.size() > 0 ? scaled_.data() : h_.data(); }

  void queue_iteration() {
    const Stream& stream = rows_.device().stream();
    rows_.step_product(in_row_units(), narrow_.data(), slope_.data());
    launch(stream,
           AdaRoundStepKernel{v_.data(), mean_.data(), square_.data(), h_.data(), scaled(), narrow_.data(),
                              slope_.data(), offset_.data(), numbers_.data(), iterations_.numbers(),
                              iterations_.iteration(), rows_.scale_blocks(), rows_.count(), rows_.fan_in()},
           blocks_for_packs(rows_.count(), rows_.fan_in(), rows_.scale_blocks()));
  }

  GramRows& rows_;
  DeviceArray<float> v_, mean_, square_, h_, scaled_, slope_, offset_;
  DeviceArray<Bfloat16> narrow_;
  DeviceArray<AdaRoundBlockNumbers> numbers_;
  DeviceArray<float> half_factor_, one_;
  DeviceArray<double> dots_;
  RecordedIterations<AdaRoundNumbers> iterations_;
  double base_error_ = 0;
};

class AdaRoundOnDevices final : public VariablesOnDevices<solve::AdaRoundIterations, AdaRoundVariables, Rows> {
 public:
  AdaRoundOnDevices(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                    const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control)
      : VariablesOnDevices(weights), control_(control), losses_(rows.size()) {
    std::vector<AdaRoundNumbers> steps;
    for (std::size_t i = 0; i < config.num_iterations; ++i) {
      const AdaRoundStep step = AdaRoundStep::at(config, i);
      steps.push_back({step.adam.rate, step.adam.scale, step.regularizer, step.beta});
    }
    make_parts(rows, [&](GramRows& of_device) {
      return std::make_unique<Rows>(of_device, weights, quadratic, on_host(), steps);
    });
    for (const auto& part : parts()) base_loss_ += part->base_error() / quadratic.positions();
  }

  double iterate(std::size_t first, std::size_t last, bool loss) override {
    changed_on_device();
    on_each([&](Rows& part, std::size_t i) {
      part.iterate(first, last, control_);
      losses_[i] = loss ? part.loss_above_base() : 0;
    });
    return base_loss_ + std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }

 private:
  const SolveControl& control_;
  std::vector<double> losses_;
  double base_loss_ = 0;
};

}  // namespace

solve::Integers adaround(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                         const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control) {
  AdaRoundOnDevices problem(rows, weights, quadratic, config, control);
  return solve::run(problem, config, control);
}

}  // namespace detent::cuda
