// Sums over samples, made on a device.
#pragma once

#include <map>

#include "cuda/matmul.h"
#include "cuda/staging.h"
#include "solve/algebra/gram.h"

namespace detent::cuda {

/// As solve::GramAccumulator: positions are gathered into tiles of a fixed number, whatever the samples' sizes, and
/// each full tile is added by products in float32. Memory of the device: solve::gram_sums_bytes().
class GramSumsOnDevice final : public solve::GramSums {
 public:
  GramSumsOnDevice(Device& device, const solve::LayerGeometry& geometry);
  ~GramSumsOnDevice() override;

  void add(const solve::Shape& input_shape, std::span<const float> input, std::span<const float> target) override;
  void add(const solve::Shape& input_shape, std::span<const float> input, std::span<const float> target,
           std::span<const std::size_t> positions) override;
  solve::GramForm take() override;

 private:
  struct Products;

  std::span<const float> or_zeros(const solve::Shape& shape, std::span<const float> target);
  /// All positions of a sample that has so many.
  std::size_t checked(const solve::Shape& shape, std::size_t inputs, std::size_t targets) const;
  /// `positions` of a sample: the first, or those drawn.
  void fill(const solve::Shape& shape, const float* input, const float* target, const std::uint32_t* drawn,
            std::size_t positions);
  void flush();
  DeviceAmount amount(std::size_t positions) const;
  Products& products(std::size_t positions);

  Device& device_;
  solve::LayerGeometry geometry_;
  bool by_position_;  // positions of tiles lie together: products, as they come
  std::size_t groups_, fan_in_, outputs_, capacity_;
  std::size_t used_ = 0;
  std::uint64_t positions_ = 0;
  DeviceArray<float> inputs_, targets_;  // tiles
  DeviceArray<float> gram_, cross_;
  DeviceArray<double> input_sum_, target_sum_, target_norm_;
  std::vector<float> zeros_;  // targets where there are none
  Staging staging_;
  std::map<std::size_t, std::unique_ptr<Products>> products_;  // by the number of positions
};

}  // namespace detent::cuda
