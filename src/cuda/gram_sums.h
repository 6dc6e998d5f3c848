// Sums over samples, made on a device.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>

#include "cuda/device.h"
#include "solve/algebra/gram.h"
#include "store/device_route.h"

namespace detent::cuda {

// Samples on their way to a device, one after the other: the host fills one buffer while the copy of the other
// and the work on the one before go on.

/// Two places for pieces of floats that go to a device together. One thread at a time.
class Staging {
 public:
  /// Place for pieces of up to so many floats in all; more are made room for when they come.
  explicit Staging(Device& device) : device_(device) {}

  /// Queues the copy of all pieces, one after the other, in the device's second queue, and has work that is queued in
  /// its first one from now on wait for it. Returns where they will be: until the call after the next, whose copy waits
  /// for the work queued before that call. The pieces may change as soon as this returns.
  const float* put(std::span<const std::span<const float>> pieces);
  /// Has a record that rests on disk read there instead, and waits for that; work that is queued goes on meanwhile. The
  /// address begins at a block.
  const std::byte* read(store::DeviceReader& reader, const store::RecordOnDisk& record);

 private:
  struct Slot {
    HostMemory host;
    DeviceArray<float> device;
    Event copied;
    Event used;
    bool busy = false;
  };

  Slot& take_turn();
  void make_room(Slot& slot, std::size_t floats);

  Device& device_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

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
