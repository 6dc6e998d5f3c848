// Devices for the tests: the host as eight of them, or GPUs, of which there may be fewer than are asked for.
#pragma once

#include "cuda/gram_rows.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/solver.h"
#include "solve/support.h"

namespace detent::cuda {

using solve::all_kinds;
using solve::Case;
using solve::kernels;
using solve::Layer;
using solve::make_layer;

/// A layer's samples.
class InMemory final : public solve::LayerSamples {
 public:
  explicit InMemory(const Layer& layer) : layer_(layer) {}
  std::size_t count() const override { return layer_.inputs.size(); }
  solve::SampleRef get(std::size_t i) override {
    return {layer_.shape, layer_.inputs[i], layer_.float_inputs[i], layer_.targets[i], nullptr};
  }

 private:
  const Layer& layer_;
};

/// Defined by what the tests run on.
int device_count();
/// Whether products are plain loops: they give the same bits whatever number of rows goes together, and take no
/// scratch. A GPU's library chooses another way, with other last bits, for another number of rows.
bool has_plain_products();

inline Devices devices(std::size_t count = 1, std::uint64_t budget = std::uint64_t{1} << 30) {
  Devices made;
  for (std::size_t i = 0; i < count; ++i)
    made.push_back(std::make_unique<Device>(static_cast<int>(i) % device_count(), budget));
  return made;
}

inline std::size_t differences(const solve::Integers& a, const solve::Integers& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

/// Integers that another number of devices may decide otherwise.
inline std::size_t shared_rows_may_differ(const solve::Solution& solution) {
  return has_plain_products() ? 0 : 1 + solution.integers.size() / 20;
}

template <class T>
std::vector<T> on_host(const Device& device, const T* from, std::size_t count) {
  std::vector<T> values(count);
  device.stream().download(values.data(), from, count * sizeof(T));
  device.stream().wait();
  return values;
}

}  // namespace detent::cuda
