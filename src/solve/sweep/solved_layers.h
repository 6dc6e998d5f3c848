// Solutions of layers, saved as they are found.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "detent/quantize.h"
#include "onnx/tensor.h"
#include "shim/ranks.h"
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
  /// `ranks`: that have solved each stage together; null: this process is alone.
  explicit SolvedLayers(std::filesystem::path directory, shim::Ranks* ranks = nullptr, std::stop_token stop = {})
      : directory_(std::move(directory)), ranks_(ranks), stop_(std::move(stop)) {}

  /// Collective: what this or an earlier process of rank 0 found for this stage of so many layers. Nothing when it is
  /// damaged, or of other layers: the stage is then solved again, with the same result.
  std::optional<std::vector<StoredLayer>> load(std::size_t stage, std::size_t layers) const;
  /// The same after save(). Throws resource when it is damaged.
  std::vector<StoredLayer> load_saved(std::size_t stage, std::size_t layers) const;
  /// By rank 0: others take what it has found.
  void save(std::size_t stage, const std::vector<SolvedLayer>& layers) const;

 private:
  std::filesystem::path file_of(std::size_t stage) const;
  std::optional<std::vector<StoredLayer>> read(std::size_t stage, std::size_t layers) const;
  void take_from_first(std::size_t stage) const;

  std::filesystem::path directory_;
  shim::Ranks* ranks_;
  std::stop_token stop_;
};

}  // namespace detent::solve
