// Some rows of a layer's problem in Gram form, on one device.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "cuda/simt.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/layer_solver.h"
#include "solve/layers/problem.h"
#include "solve/layers/solver.h"

namespace detent::cuda {

// Rows of weights shared out to devices. They are independent problems, so nothing passes between devices.

using Devices = std::vector<std::unique_ptr<Device>>;

using solve::share_rows;

/// Of an array with an entry for each block of scales, those of some rows.
template <class T>
std::span<const T> blocks_of_rows(const std::vector<T>& all, const solve::QuantizedWeights& weights,
                                  solve::RowRange rows) {
  return std::span<const T>(all).subspan(rows.first * weights.blocks(), rows.count() * weights.blocks());
}

ScaleBlocks scale_blocks_of(const solve::QuantizedWeights& weights);

/// Throws resource for a matrix of more elements than kernels count.
void check_size(std::size_t rows, std::size_t fan_in);

/// Calls fn(i) for i in [0, count), each on a thread of its own. An exception comes out, that of the smallest i, once
/// all have ended.
void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn);

/// The matrix A of the quadratic (see solve/algebra/quadratic.h) and products with it. All other matrices are [rows,
/// fan_in] of these rows. One thread at a time, whose device is this one.
class GramRows {
 public:
  GramRows(Device& device, const solve::QuantizedWeights& weights, const solve::Quadratic& quadratic,
           solve::RowRange rows, DevicePrecision precision);

  Device& device() noexcept { return device_; }
  solve::RowRange range() const noexcept { return rows_; }
  std::size_t count() const noexcept { return rows_.count(); }
  std::size_t fan_in() const noexcept { return fan_in_; }
  std::size_t values() const noexcept { return count() * fan_in_; }
  const float* gram() const noexcept { return gram_.data(); }
  std::size_t group_rows() const noexcept { return group_rows_; }
  const ScaleBlocks& scale_blocks() const noexcept { return blocks_; }

  /// out = values · A in float32.
  void product(const float* values, float* out) const { exact_.run(values, gram_.data(), out); }
  /// Whether steps take values as bfloat16.
  bool narrow() const noexcept { return narrow_gram_.size() > 0; }
  /// out = values · A in the precision of steps; `narrow` are the same values, where narrow() is.
  void step_product(const float* values, const Bfloat16* narrow, float* out) const;
  /// Launches a graph so many times, each time one such product and a step over so many arrays of these rows, and
  /// waits. `what` names it in the log. Throws interrupted.
  void repeat(const Graph& graph, std::size_t times, const char* what, std::size_t step_arrays,
              const solve::SolveControl& control) const;
  /// to = (Ŵ A − c) · factor[row] for integers [rows, fan_in]. `integers`, `to` and `factor` are on the device.
  void residual(const std::int32_t* integers, const float* factor, float* to) const;

  /// Sum over these rows of w A wᵀ − 2 w cᵀ for integers of the device.
  double error_sum(const std::int32_t* integers) const;

  template <class T>
  DeviceArray<T> array(std::size_t count) const {
    return {device_.memory(), count, "fine-tuning a layer"};
  }
  /// Of rows of a host's array with so many entries for each.
  template <class T>
  DeviceArray<T> uploaded(std::span<const T> all, std::size_t each) const {
    auto made = array<T>(count() * each);
    upload<T>(device_.stream(), made, all.subspan(rows_.first * each, count() * each));
    return made;
  }

 private:
  Device& device_;
  solve::RowRange rows_;
  std::size_t fan_in_, group_rows_;
  ScaleBlocks blocks_;
  DeviceArray<float> gram_;
  DeviceArray<Bfloat16> narrow_gram_;
  DeviceArray<float> scale_, linear_;
  DeviceArray<std::int32_t> zero_;
  mutable DeviceArray<float> dequantized_;
  Matmul exact_;
  std::optional<Matmul> fast_;
};

}  // namespace detent::cuda
