// Exact coordinate descent with the columns themselves at hand, where a Gram matrix is not, or is dearer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "finetune/geometry.h"
#include "finetune/kernels.h"
#include "finetune/problem.h"
#include "finetune/quadratic.h"
#include "finetune/samples.h"
#include "finetune/solver.h"

namespace detent::finetune {

/// Columns of one group: column c begins at inputs + c · leading. Targets are those of all rows, [rows, count], without
/// the bias; null: what the float weights give.
struct ColumnsView {
  const float* inputs = nullptr;
  std::size_t leading = 0;
  std::size_t count = 0;
  const float* targets = nullptr;
};

/// Sweeps over rows of one group. Each weight takes the integer that is best with all others as they are. Where columns
/// are fewer than weights, they do not say all: integers are then held near the float weights, the more the fewer they
/// are.
class ColumnDescent {
 public:
  /// Both must outlive this. Without `sweeps` run() has none to do.
  ColumnDescent(const QuantizedWeights& weights, const ColumnsView& columns, const Kernels& kernels,
                bool sweeps = true);

  /// Ŵ X − Y for integers [rows, fan_in]: what a sweep works on.
  std::vector<float> rest(RowRange rows, const Integers& integers) const;
  /// Takes of each row the integers with the smaller rest; the first where they are equal. Cheap where the first are
  /// better: a part of the columns mostly tells.
  void keep_better(RowRange rows, Integers& best, std::vector<float>& best_rest, const Integers& other) const;
  /// Up to `sweeps`, until no integer changes; `rest` belongs to the integers, and is of no use afterwards.
  void run(RowRange rows, std::size_t sweeps, Integers& integers, std::vector<float> rest) const;

 private:
  std::vector<float> changes(RowRange rows, const Integers& integers) const;
  void add_rest(RowRange rows, const std::vector<float>& changes, std::size_t first, std::size_t last,
                std::vector<float>& rest) const;
  bool sweep(RowRange rows, Integers& integers, std::vector<float>& rest) const;
  bool sweep_row(std::size_t row, std::size_t first, const float* gram, std::size_t size, float* slopes,
                 float* difference, std::int32_t* integers) const;

  const QuantizedWeights& weights_;
  const ColumnsView& columns_;
  const Kernels& kernels_;
  float ridge_ = 0;                        // weight of the squared change of a weight from its float value
  std::vector<std::vector<float>> grams_;  // of each block of weights
};

/// How many columns of all samples together descend_on_samples() keeps.
std::size_t descent_columns(const LayerGeometry& geometry);

/// Whether it follows solvers in mini-batches: the objective has to be a quadratic in the weights.
bool descends(const FinetuneConfig& config);

/// Integers of a solution, improved on columns of all samples, as many of each, spread over its positions: rows that
/// nearest rounding serves better go back to it, then coordinate_sweeps() follow. The columns follow from
/// config.seed; the result is the same for any number of threads.
Integers descend_on_samples(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                            LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels,
                            const SolveControl& control);

}  // namespace detent::finetune
