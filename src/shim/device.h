// A device that the runtime computes on, described by whoever drives it: this room knows ONNX Runtime's names and
// nothing of the device itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace detent::shim {

struct Device {
  /// As ONNX Runtime spells them. The CPU's provider is good too: its "device" memory is the host's.
  std::string provider = "CUDAExecutionProvider";
  std::string memory = "Cuda";
  int ordinal = 0;
  /// The stream (cudaStream_t) that all of a session computes on, so that what its owner puts there comes in order.
  /// Null: one that the runtime makes for each session.
  void* stream = nullptr;
  std::uint64_t memory_limit = 0;  // bytes that the runtime may take of the device's memory; 0: all there is
  /// Products of float32 may round their factors to 10 bits of mantissa.
  bool tf32 = false;
  /// Copies within the device's memory, in the order of the stream. Throws device.
  std::function<void(void* to, const void* from, std::size_t bytes)> copy;
};

}  // namespace detent::shim
