// Products on the host by their definition, with inputs rounded as a device rounds them.
#include "cuda/device.h"

#include <bit>
#include <cstdint>

#include "base/error.h"

namespace detent::cuda {
namespace {

float to_tf32(float value) {  // ten bits of mantissa
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000U) & 0xffffe000U);
}
float from(Bfloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

}  // namespace

struct MatmulContext {};

struct Matmul::Plan {
  Product p;
  DevicePrecision precision;

  float read(const float* at) const { return precision == DevicePrecision::tf32 ? to_tf32(*at) : *at; }
  float read(const Bfloat16* at) const { return from(*at); }

  template <class T>
  void run(const T* a, const T* b, float* c, float alpha, float beta) const {
    for (std::int64_t i = 0; i < p.batch; ++i) {
      for (std::int64_t m = 0; m < p.m; ++m) {
        for (std::int64_t n = 0; n < p.n; ++n) {
          double sum = 0;
          for (std::int64_t k = 0; k < p.k; ++k) {
            const float left = read(a + i * p.stride_a + (p.transpose_a ? k * p.lda + m : m * p.lda + k));
            const float right = read(b + i * p.stride_b + (p.transpose_b ? n * p.ldb + k : k * p.ldb + n));
            sum += static_cast<double>(left) * right;
          }
          float& to = c[i * p.stride_c + m * p.ldc + n];
          to = static_cast<float>(alpha * sum) + (beta == 0 ? 0.0F : beta * to);
        }
      }
    }
  }
};

Matmul::Matmul(Device& device, const Product& product, DevicePrecision precision, int)
    : plan_(std::make_unique<Plan>(Plan{product, precision})) {
  if (!device.libraries().matmuls) device.libraries().matmuls = std::make_shared<MatmulContext>();
}
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;
Matmul::~Matmul() = default;

void Matmul::run(const float* a, const float* b, float* c, float alpha, float beta) const {
  if (plan_->precision == DevicePrecision::bfloat16) throw internal_error("a product of bfloat16 was given floats");
  plan_->run(a, b, c, alpha, beta);
}
void Matmul::run(const Bfloat16* a, const Bfloat16* b, float* c, float alpha, float beta) const {
  if (plan_->precision != DevicePrecision::bfloat16) throw internal_error("a product of floats was given bfloat16");
  plan_->run(a, b, c, alpha, beta);
}

}  // namespace detent::cuda
