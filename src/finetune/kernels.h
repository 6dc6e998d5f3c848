// The heavy arithmetic of fine-tuning. What computes it is a plugin, loaded on first use: the libraries behind it are
// large, and plain calibration must not pay for them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "finetune/geometry.h"

namespace detent::finetune {

/// A convolution or transposed convolution made ready for one input shape. It owns scratch memory: one thread at a
/// time. Tensors are plain (no padding between elements) in the order of ONNX; weights and their gradient are matrices
/// [outputs, fan_in], see patches.h. There is no bias.
class Convolution {
 public:
  virtual ~Convolution() = default;
  virtual void forward(const float* input, const float* weights, float* output) = 0;
  /// Gradient by the weights; replaces what was there.
  virtual void backward_weights(const float* input, const float* output_gradient, float* weight_gradient) = 0;
};

/// Row-major matrix product C = alpha · op(A) · op(B) + beta · C with op(A) of m × k, op(B) of k × n.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  float alpha = 1;
  float beta = 0;  // 0: what was in C does not matter
};

/// All calls may come from several threads at once and each runs on the calling thread alone, so that a result never
/// depends on the number of threads. They throw device.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void gemm(const Gemm& shape, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                    std::int64_t ldc) const = 0;
  virtual std::unique_ptr<Convolution> convolution(const LayerGeometry& geometry,
                                                   const std::vector<std::int64_t>& input_shape) const = 0;
};

/// The CPU's kernels. Their plugin is `plugin` if given, else $DETENT_CPU_PLUGIN, else libdetent_cpu.so beside the
/// executable (or in ../lib); what the first call in the process loaded stays. Throws device when it cannot be loaded.
const Kernels& cpu_kernels(const std::optional<std::filesystem::path>& plugin = {});

/// The plugin's only symbol. Null when the plugin is of another version; the object lives as long as the process.
using KernelsEntry = const Kernels*(int version);
inline constexpr const char* kKernelsEntryName = "detent_kernels";
/// Raised when anything above changes. Plugin and binary come from the same compiler.
inline constexpr int kKernelsVersion = 1;

}  // namespace detent::finetune
