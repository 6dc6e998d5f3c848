// Solutions of layers, saved as they are found.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "detent/quantize.h"
#include "onnx/tensor.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::solve {

struct SolvedLayer {
  LayerTuning tuning;
  std::vector<std::byte> integers;  // as stored
  std::vector<std::byte> bias;      // as stored; empty: stays as it was
  StoredScales scales;              // the same
};

/// The same, as it lies in the file.
struct StoredLayer {
  LayerTuning tuning;
  onnx::TensorData integers;
  onnx::TensorData bias;
  onnx::TensorData scale;
  onnx::TensorData bias_scale;
};

class SolvedLayers {
 public:
  explicit SolvedLayers(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// What this or an earlier process found for this stage. Throws bad_input when it is damaged.
  std::optional<std::vector<StoredLayer>> load(std::size_t stage) const;
  void save(std::size_t stage, const std::vector<SolvedLayer>& layers) const;

 private:
  std::filesystem::path file_of(std::size_t stage) const;

  std::filesystem::path directory_;
};

}  // namespace detent::solve
