// AdaQuant in Gram form: an iteration is one product d A, with the change d of the integers, and one fused kernel. See
// solve/solvers/adaquant.cpp for the arithmetic.
#include "cuda/gram_iterations.h"
#include "cuda/gram_methods.h"
#include "cuda/row_kernels.h"
#include "cuda/tuned_rows.h"
#include "solve/layers/iterations.h"

namespace detent::cuda {
namespace {

using solve::AdamStep;
using solve::AdaQuantVariables;
using solve::Quadratic;
using solve::QuantizedWeights;
using solve::SolveControl;

constexpr std::size_t kStepArrays = 11;  // of a step six arrays are read and five written

/// The rows of one device.
class Rows {
 public:
  Rows(GramRows& rows, const QuantizedWeights& weights, const Quadratic& quadratic, std::span<const std::int32_t> start,
       std::span<const AdaQuantNumbers> steps)
      : rows_(rows),
        w_(rows.array<float>(rows.values())),
        mean_(rows.array<float>(rows.values())),
        square_(rows.array<float>(rows.values())),
        q_(rows.array<float>(rows.values())),
        moved_(rows.array<float>(rows.values())),
        start_(rows.array<float>(rows.values())),
        slope_(rows.array<float>(rows.values())),
        offset_(rows.array<float>(rows.values())),
        narrow_(rows.array<Bfloat16>(rows.narrow() ? rows.values() : 0)),
        numbers_(rows.array<AdaQuantBlockNumbers>(rows.count() * rows.scale_blocks().blocks)),
        half_factor_(rows.array<float>(rows.count())),
        unit_(rows.array<float>(rows.count())),
        dots_(rows.array<double>(rows.count())),
        iterations_(rows, steps) {
    const Stream& stream = rows.device().stream();
    std::vector<AdaQuantBlockNumbers> numbers;
    std::vector<float> half, units;
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) {
      units.push_back(weights.row_scale(m));
      const auto factor = static_cast<float>(2 * units.back() / quadratic.positions());
      for (std::size_t b = m * weights.blocks(); b < (m + 1) * weights.blocks(); ++b) {
        numbers.push_back(adaquant_block_numbers(weights, b, factor, weights.relative_scale(b)));
      }
      half.push_back(factor / 2);
    }
    upload<AdaQuantBlockNumbers>(stream, numbers_, numbers);
    upload<float>(stream, half_factor_, half);
    upload<float>(stream, unit_, units);
    const std::vector<float> to_offset(rows.count(), static_cast<float>(2 / quadratic.positions()));
    const auto factor = rows.array<float>(rows.count());
    upload<float>(stream, factor, to_offset);
    const auto integers = rows.uploaded<std::int32_t>(start, rows.fan_in());
    rows.residual(integers.data(), factor.data(), offset_.data());
    std::vector<float> start_units(rows.values());
    for (std::size_t i = 0; i < start_units.size(); ++i) {
      const std::size_t m = rows.range().first + i / rows.fan_in();
      const std::int32_t zero = weights.zero_of(m, i % rows.fan_in());
      start_units[i] = static_cast<float>(start[rows.range().first * rows.fan_in() + i] - zero);
    }
    upload<float>(stream, start_, start_units);
    stream.wait();
    start_error_ = rows.error_sum(integers.data());
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) start_error_ += quadratic.constant(m);
  }

  GramRows& rows() noexcept { return rows_; }
  double start_error() const noexcept { return start_error_; }

  void put(AdaQuantVariables& variables) {
    const Stream& stream = rows_.device().stream();
    copy_variables(variables, rows_, {&w_, &mean_, &square_, &q_},
                   [&](std::span<float> host, const DeviceArray<float>& array) { upload<float>(stream, array, host); });
    launch(stream,
           RowUnitsKernel<AdaQuantBlockNumbers>{q_.data(), start_.data(), moved_.data(), narrow_.data(),
                                                numbers_.data(), rows_.scale_blocks(), rows_.count(), rows_.fan_in()},
           blocks_for(q_.size()));
    stream.wait();
  }
  void get(AdaQuantVariables& variables) {
    const Stream& stream = rows_.device().stream();
    copy_variables(
        variables, rows_, {&w_, &mean_, &square_, &q_},
        [&](std::span<float> host, const DeviceArray<float>& array) { download<float>(stream, host, array); });
    stream.wait();
  }

  void iterate(std::size_t first, std::size_t last, const SolveControl& control) {
    iterations_.run(first, last, "AdaQuant", kStepArrays, control, [&] { queue_iteration(); });
  }

  /// Of these rows, above those of the start: d A dᵀ + 2 d (Ŵ₀ A − c)ᵀ over the number of positions.
  void errors(std::span<double> out) {
    const Stream& stream = rows_.device().stream();
    rows_.product(moved_.data(), slope_.data());
    launch(stream,
           RowDotKernel{moved_.data(), slope_.data(), offset_.data(), half_factor_.data(), unit_.data(), dots_.data(),
                        rows_.fan_in()},
           static_cast<unsigned>(rows_.count()), kSumBytes);
    download<double>(stream, out, dots_);
    stream.wait();
  }

 private:
  void queue_iteration() {
    const Stream& stream = rows_.device().stream();
    rows_.step_product(moved_.data(), narrow_.data(), slope_.data());
    launch(stream,
           AdaQuantStepKernel{w_.data(), mean_.data(), square_.data(), q_.data(), moved_.data(), narrow_.data(),
                              start_.data(), slope_.data(), offset_.data(), numbers_.data(), iterations_.numbers(),
                              iterations_.iteration(), rows_.scale_blocks(), rows_.count(), rows_.fan_in()},
           blocks_for_packs(rows_.count(), rows_.fan_in(), rows_.scale_blocks()));
  }

  GramRows& rows_;
  DeviceArray<float> w_, mean_, square_, q_, moved_, start_, slope_, offset_;
  DeviceArray<Bfloat16> narrow_;
  DeviceArray<AdaQuantBlockNumbers> numbers_;
  DeviceArray<float> half_factor_, unit_;
  DeviceArray<double> dots_;
  RecordedIterations<AdaQuantNumbers> iterations_;
  double start_error_ = 0;
};

class AdaQuantOnDevices final : public VariablesOnDevices<solve::AdaQuantIterations, AdaQuantVariables, Rows> {
 public:
  AdaQuantOnDevices(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                    const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control)
      : VariablesOnDevices(weights), control_(control), errors_(weights.rows) {
    std::vector<AdaQuantNumbers> steps;
    for (std::size_t i = 0; i < config.num_iterations; ++i) {
      const AdamStep step = solve::adaquant_adam(config, i);
      steps.push_back({step.rate, step.scale});
    }
    const solve::Integers start = solve::nearest(weights, {}).integers;
    make_parts(
        rows, [&](GramRows& of_device) { return std::make_unique<Rows>(of_device, weights, quadratic, start, steps); });
    for (const auto& part : parts()) start_loss_ += part->start_error() / quadratic.positions();
  }

  void iterate(std::size_t first, std::size_t last) override {
    changed_on_device();
    on_each([&](Rows& part, std::size_t) { part.iterate(first, last, control_); });
  }
  std::vector<double> errors() override {
    on_each([&](Rows& part, std::size_t) {
      const auto range = part.rows().range();
      part.errors(std::span(errors_).subspan(range.first, range.count()));
    });
    return errors_;
  }
  double constant() const override { return start_loss_; }
  double divisor() const override { return 1; }

 private:
  const SolveControl& control_;
  std::vector<double> errors_;
  double start_loss_ = 0;
};

}  // namespace

solve::Integers adaquant(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                         const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control) {
  AdaQuantOnDevices problem(rows, weights, quadratic, config, control);
  return solve::run(problem, config, control);
}

}  // namespace detent::cuda
