// Mixed precision: which weights get 2, 4 or 8 bits, or stay in float, so that the model keeps within a size or an
// error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "run/context.h"
#include "solve/sweep/gram_sweep.h"
#include "store/spool.h"

namespace detent::pipeline {

/// What tells how weights matter, where there are samples.
struct PlanSamples {
  run::Context context;
  const graph::ValueTypes& types;
  data::SampleSource& source;
  std::uint64_t memory = 0;  // the budget
  solve::GramMemory memory_for_sums = {};
};

struct PlannedBits {
  std::vector<int> of_nodes;  // see quantization::place_blocks()
  BitsPlan plan;
};

/// Chooses the bits of all weights that WeightsOnlyConfig::node_bits does not name. Weights whose products read the
/// same value, as those of one attention's queries, keys and values, get the same bits.
///
/// With samples each group of weights is rounded to the nearest alone, with WeightsOnlyConfig::bits, and the error of
/// the model's outputs divided by that of the products' results is its sensitivity. The error of other bits follows
/// from it and the Gram matrix, solved by the method for some columns. Without samples errors are those of the weights'
/// values.
class BitsPlanner {
 public:
  /// What is given must outlive the planner.
  BitsPlanner(const onnx::Model& model, const QuantizeOptions& options, const std::optional<PlanSamples>& samples);
  ~BitsPlanner();

  /// Of the written model and its data, with the fewest bits, and about that of the float model.
  std::uint64_t smallest() const;
  std::uint64_t in_float() const;
  /// With WeightsOnlyConfig::bits for all.
  std::uint64_t uniform() const;
  /// Throws usage where the model cannot be made so small, or is no larger in float.
  void check(std::uint64_t max_size) const;

  /// To be called once, before within(). Throws resource where the model does not fit the memory budget in one piece.
  void measure();
  /// The least expected error within a size that check() takes.
  PlannedBits within(std::uint64_t max_size) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// An accuracy target of weights alone: what a model that was written comes to, and what is too little.
class BitsTarget {
 public:
  /// The options must outlive it.
  explicit BitsTarget(const QuantizeOptions& options) : options_(options) {}

  /// The metric of the model, written to `path` and run as deployed; the file is removed again.
  double measure(onnx::Model model, const std::filesystem::path& path, const exec::Runtime& runtime,
                 data::SampleSource& samples);

  /// Of a value of the metric, about in proportion to the energy of the errors; 0: none.
  double loss_of(double value) const;
  /// Of the target.
  double most_loss() const { return loss_of(*options_.accuracy.target); }

  Error out_of_reach(const std::vector<MeasuredSize>& tried) const;

 private:
  const QuantizeOptions& options_;
  std::optional<double> float_score_;
};

}  // namespace detent::pipeline
