// AdaQuant in Gram form: an iteration is one product d A, with the steps d that integers have moved by, and one fused
// kernel, recorded as a graph that is launched for each. See finetune/adaquant.cpp for the arithmetic.
#include <algorithm>
#include <utility>

#include "cuda/gram_methods.h"
#include "cuda/launch.h"
#include "cuda/row_kernels.h"
#include "cuda/step_kernels.h"
#include "finetune/iterations.h"

namespace detent::cuda {
namespace {

using finetune::AdamStep;
using finetune::Quadratic;
using finetune::QuantizedWeights;
using finetune::SolveControl;
using finetune::StraightThrough;

constexpr std::size_t kStepArrays = 11;  // of a step six arrays are read and five written

/// The rows of one device.
class Rows {
 public:
  Rows(GramRows& rows, const QuantizedWeights& weights, const Quadratic& quadratic, std::span<const std::int32_t> start,
       std::span<const ThroughNumbers> steps)
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
        numbers_(rows.array<ThroughRowNumbers>(rows.count())),
        half_factor_(rows.array<float>(rows.count())),
        scale_(rows.uploaded<float>(weights.scale, 1)),
        dots_(rows.array<double>(rows.count())),
        steps_(rows.array<ThroughNumbers>(steps.size())),
        iteration_(rows.array<unsigned>(1)) {
    const Stream& stream = rows.device().stream();
    upload<ThroughNumbers>(stream, steps_, steps);
    std::vector<ThroughRowNumbers> numbers;
    std::vector<float> half;
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) {
      // A row whose scale is 0 stays as it is.
      const float scale = weights.scale[m];
      const auto factor = static_cast<float>(2 * scale / quadratic.columns());
      numbers.push_back({factor, static_cast<float>(weights.lowest - weights.zero[m]),
                         static_cast<float>(weights.highest - weights.zero[m]), scale == 0 ? 0.0F : 1 / scale});
      half.push_back(factor / 2);
    }
    upload<ThroughRowNumbers>(stream, numbers_, numbers);
    upload<float>(stream, half_factor_, half);
    const std::vector<float> to_offset(rows.count(), static_cast<float>(2 / quadratic.columns()));
    const auto factor = rows.array<float>(rows.count());
    upload<float>(stream, factor, to_offset);
    const auto integers = rows.uploaded<std::int32_t>(start, rows.columns());
    rows.residual(integers.data(), factor.data(), offset_.data());
    std::vector<float> start_steps(rows.values());
    for (std::size_t i = 0; i < start_steps.size(); ++i) {
      const std::size_t m = rows.range().first + i / rows.columns();
      start_steps[i] = static_cast<float>(start[rows.range().first * rows.columns() + i] - weights.zero[m]);
    }
    upload<float>(stream, start_, start_steps);
    stream.wait();
    start_error_ = rows.error_sum(integers.data());
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) start_error_ += quadratic.constant(m);
  }

  GramRows& rows() noexcept { return rows_; }
  double start_error() const noexcept { return start_error_; }

  void put(StraightThrough& through) {
    const Stream& stream = rows_.device().stream();
    each(through, [&](std::span<float> host, const DeviceArray<float>& array) { upload<float>(stream, array, host); });
    launch(stream, MovedKernel{q_.data(), start_.data(), moved_.data(), narrow_.data(), q_.size()},
           blocks_for(q_.size()));
    stream.wait();
  }
  void get(StraightThrough& through) {
    const Stream& stream = rows_.device().stream();
    each(through,
         [&](std::span<float> host, const DeviceArray<float>& array) { download<float>(stream, host, array); });
    stream.wait();
  }

  void iterate(std::size_t first, std::size_t last, const SolveControl& control) {
    const Stream& stream = rows_.device().stream();
    set_iteration(first);
    if (!graph_ && first < last) {
      queue_iteration();  // one without: libraries load code when they are first used, which no graph can record
      stream.wait();
      graph_.emplace(stream, [&] { queue_iteration(); });
      ++first;
    }
    if (first < last) rows_.repeat(*graph_, last - first, "AdaQuant", kStepArrays, control);
  }

  /// Of these rows, above those of the start: d A dᵀ + 2 d (Ŵ₀ A − c)ᵀ over the number of columns.
  void errors(std::span<double> out) {
    const Stream& stream = rows_.device().stream();
    rows_.product(moved_.data(), slope_.data());
    launch(stream,
           RowDotKernel{moved_.data(), slope_.data(), offset_.data(), half_factor_.data(), scale_.data(), dots_.data(),
                        rows_.columns()},
           static_cast<unsigned>(rows_.count()), kSumBytes);
    download<double>(stream, out, dots_);
    stream.wait();
  }

 private:
  void set_iteration(std::size_t iteration) {
    const auto number = static_cast<unsigned>(iteration);
    upload<unsigned>(rows_.device().stream(), iteration_, std::span(&number, 1));
    rows_.device().stream().wait();
  }

  void queue_iteration() {
    const Stream& stream = rows_.device().stream();
    rows_.step_product(moved_.data(), narrow_.data(), slope_.data());
    launch(stream,
           ThroughStepKernel{w_.data(), mean_.data(), square_.data(), q_.data(), moved_.data(), narrow_.data(),
                             start_.data(), slope_.data(), offset_.data(), numbers_.data(), steps_.data(),
                             iteration_.data(), rows_.count(), rows_.columns()},
           blocks_for(rows_.values() / (rows_.columns() % 4 == 0 ? 4 : 1)));
    launch(stream, AdvanceKernel{iteration_.data()}, 1);
  }

  /// In the order of StraightThrough::visit_state().
  template <class Copy>
  void each(StraightThrough& through, const Copy& copy) {
    const DeviceArray<float>* const arrays[] = {&w_, &mean_, &square_, &q_};
    std::size_t i = 0;
    const auto visit = [&](std::vector<float>& all) {
      copy(std::span(all).subspan(rows_.range().first * rows_.columns(), rows_.values()), *arrays[i++]);
    };
    through.visit_state(visit);
  }

  GramRows& rows_;
  DeviceArray<float> w_, mean_, square_, q_, moved_, start_, slope_, offset_;
  DeviceArray<Bfloat16> narrow_;
  DeviceArray<ThroughRowNumbers> numbers_;
  DeviceArray<float> half_factor_, scale_;
  DeviceArray<double> dots_;
  DeviceArray<ThroughNumbers> steps_;
  DeviceArray<unsigned> iteration_;
  std::optional<Graph> graph_;
  double start_error_ = 0;
};

class OnDevices final : public finetune::ThroughIterations {
 public:
  OnDevices(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
            const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control)
      : control_(control), through_(weights), parts_(rows.size()), errors_(weights.rows) {
    std::vector<ThroughNumbers> steps;
    for (std::size_t i = 0; i < config.num_iterations; ++i) {
      const AdamStep step = finetune::through_adam(config, i);
      steps.push_back({step.rate, step.scale});
    }
    const finetune::Integers start = finetune::nearest(weights, {}).integers;
    for_each_device(parts_.size(), [&](std::size_t i) {
      rows[i]->device().current();
      parts_[i] = std::make_unique<Rows>(*rows[i], weights, quadratic, start, steps);
    });
    for (const auto& part : parts_) start_loss_ += part->start_error() / quadratic.columns();
    changed();
  }

  void iterate(std::size_t first, std::size_t last) override {
    on_device_ = true;
    for_each_device(parts_.size(), [&](std::size_t i) {
      parts_[i]->rows().device().current();
      parts_[i]->iterate(first, last, control_);
    });
  }

  std::vector<double> errors() override {
    for_each_device(parts_.size(), [&](std::size_t i) {
      const auto range = parts_[i]->rows().range();
      parts_[i]->rows().device().current();
      parts_[i]->errors(std::span(errors_).subspan(range.first, range.count()));
    });
    return errors_;
  }
  double constant() const override { return start_loss_; }
  double divisor() const override { return 1; }

  StraightThrough& variables() override {
    if (std::exchange(on_device_, false)) {
      for (auto& part : parts_) {
        part->rows().device().current();
        part->get(through_);
      }
    }
    return through_;
  }

  void changed() override {
    for (auto& part : parts_) {
      part->rows().device().current();
      part->put(through_);
    }
    on_device_ = false;
  }

 private:
  const SolveControl& control_;
  StraightThrough through_;
  bool on_device_ = false;  // where the latest variables are
  std::vector<std::unique_ptr<Rows>> parts_;
  std::vector<double> errors_;
  double start_loss_ = 0;
};

}  // namespace

finetune::Integers adaquant(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                            const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control) {
  OnDevices problem(rows, weights, quadratic, config, control);
  return finetune::run(problem, config, control);
}

}  // namespace detent::cuda
