// Quantization and dequantization of tensors on their way through a float model: what a QuantizeLinear and a
// DequantizeLinear in that place would do to them, switched on and off from run to run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/tap.h"
#include "quantize/params.h"

namespace detent::accuracy {

/// Rounds `values`, a dense tensor of `shape`, to what its integers stand for.
void fake_quantize(std::span<float> values, std::span<const std::int64_t> shape,
                   const quantization::ValueParams& params);

/// A receiver that rounds the tapped values that are switched on.
class FakeQuantizer : public exec::TapReceiver {
 public:
  /// `params` of the values to come; it must outlive the receiver.
  explicit FakeQuantizer(const quantization::Params& params) : params_(params) {}

  /// What the next runs tap, in the order in which they count taps: for each tap the mark whose parameters it takes, or
  /// an empty string for a value that only passes.
  void expect(std::vector<std::string> marks) { marks_ = std::move(marks); }
  /// Marks that are rounded from now on.
  void switch_on(const std::vector<std::string>& marks);

  void receive(std::size_t tap, const exec::TensorView& tensor, const exec::ParallelFor& parallel) override;

 private:
  const quantization::Params& params_;
  std::vector<std::string> marks_;
  std::unordered_map<std::string, const quantization::ValueParams*> on_;
};

}  // namespace detent::accuracy
