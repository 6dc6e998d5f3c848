// Sums over samples, made on a device.
#pragma once

#include <map>

#include "cuda/matmul.h"
#include "cuda/staging.h"
#include "finetune/gram.h"

namespace detent::cuda {

/// As finetune::GramAccumulator: columns are gathered into tiles of a fixed number, whatever the samples' sizes, and
/// each full tile is added by products in float32. Memory of the device: bytes_for().
class GramSumsOnDevice final : public finetune::GramSums {
 public:
  GramSumsOnDevice(Device& device, const finetune::LayerGeometry& geometry);
  ~GramSumsOnDevice() override;

  void add(const finetune::Shape& input_shape, std::span<const float> input, std::span<const float> target) override;
  finetune::GramForm take() override;

  /// For inputs of this shape.
  static std::uint64_t bytes_for(const finetune::LayerGeometry& geometry, const finetune::Shape& input_shape);

 private:
  struct Products;

  void fill(const finetune::Shape& shape, const float* input, const float* target, std::size_t columns);
  void flush();
  Products& products(std::size_t columns);

  Device& device_;
  finetune::LayerGeometry geometry_;
  bool by_column_;  // columns of tiles lie together: products, as they come
  std::size_t groups_, fan_in_, outputs_, capacity_;
  std::size_t used_ = 0;
  std::uint64_t columns_ = 0;
  DeviceArray<float> inputs_, targets_;  // tiles
  DeviceArray<float> gram_, cross_;
  DeviceArray<double> input_sum_, target_sum_, target_norm_;
  Staging staging_;
  std::map<std::size_t, std::unique_ptr<Products>> products_;  // by the number of columns
};

}  // namespace detent::cuda
