// Devices for the tests: the host as eight of them, or GPUs, of which there may be fewer than are asked for.
#pragma once

#include "cuda/rows.h"
#include "solve/layers/samples.h"
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

inline Devices devices(std::size_t count = 1, std::uint64_t budget = std::uint64_t{1} << 30) {
  Devices made;
  for (std::size_t i = 0; i < count; ++i)
    made.push_back(std::make_unique<Device>(static_cast<int>(i) % device_count(), budget));
  return made;
}

template <class T>
std::vector<T> on_host(const Device& device, const T* from, std::size_t count) {
  std::vector<T> values(count);
  device.stream().download(values.data(), from, count * sizeof(T));
  device.stream().wait();
  return values;
}

}  // namespace detent::cuda
