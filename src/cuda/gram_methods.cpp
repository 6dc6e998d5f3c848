#include "cuda/gram_methods.h"

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/row_kernels.h"
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
  if (!runs_on_devices(config.rounding)) {
    return solve::find_solver(config.rounding)->solve(weights_, form_, bias_, config, kernels_, control_);
  }
  prepare(config);
  return config.rounding == WeightSolver::adaround ? adaround(rows_, weights_, *quadratic_, config, control_)
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

}  // namespace detent::cuda
