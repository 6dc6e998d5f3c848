// Solutions of layers, put down as they are found.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "detent/quantize.h"
#include "onnx/tensor.h"

namespace detent::pipeline {

struct SolvedLayer {
  LayerTuning tuning;
  std::vector<std::byte> integers;  // as stored
  std::vector<std::byte> bias;      // as stored; empty: stays as it was
};

class SolvedLayers {
 public:
  /// Solutions are put down in `directory`; tensors that are kept go to files in `scratch`.
  SolvedLayers(std::filesystem::path directory, std::filesystem::path scratch)
      : directory_(std::move(directory)), scratch_(std::move(scratch)) {}

  /// What an earlier process found for this step. Throws bad_input when it is damaged.
  std::optional<std::vector<SolvedLayer>> load(std::size_t step) const;
  void save(std::size_t step, const std::vector<SolvedLayer>& layers) const;

  /// Moves elements to a file, so that they are mapped and not held.
  onnx::TensorData keep(std::vector<std::byte> bytes);

 private:
  std::filesystem::path file_of(std::size_t step) const;

  std::filesystem::path directory_;
  std::filesystem::path scratch_;
  std::size_t kept_ = 0;
};

}  // namespace detent::pipeline
