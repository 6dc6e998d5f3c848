// The rotation of a transformer's weights within a run: where they lie, and what they take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "detent/quantize.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "run/files/run_directory.h"

namespace detent::pipeline {

class StreamRotation {
 public:
  /// Rotated weights lie in the run's directory where there is one, else in one of their own for as long as this lives.
  StreamRotation(const QuantizeOptions& options, const run::RunDirectory* work, profile::Profiler& profiler);

  /// Rotates the residual stream and the heads. Throws bad_input where the model cannot be rotated, and resource,
  /// before anything is written, where the disk budget is too small.
  graph::Notes apply(onnx::Model& model, const std::optional<Transformer>& transformer);

  /// What rotated weights leave of --disk-budget, where it was given: they stay until the end.
  std::optional<std::uint64_t> disk_left() const { return resources_.disk_budget; }

 private:
  void take_disk(std::uint64_t bytes);

  const QuantizeOptions& options_;
  Resources resources_;
  std::optional<TempDir> own_;
  std::filesystem::path directory_;
};

}  // namespace detent::pipeline
