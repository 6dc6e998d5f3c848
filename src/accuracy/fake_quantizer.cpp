#include "accuracy/fake_quantizer.h"

#include <algorithm>
#include <cmath>

#include "base/vector_clones.h"
#include "quantize/formats.h"

namespace detent::accuracy {
namespace {

// As QuantizeLinear: float32 division, round half to even, saturation.
DETENT_VECTOR_CLONES void round_to_grid(float* values, std::size_t count, float scale, float zero, float low,
                                        float high) {
  for (std::size_t i = 0; i < count; ++i) {
    const float q = std::nearbyint(values[i] / scale) + zero;
    values[i] = (std::min(std::max(q, low), high) - zero) * scale;
  }
}

void round_run(std::span<float> values, const quantization::ScaleZeroPoint& p, quantization::IntRange bounds) {
  round_to_grid(values.data(), values.size(), p.scale, static_cast<float>(p.zero_point), static_cast<float>(bounds.min),
                static_cast<float>(bounds.max));
}

}  // namespace

void fake_quantize(std::span<float> values, std::span<const std::int64_t> shape,
                   const quantization::ValueParams& params) {
  const auto bounds = quantization::full_range(params.type);
  if (!params.axis) {
    round_run(values, params.channels.front(), bounds);
    return;
  }
  std::size_t run = 1;  // elements that follow each other in one channel
  for (std::size_t d = *params.axis + 1; d < shape.size(); ++d) run *= static_cast<std::size_t>(shape[d]);
  const std::size_t channels = params.channels.size();
  for (std::size_t at = 0, c = 0; at < values.size(); at += run, c = (c + 1) % channels)
    round_run(values.subspan(at, run), params.channels[c], bounds);
}

void FakeQuantizer::switch_on(const std::vector<std::string>& marks) {
  on_.clear();
  for (const auto& mark : marks) {
    const auto found = params_.find(mark);
    if (found != params_.end()) on_[mark] = &found->second;
  }
}

void FakeQuantizer::receive(std::size_t tap, const exec::TensorView& tensor, const exec::ParallelFor& parallel) {
  if (tensor.type != onnx::DataType::float32) return;
  const auto found = on_.find(marks_.at(tap));
  if (found == on_.end()) return;
  const auto& params = *found->second;
  const std::span<float> values(reinterpret_cast<float*>(tensor.passed_on.data()),
                                tensor.passed_on.size() / sizeof(float));
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  if (params.axis || values.size() <= kPiece) {
    fake_quantize(values, tensor.shape, params);
    return;
  }
  const std::size_t pieces = (values.size() + kPiece - 1) / kPiece;
  parallel(pieces, [&](std::size_t i) {
    const std::size_t at = i * kPiece;
    fake_quantize(values.subspan(at, std::min(kPiece, values.size() - at)), {}, params);
  });
}

}  // namespace detent::accuracy
