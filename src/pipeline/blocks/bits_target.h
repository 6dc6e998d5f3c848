// An accuracy target of weights alone: what a model that was written comes to, and what is too little.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::pipeline {

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
