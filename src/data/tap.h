// The tap: a pass-through operator inside the graph that hands each chosen tensor, in place, to a receiver the moment
// it is produced. The runtime then frees the tensor as in plain inference.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "onnx/types.h"

namespace detent::data {

/// A tensor in the runtime's memory; valid during the call only.
struct TensorView {
  onnx::DataType type = onnx::DataType::undefined;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> bytes;
  /// The same bytes, as the nodes that read the value will get them: a receiver may change them in a session of
  /// SessionOptions::edits.
  std::span<std::byte> passed_on = {};
};

/// A tensor in the memory of the device that the session computes on. It is there once what the device's stream holds
/// is done, so what reads it goes to that stream too; valid for what is put there during the call.
struct DeviceTensorView {
  onnx::DataType type = onnx::DataType::undefined;
  std::span<const std::int64_t> shape;
  const void* address = nullptr;  // not to be read by the host
  std::size_t size = 0;           // bytes
};

/// Runs fn(0) … fn(parts-1) on the runtime's own threads and waits for all of them.
using ParallelFor = std::function<void(std::size_t parts, const std::function<void(std::size_t)>& fn)>;

class TapReceiver {
 public:
  virtual ~TapReceiver() = default;
  /// `tap` is the position of the value in the list of tapped values. Calls for one run come one at a time, in the
  /// thread that called Session::run(). An exception ends the run and comes out of Session::run().
  virtual void receive(std::size_t tap, const TensorView& tensor, const ParallelFor& parallel) = 0;
  /// The same in sessions of SessionOptions::device, whose receivers must have it.
  virtual void receive_on_device(std::size_t tap, const DeviceTensorView& tensor);
};

}  // namespace detent::data
