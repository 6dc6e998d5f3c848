// Rotation of a transformer's residual stream before its weights become blocks: on demand, or where it is better.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "quantization/block_weights.h"
#include "tuning/block_weights.h"

namespace detent::pipeline {

/// A model on its way into blocks.
struct BlocksDraft {
  onnx::Model model;
  quantization::BlockPlacement placement;
  tuning::SolvedBlocks solved;
};

class StreamRotation {
 public:
  StreamRotation(const QuantizeOptions& options, std::size_t threads)
      : options_(options), threads_(threads), directory_(options.resources.work_dir.value_or("")) {}

  /// The rotated weights lie in files that last as long as this. Throws bad_input where the model has no stream that
  /// can be rotated. Gives back notes.
  std::vector<std::string> rotate(onnx::Model& model, const std::optional<Transformer>& transformer) const;

  /// Places and solves the weights of a model, in a directory.
  using Solve =
      std::function<BlocksDraft(const onnx::Model&, data::SampleSource&, const std::filesystem::path& directory)>;
  struct Choice {
    BlocksDraft draft;
    std::optional<RotatedStream> told;  // unset: it cannot be rotated
    std::vector<std::string> notes;
  };
  /// Solves the model as it is and rotated, with seven of eight samples. The one is kept whose results are nearer to
  /// the float model's on the others. What cannot be rotated is solved as it is, with all samples, and a note says why.
  Choice choose(const onnx::Model& model, const std::optional<Transformer>& transformer, data::SampleSource& samples,
                const std::filesystem::path& directory, const Solve& solve, const exec::Runtime& runtime) const;

 private:
  double error_of(const BlocksDraft& draft, const std::filesystem::path& directory, data::SampleSource& samples,
                  const exec::Runtime& runtime) const;

  const QuantizeOptions& options_;
  std::size_t threads_;
  TempDir directory_;
};

}  // namespace detent::pipeline
