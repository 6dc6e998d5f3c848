#include "cuda/gram_methods.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/launch.h"
#include "cuda/pass_rows.h"
#include "cuda/row_kernels.h"
#include "cuda/step_kernels.h"
#include "solve/layers/streamed.h"
#include "solve/solvers.h"

namespace detent::cuda {

using solve::Integers;

bool runs_on_devices(WeightSolver rounding) {
  return rounding == WeightSolver::adaround || rounding == WeightSolver::adaquant;
}

void GramMethodsOnDevices::prepare(const FinetuneConfig& config) {
  if (quadratic_) return;
  quadratic_.emplace(weights_, form_, bias_, config.update_bias);
  const auto ranges = share_rows(weights_.rows, form_.groups, devices_.size());
  rows_.resize(ranges.size());
  for_each_device(ranges.size(), [&](std::size_t i) {
    rows_[i] = std::make_unique<GramRows>(*devices_[i], weights_, *quadratic_, ranges[i], precision_);
  });
}

Integers GramMethodsOnDevices::integers(const FinetuneConfig& config) {
  if (form_.positions == 0) return solve::nearest(weights_, {}).integers;
  if (!runs_on_devices(config.solver)) {
    return solve::find_solver(config.solver)->solve(weights_, form_, bias_, config, kernels_, control_);
  }
  prepare(config);
  return config.solver == WeightSolver::adaround ? adaround(rows_, weights_, *quadratic_, config, control_)
                                                 : adaquant(rows_, weights_, *quadratic_, config, control_);
}

// As solve::better_rows: with d = Ŵ₂ − Ŵ₁ the error changes by d A dᵀ + 2 d (Ŵ₁ A − c)ᵀ.
Integers GramMethodsOnDevices::better_rows(const FinetuneConfig& config, Integers first, const Integers& second) {
  if (form_.positions == 0) return first;
  prepare(config);
  const std::size_t k = weights_.fan_in;
  std::vector<double> more(weights_.rows);
  for_each_device(rows_.size(), [&](std::size_t i) {
    GramRows& rows = *rows_[i];
    const Stream& stream = rows.device().current().stream();
    std::vector<float> change(rows.values());
    const std::size_t begin = rows.range().first * k;
    for (std::size_t at = 0; at < change.size(); ++at) {
      change[at] = weights_.scale_of(rows.range().first + at / k, at % k) *
                   static_cast<float>(second[begin + at] - first[begin + at]);
    }
    const auto integers = rows.uploaded<std::int32_t>(first, k);
    const auto d = rows.array<float>(rows.values());
    upload<float>(stream, d, change);
    const std::vector<float> ones(rows.count(), 1.0F), twos(rows.count(), 2.0F);
    const auto one = rows.array<float>(rows.count()), two = rows.array<float>(rows.count());
    upload<float>(stream, one, ones);
    upload<float>(stream, two, twos);
    const auto slope = rows.array<float>(rows.values()), product = rows.array<float>(rows.values());
    rows.residual(integers.data(), two.data(), slope.data());
    rows.product(d.data(), product.data());
    const auto sums = rows.array<double>(rows.count());
    launch(stream,
           RowDotKernel{d.data(), product.data(), slope.data(), one.data(), one.data(), sums.data(), rows.fan_in()},
           static_cast<unsigned>(rows.count()), kSumBytes);
    download<double>(stream, std::span(more).subspan(rows.range().first, rows.count()), sums);
    stream.wait();
  });
  for (std::size_t m = 0; m < weights_.rows; ++m) {
    if (!(more[m] < 0)) continue;
    const auto at = static_cast<std::ptrdiff_t>(m * k);
    std::copy_n(second.begin() + at, k, first.begin() + at);
  }
  return first;
}

Integers GramMethodsOnDevices::coordinate_descent(const FinetuneConfig& config, Integers start) {
  if (solve::coordinate_sweeps(config) == 0 || form_.positions == 0) return start;
  prepare(config);
  Integers result(start.size());
  for_each_device(rows_.size(), [&](std::size_t i) {
    GramRows& rows = *rows_[i];
    const Stream& stream = rows.device().current().stream();
    const std::size_t k = rows.fan_in();
    auto integers = rows.uploaded<std::int32_t>(start, k);
    auto next = rows.array<std::int32_t>(rows.values());
    const auto scale = rows.uploaded<float>(weights_.scale, weights_.blocks());
    const std::vector<float> ones(rows.count(), 1.0F);
    const auto one = rows.array<float>(rows.count());
    upload<float>(stream, one, ones);
    const auto residual = rows.array<float>(rows.values());
    for (std::size_t sweep = 0; sweep < solve::coordinate_sweeps(config); ++sweep) {
      solve::check_stop(control_);
      const double values = static_cast<double>(rows.values());
      const DeviceAmount amount{sizeof(float) * (2 * k * k + 6 * rows.values()), 4 * values * static_cast<double>(k)};
      rows.device().clock().queued(stream, DeviceLane::compute, "coordinate descent", amount, [&] {
        rows.residual(integers.data(), one.data(), residual.data());  // anew in each sweep: it does not drift
        launch(stream,
               DescentKernel{integers.data(), next.data(), residual.data(), rows.gram(), scale.data(), weights_.lowest,
                             weights_.highest, rows.scale_blocks(), rows.group_rows(), k},
               static_cast<unsigned>(rows.count()));
      });
      std::swap(integers, next);
      stream.wait();
    }
    rows.device().clock().report_finished_work();
    download<std::int32_t>(stream, std::span(result).subspan(rows.range().first * k, rows.values()), integers);
    stream.wait();
  });
  return result;
}

/// A method's iterations for the rows of one device: recorded once as a graph, which is launched for each.
template <class Numbers>
class RecordedIterations {
 public:
  /// `numbers` of all iterations; they have to stay until the stream has been waited for.
  RecordedIterations(GramRows& rows, std::span<const Numbers> numbers)
      : rows_(rows), numbers_(rows.array<Numbers>(numbers.size())), iteration_(rows.array<unsigned>(1)) {
    upload<Numbers>(rows.device().stream(), numbers_, numbers);
  }

  const Numbers* numbers() const noexcept { return numbers_.data(); }
  /// Which iteration it is, on the device.
  const unsigned* iteration() const noexcept { return iteration_.data(); }

  /// Iterations [first, last), each of which is what `queue` queues. For `what` and `arrays` see GramRows::repeat().
  template <class Queue>
  void run(std::size_t first, std::size_t last, const char* what, std::size_t arrays,
           const solve::SolveControl& control, const Queue& queue) {
    const Stream& stream = rows_.device().stream();
    const auto number = static_cast<unsigned>(first);
    upload<unsigned>(stream, iteration_, std::span(&number, 1));
    stream.wait();
    const auto one = [this, queue, &stream] {
      queue();
      launch(stream, AdvanceKernel{iteration_.data()}, 1);
    };
    if (!graph_ && first < last) {
      one();  // not recorded: libraries load code when they are first used, which no graph can record
      stream.wait();
      graph_.emplace(stream, one);
      ++first;
    }
    if (first < last) rows_.repeat(*graph_, last - first, what, arrays, control);
  }

 private:
  GramRows& rows_;
  DeviceArray<Numbers> numbers_;
  DeviceArray<unsigned> iteration_;
  std::optional<Graph> graph_;
};

/// The rows of one device: a method's variables, and what its iterations compute with.
template <class Variables, class BlockNumbers, class StepNumbers>
class MethodRows {
 public:
  GramRows& rows() noexcept { return rows_; }
  /// Sum over the rows of the error of the integers that the iterations start from.
  double start_error() const noexcept { return start_error_; }

  /// The variables as the host has them.
  void put(Variables& variables) {
    const Stream& stream = rows_.device().stream();
    copy(variables,
         [&](std::span<float> host, const DeviceArray<float>& array) { upload<float>(stream, array, host); });
    if (rows_.narrow() || units_.size() > 0) {
      launch(stream,
             RowUnitsKernel<BlockNumbers>{rounded_.data(), start_.size() > 0 ? start_.data() : nullptr, units(),
                                          narrow_.data(), numbers_.data(), rows_.scale_blocks(), rows_.count(),
                                          rows_.fan_in()},
             blocks_for(rounded_.size()));
    }
    stream.wait();
  }
  void get(Variables& variables) {
    const Stream& stream = rows_.device().stream();
    copy(variables,
         [&](std::span<float> host, const DeviceArray<float>& array) { download<float>(stream, host, array); });
    stream.wait();
  }

 protected:
  /// `has_units`, `has_start`: whether there are such arrays.
  MethodRows(GramRows& rows, bool has_units, bool has_start, std::span<const StepNumbers> steps)
      : rows_(rows),
        variable_(rows.array<float>(rows.values())),
        mean_(rows.array<float>(rows.values())),
        square_(rows.array<float>(rows.values())),
        rounded_(rows.array<float>(rows.values())),
        units_(rows.array<float>(has_units ? rows.values() : 0)),
        start_(rows.array<float>(has_start ? rows.values() : 0)),
        slope_(rows.array<float>(rows.values())),
        offset_(rows.array<float>(rows.values())),
        narrow_(rows.array<Bfloat16>(rows.narrow() ? rows.values() : 0)),
        numbers_(rows.array<BlockNumbers>(rows.count() * rows.scale_blocks().blocks)),
        half_factor_(rows.array<float>(rows.count())),
        unit_(rows.array<float>(rows.count())),
        dots_(rows.array<double>(rows.count())),
        iterations_(rows, steps) {}

  /// The offset and the error of integers. `half_factor`, `unit` and `to_offset` of each row: for dots(), and what the
  /// residual becomes the offset by.
  void begin(const solve::Quadratic& quadratic, std::span<const std::int32_t> integers,
             const std::vector<BlockNumbers>& numbers, const std::vector<float>& half_factor,
             const std::vector<float>& unit, const std::vector<float>& to_offset) {
    const Stream& stream = rows_.device().stream();
    upload<BlockNumbers>(stream, numbers_, numbers);
    upload<float>(stream, half_factor_, half_factor);
    upload<float>(stream, unit_, unit);
    const auto of_rows = rows_.uploaded<std::int32_t>(integers, rows_.fan_in());
    const auto factor = rows_.array<float>(rows_.count());
    upload<float>(stream, factor, to_offset);
    rows_.residual(of_rows.data(), factor.data(), offset_.data());
    stream.wait();
    start_error_ = rows_.error_sum(of_rows.data());
    for (std::size_t m = rows_.range().first; m < rows_.range().last; ++m) start_error_ += quadratic.constant(m);
  }

  /// Of each row v A vᵀ · half_factor + v offset, with v in units of the row's scale.
  void dots(std::span<double> out) {
    const Stream& stream = rows_.device().stream();
    rows_.product(in_row_units(), slope_.data());
    launch(stream,
           RowDotKernel{in_row_units(), slope_.data(), offset_.data(), half_factor_.data(), unit_.data(), dots_.data(),
                        rows_.fan_in()},
           static_cast<unsigned>(rows_.count()), kSumBytes);
    download<double>(stream, out, dots_);
    stream.wait();
  }

  float* units() const noexcept { return units_.size() > 0 ? units_.data() : nullptr; }
  /// What is multiplied with A.
  const float* in_row_units() const noexcept { return units_.size() > 0 ? units_.data() : rounded_.data(); }

  GramRows& rows_;
  DeviceArray<float> variable_, mean_, square_, rounded_;  // in the order of Variables::visit_state()
  DeviceArray<float> units_, start_, slope_, offset_;
  DeviceArray<Bfloat16> narrow_;
  DeviceArray<BlockNumbers> numbers_;
  DeviceArray<float> half_factor_, unit_;
  DeviceArray<double> dots_;
  RecordedIterations<StepNumbers> iterations_;

 private:
  template <class Copy>
  void copy(Variables& variables, const Copy& copy) {
    const std::array arrays{&variable_, &mean_, &square_, &rounded_};
    std::size_t i = 0;
    const auto visit = [&](std::vector<float>& all) {
      copy(std::span(all).subspan(rows_.range().first * rows_.fan_in(), rows_.values()), *arrays[i++]);
    };
    variables.visit_state(visit);
  }

  double start_error_ = 0;
};

/// A method's variables on the host and, as `Part`, the rows of each device. `Iterations` is the method's interface in
/// solve/layers/streamed.h.
template <class Iterations, class Variables, class Part>
class VariablesOnDevices : public Iterations {
 public:
  Variables& variables() final {
    if (!std::exchange(on_device_, false)) return variables_;
    for (const auto& part : parts_) {  // one after another: all write to the same variables
      part->rows().device().current();
      part->get(variables_);
    }
    return variables_;
  }
  void changed() final {
    for (const auto& part : parts_) {
      part->rows().device().current();
      part->put(variables_);
    }
    on_device_ = false;
  }

 protected:
  explicit VariablesOnDevices(const solve::QuantizedWeights& weights) : variables_(weights) {}

  /// `make(rows)` gives the part of a device. Afterwards it has the variables.
  template <class Make>
  void make_parts(std::span<const std::unique_ptr<GramRows>> rows, const Make& make) {
    parts_.resize(rows.size());
    for_each_device(rows.size(), [&](std::size_t i) {
      rows[i]->device().current();
      parts_[i] = make(*rows[i]);
    });
    changed();
  }
  /// Calls fn(part, its number) on a thread of each device.
  template <class Fn>
  void on_each(const Fn& fn) {
    for_each_device(parts_.size(), [&](std::size_t i) {
      parts_[i]->rows().device().current();
      fn(*parts_[i], i);
    });
  }
  void changed_on_device() noexcept { on_device_ = true; }
  /// As the host has them: the latest only after variables().
  Variables& on_host() noexcept { return variables_; }
  std::span<const std::unique_ptr<Part>> parts() const noexcept { return parts_; }

 private:
  Variables variables_;
  bool on_device_ = false;  // where the latest variables are
  std::vector<std::unique_ptr<Part>> parts_;
};

// AdaQuant in Gram form: an iteration is one product d A, with the change d of the integers, and one fused kernel. See
// solve/solvers/adaquant.cpp for the arithmetic.

namespace {

using solve::AdamStep;
using solve::AdaQuantVariables;
using solve::Quadratic;
using solve::QuantizedWeights;
using solve::SolveControl;

constexpr std::size_t kAdaQuantStepArrays = 11;  // of a step six arrays are read and five written

class AdaQuantPart final : public MethodRows<AdaQuantVariables, AdaQuantBlockNumbers, AdaQuantNumbers> {
 public:
  AdaQuantPart(GramRows& rows, const QuantizedWeights& weights, const Quadratic& quadratic,
               std::span<const std::int32_t> start, std::span<const AdaQuantNumbers> steps)
      : MethodRows(rows, true, true, steps) {
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
    std::vector<float> start_units(rows.values());
    for (std::size_t i = 0; i < start_units.size(); ++i) {
      const std::size_t m = rows.range().first + i / rows.fan_in();
      const std::int32_t zero = weights.zero_of(m, i % rows.fan_in());
      start_units[i] = static_cast<float>(start[rows.range().first * rows.fan_in() + i] - zero);
    }
    upload<float>(rows.device().stream(), start_, start_units);
    const std::vector<float> to_offset(rows.count(), static_cast<float>(2 / quadratic.positions()));
    begin(quadratic, start, numbers, half, units, to_offset);
  }

  void iterate(std::size_t first, std::size_t last, const SolveControl& control) {
    iterations_.run(first, last, "AdaQuant", kAdaQuantStepArrays, control, [&] { queue_iteration(); });
  }

  /// Of these rows, above those of the start: d A dᵀ + 2 d (Ŵ₀ A − c)ᵀ over the number of positions.
  void errors(std::span<double> out) { dots(out); }

 private:
  void queue_iteration() {
    const Stream& stream = rows_.device().stream();
    rows_.step_product(units(), narrow_.data(), slope_.data());
    launch(stream,
           AdaQuantStepKernel{variable_.data(), mean_.data(), square_.data(), rounded_.data(), units(), narrow_.data(),
                              start_.data(), slope_.data(), offset_.data(), numbers_.data(), iterations_.numbers(),
                              iterations_.iteration(), rows_.scale_blocks(), rows_.count(), rows_.fan_in()},
           blocks_for_packs(rows_.count(), rows_.fan_in(), rows_.scale_blocks()));
  }
};

class AdaQuantOnDevices final : public VariablesOnDevices<solve::AdaQuantIterations, AdaQuantVariables, AdaQuantPart> {
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
    make_parts(rows, [&](GramRows& of_device) {
      return std::make_unique<AdaQuantPart>(of_device, weights, quadratic, start, steps);
    });
    for (const auto& part : parts()) start_loss_ += part->start_error() / quadratic.positions();
  }

  void iterate(std::size_t first, std::size_t last) override {
    changed_on_device();
    on_each([&](AdaQuantPart& part, std::size_t) { part.iterate(first, last, control_); });
  }
  std::vector<double> errors() override {
    on_each([&](AdaQuantPart& part, std::size_t) {
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

using solve::AdaRoundStep;
using solve::AdaRoundVariables;

constexpr std::size_t kAdaRoundStepArrays = 10;  // of a step six arrays are read and four written

// AdaRound in Gram form: an iteration is one product h A and one fused kernel. See solve/solvers/adaround.cpp for the
// arithmetic.
class AdaRoundPart final : public MethodRows<AdaRoundVariables, AdaRoundBlockNumbers, AdaRoundNumbers> {
 public:
  AdaRoundPart(GramRows& rows, const QuantizedWeights& weights, const Quadratic& quadratic,
               const AdaRoundVariables& variables, std::span<const AdaRoundNumbers> steps)
      : MethodRows(rows, rows.scale_blocks().blocks > 1, false, steps) {
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
    begin(quadratic, variables.base(), numbers, half, std::vector<float>(rows.count(), 1.0F), to_offset);
  }

  void iterate(std::size_t first, std::size_t last, const SolveControl& control) {
    iterations_.run(first, last, "AdaRound", kAdaRoundStepArrays, control, [&] { queue_iteration(); });
  }

  /// Sum over these rows of the loss above that of the base.
  double loss_above_base() {
    std::vector<double> of_rows(rows_.count());
    dots(of_rows);
    return std::accumulate(of_rows.begin(), of_rows.end(), 0.0);
  }

 private:
  void queue_iteration() {
    const Stream& stream = rows_.device().stream();
    rows_.step_product(in_row_units(), narrow_.data(), slope_.data());
    launch(stream,
           AdaRoundStepKernel{variable_.data(), mean_.data(), square_.data(), rounded_.data(), units(), narrow_.data(),
                              slope_.data(), offset_.data(), numbers_.data(), iterations_.numbers(),
                              iterations_.iteration(), rows_.scale_blocks(), rows_.count(), rows_.fan_in()},
           blocks_for_packs(rows_.count(), rows_.fan_in(), rows_.scale_blocks()));
  }
};

class AdaRoundOnDevices final : public VariablesOnDevices<solve::AdaRoundIterations, AdaRoundVariables, AdaRoundPart> {
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
      return std::make_unique<AdaRoundPart>(of_device, weights, quadratic, on_host(), steps);
    });
    for (const auto& part : parts()) base_loss_ += part->start_error() / quadratic.positions();
  }

  double iterate(std::size_t first, std::size_t last, bool loss) override {
    changed_on_device();
    on_each([&](AdaRoundPart& part, std::size_t i) {
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

solve::Integers adaquant(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                         const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control) {
  AdaQuantOnDevices problem(rows, weights, quadratic, config, control);
  return solve::run(problem, config, control);
}

solve::Integers adaround(std::span<const std::unique_ptr<GramRows>> rows, const QuantizedWeights& weights,
                         const Quadratic& quadratic, const FinetuneConfig& config, const SolveControl& control) {
  AdaRoundOnDevices problem(rows, weights, quadratic, config, control);
  return solve::run(problem, config, control);
}

}  // namespace detent::cuda
