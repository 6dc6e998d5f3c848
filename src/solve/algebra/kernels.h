// The heavy arithmetic of fine-tuning. What computes it is a plugin, loaded on first use: the libraries behind it are
// large, and plain calibration must not pay for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace detent::solve {

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

inline Gemm gemm_of(std::size_t m, std::size_t n, std::size_t k, bool transpose_b, float beta = 0) noexcept {
  Gemm shape;
  shape.transpose_b = transpose_b;
  shape.m = static_cast<std::int64_t>(m);
  shape.n = static_cast<std::int64_t>(n);
  shape.k = static_cast<std::int64_t>(k);
  shape.beta = beta;
  return shape;
}

/// All calls may come from several threads at once and each runs on the calling thread alone, so that a result never
/// depends on the number of threads. They throw device.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void gemm(const Gemm& shape, const float* a, std::size_t lda, const float* b, std::size_t ldb, float* c,
                    std::size_t ldc) const = 0;
};

/// The CPU's kernels. Their plugin is `plugin` if given, else $DETENT_CPU_PLUGIN, else libdetent_cpu.so beside the
/// executable (or in ../lib); what the first call in the process loaded stays. Throws device when it cannot be loaded.
const Kernels& cpu_kernels(const std::optional<std::filesystem::path>& plugin = {});

/// The plugin's only symbol. Null when the plugin is of another version; the object lives as long as the process.
using KernelsEntry = const Kernels*(int version);
inline constexpr const char* kKernelsEntryName = "detent_kernels";
/// Raised when anything above changes. Plugin and binary come from the same compiler.
inline constexpr int kKernelsVersion = 3;

}  // namespace detent::solve
