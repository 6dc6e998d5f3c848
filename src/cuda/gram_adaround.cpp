// AdaRound in Gram form: an iteration is one product h A and one fused kernel, recorded as a graph that is launched for
// each. See finetune/adaround.cpp for the arithmetic.
#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/gram_methods.h"
#include "cuda/launch.h"
#include "cuda/row_kernels.h"
#include "cuda/step_kernels.h"
#include "finetune/iterations.h"

namespace detent::cuda {
namespace {

using finetune::Quadratic;
using finetune::QuantizedWeights;
using finetune::SoftRounding;
using finetune::SoftStep;
using finetune::SolveControl;

constexpr std::size_t kStepArrays = 10;  // of a step six arrays are read and four written

/// The rows of one device.
class Rows {
 public:
  Rows(GramRows& rows, const QuantizedWeights& weights, const Quadratic& quadratic, const SoftRounding& soft,
       std::span<const SoftNumbers> steps)
      : rows_(rows),
        v_(rows.array<float>(rows.values())),
        mean_(rows.array<float>(rows.values())),
        square_(rows.array<float>(rows.values())),
        h_(rows.array<float>(rows.values())),
        slope_(rows.array<float>(rows.values())),
        offset_(rows.array<float>(rows.values())),
        narrow_(rows.array<Bfloat16>(rows.narrow() ? rows.values() : 0)),
        numbers_(rows.array<SoftRowNumbers>(rows.count())),
        half_factor_(rows.array<float>(rows.count())),
        one_(rows.array<float>(rows.count())),
        dots_(rows.array<double>(rows.count())),
        steps_(rows.array<SoftNumbers>(steps.size())),
        iteration_(rows.array<unsigned>(1)) {
    const Stream& stream = rows.device().stream();
    upload<SoftNumbers>(stream, steps_, steps);
    const double columns = quadratic.columns();
    std::vector<SoftRowNumbers> numbers;
    std::vector<float> half, to_offset;
    for (std::size_t m = rows.range().first; m < rows.range().last; ++m) {
      const double scale = weights.scale[m];
      const auto factor = static_cast<float>(2 * scale * scale / columns);
      numbers.push_back(
          {factor, finetune::certainty_weight(weights.scale[m], quadratic.input_power(quadratic.group_of(m)))});
      half.push_back(factor / 2);
      to_offset.push_back(static_cast<float>(2 * scale / columns));
    }
    const std::vector<float> ones(rows.count(), 1.0F);
    upload<SoftRowNumbers>(stream, numbers_, numbers);
    upload<float>(stream, half_factor_, half);
    upload<float>(stream, one_, ones);
    const auto base = rows.uploaded<std::int32_t>(soft.base(), rows.columns());
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
  void put(SoftRounding& soft) {
    const Stream& stream = rows_.device().stream();
    each(soft, [&](std::span<float> host, const DeviceArray<float>& array) { upload<float>(stream, array, host); });
    if (rows_.narrow()) {
      launch(stream, ToBfloat16{h_.data(), narrow_.data(), h_.size()}, blocks_for(h_.size()));
    }
    stream.wait();
  }
  void get(SoftRounding& soft) {
    const Stream& stream = rows_.device().stream();
    each(soft, [&](std::span<float> host, const DeviceArray<float>& array) { download<float>(stream, host, array); });
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
    if (first < last) rows_.repeat(*graph_, last - first, "AdaRound", kStepArrays, control);
  }

  /// Sum over these rows of the loss above that of the base.
  double loss_above_base() {
    const Stream& stream = rows_.device().stream();
    rows_.product(h_.data(), slope_.data());
    launch(stream,
           RowDotKernel{h_.data(), slope_.data(), offset_.data(), half_factor_.data(), one_.data(), dots_.data(),
                        rows_.columns()},
           static_cast<unsigned>(rows_.count()), kSumBytes);
    std::vector<double> dots(rows_.count());
    download<double>(stream, dots, dots_);
    stream.wait();
    return std::accumulate(dots.begin(), dots.end(), 0.0);
  }

  void set_iteration(std::size_t iteration) {
    const auto number = static_cast<unsigned>(iteration);
    upload<unsigned>(rows_.device().stream(), iteration_, std::span(&number, 1));
    rows_.device().stream().wait();
  }

 private:
  void queue_iteration() {
    const Stream& stream = rows_.device().stream();
    rows_.step_product(h_.data(), narrow_.data(), slope_.data());
    launch(stream,
           SoftStepKernel{v_.data(), mean_.data(), square_.data(), h_.data(), narrow_.data(), slope_.data(),
                          offset_.data(), numbers_.data(), steps_.data(), iteration_.data(), rows_.count(),
                          rows_.columns()},
           blocks_for(rows_.values() / (rows_.columns() % 4 == 0 ? 4 : 1)));
    launch(stream, AdvanceKernel{iteration_.data()}, 1);
  }

  /// In the order of SoftRounding::visit_state().
  template <class Copy>
  void each(SoftRounding& soft, const Copy& copy) {
    const DeviceArray<float>* const arrays[] = {&v_, &mean_, &square_, &h_};
    std::size_t i = 0;
    const auto visit = [&](std::vector<float>& all) {
      copy(std::span(all).subspan(rows_.range().first * rows_.columns(), rows_.values()), *arrays[i++]);
    };
    soft.visit_state(visit);
  }

  GramRows& rows_;
  DeviceArray<float> v_, mean_, square_, h_, slope_, offset_;
  DeviceArray<Bfloat16> narrow_;
  DeviceArray<SoftRowNumbers> numbers_;
  DeviceArray<float> half_factor_, one_;
  DeviceArray<double> dots_;
  DeviceArray<SoftNumbers> steps_;
  DeviceArray<unsigned> iteration_;
  std::optional<Graph> graph_;
  double base_error_ = 0;
};

class OnDevices final : public finetune::SoftIterations {
 public:
  OnDevices(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
            const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control)
      : control_(control), soft_(weights), parts_(rows.size()), losses_(rows.size()) {
    std::vector<SoftNumbers> steps;
    for (std::size_t i = 0; i < config.num_iterations; ++i) {
      const SoftStep step = SoftStep::at(config, i);
      steps.push_back({step.adam.rate, step.adam.scale, step.regularizer, step.beta});
    }
    for_each_device(parts_.size(), [&](std::size_t i) {
      rows[i]->device().current();
      parts_[i] = std::make_unique<Rows>(*rows[i], weights, quadratic, soft_, steps);
    });
    for (const auto& part : parts_) base_loss_ += part->base_error() / quadratic.columns();
    changed();
  }

  double iterate(std::size_t first, std::size_t last, bool loss) override {
    on_device_ = true;
    for_each_device(parts_.size(), [&](std::size_t i) {
      parts_[i]->rows().device().current();
      parts_[i]->iterate(first, last, control_);
      losses_[i] = loss ? parts_[i]->loss_above_base() : 0;
    });
    return base_loss_ + std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }

  SoftRounding& variables() override {
    if (std::exchange(on_device_, false)) {
      for (auto& part : parts_) {
        part->rows().device().current();
        part->get(soft_);
      }
    }
    return soft_;
  }

  void changed() override {
    for (auto& part : parts_) {
      part->rows().device().current();
      part->put(soft_);
    }
    on_device_ = false;
  }

 private:
  const SolveControl& control_;
  SoftRounding soft_;
  bool on_device_ = false;  // where the latest variables are
  std::vector<std::unique_ptr<Rows>> parts_;
  std::vector<double> losses_;
  double base_loss_ = 0;
};

}  // namespace

finetune::Integers adaround(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                            const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control) {
  OnDevices problem(rows, weights, quadratic, config, control);
  return finetune::run(problem, config, control);
}

}  // namespace detent::cuda
