#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/kernel_list.h"
#include "cuda/launch.h"
#include "cuda/layer_pass.h"
#include "cuda/on_host/clock.h"
#include "cuda/stream.h"

namespace detent::cuda {

// Memory of a device that is the host.

DeviceMemory::DeviceMemory(MemoryBudget& budget, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  budget.take(counted_bytes(bytes), what);
  bytes_ = counted_bytes(bytes);
  budget_ = &budget;
  // Exactly as long as was asked for, so that a sanitizer sees what goes beyond; and no zeros, which a device does not
  // promise either.
  address_ = std::malloc((bytes + 15) / 16 * 16);
  std::memset(address_, 0xa5, bytes);
}

DeviceMemory::~DeviceMemory() {
  if (address_ == nullptr) return;
  std::free(address_);
  budget_->give_back(bytes_);
}

HostMemory::HostMemory(std::size_t bytes, bool pinned) : memory_(bytes), pinned_(pinned) {}
HostMemory::~HostMemory() = default;

}  // namespace detent::cuda

// Queues whose work is done at once, devices that count to eight, and graphs that remember what to call.

struct CUevent_st {
  double milliseconds = 0;
};

namespace detent::cuda {

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::wait() const {}
void Stream::upload(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes); }
void Stream::download(void* to, const void* from, std::size_t bytes) const { copy(to, from, bytes); }
void Stream::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void Stream::clear(void* at, std::size_t bytes) const {
  if (bytes > 0) std::memset(at, 0, bytes);
}

std::function<double()>& event_clock() {
  static std::function<double()> clock = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  return clock;
}

Event::Event(bool) : handle_(std::make_unique<CUevent_st>().release()) {}
Event::~Event() { const std::unique_ptr<CUevent_st> gone(handle_); }
void Event::record(const Stream&) { handle_->milliseconds = event_clock()(); }
void Event::hold(const Stream&) const {}
void Event::wait() const {}
double Event::milliseconds_since(const Event& earlier) const {
  return handle_->milliseconds - earlier.handle_->milliseconds;
}

struct Graph::Recorded {
  std::function<void()> work;
};
Graph::Graph(const Stream&, const std::function<void()>& work) : recorded_(std::make_unique<Recorded>(work)) {}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;
void Graph::launch(const Stream&) const { recorded_->work(); }

int device_count();  // for the tests
bool has_plain_products();

DeviceFacts facts_of(int number) {
  make_current(number);
  return {"host", 4, std::uint64_t{2} << 30, "CPUExecutionProvider", "Cpu"};
}
int device_count() { return 8; }
bool has_plain_products() { return true; }

void make_current(int number) {
  if (number >= 8) throw device_error("the GPU failed to be used: there are eight");
}

namespace {

// Kernels on the host: block after block, and within a block thread after thread up to each place where a block waits
// for itself.

class HostBlock {
 public:
  HostBlock(unsigned index, unsigned count, std::vector<double>& shared)
      : index_(index), count_(count), shared_(shared) {}
  unsigned index() const { return index_; }
  unsigned count() const { return count_; }
  unsigned threads() const { return kThreads; }
  template <class T>
  T* shared() const {
    return reinterpret_cast<T*>(shared_.data());
  }
  template <class Fn>
  void each(const Fn& fn) const {
    for (unsigned thread = 0; thread < kThreads; ++thread) fn(thread);
  }

 private:
  unsigned index_, count_;
  std::vector<double>& shared_;
};

}  // namespace

template <class Kernel>
void launch(const Stream&, const Kernel& kernel, unsigned blocks, std::size_t shared_bytes) {
  std::vector<double> shared((shared_bytes + sizeof(double) - 1) / sizeof(double));
  for (unsigned index = 0; index < blocks; ++index) {
    HostBlock block(index, blocks, shared);
    kernel(block);
  }
}

#define DETENT_KERNEL(name) template void launch(const Stream&, const name&, unsigned, std::size_t);
DETENT_KERNELS
#undef DETENT_KERNEL

namespace {

// Products on the host by their definition, with inputs rounded as a device rounds them.

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

// Convolutions on the host by their definition, in either layout.

struct ConvolutionContext {};

using solve::LayerGeometry;
using solve::LayerKind;
using Shape = std::vector<std::int64_t>;

struct Convolution::Plan {
  LayerGeometry g;
  Shape in, out;
  std::int64_t channels;
  bool last;

  Shape spatial(const Shape& shape, std::size_t skip, std::int64_t fill) const {
    Shape three(shape.begin() + static_cast<std::ptrdiff_t>(skip), shape.end());
    three.insert(three.begin(), 3 - three.size(), fill);
    return three;
  }

  /// Calls fn(index of x, index of the filter, index of y) for all that meet. The library pads ends as beginnings.
  template <class Fn>
  void each(const Fn& fn) const {
    const bool transposed = g.kind == LayerKind::transposed;
    const Shape is = spatial(in, 2, 1), os = spatial(out, 2, 1), k = spatial(g.kernel, 0, 1);
    const Shape s = spatial(g.strides, 0, 1), d = spatial(g.dilations, 0, 1), p = spatial(g.pads_begin, 0, 0);
    const Shape& steps = transposed ? is : os;
    const Shape& spread = transposed ? os : is;
    const std::int64_t steps_size = steps[0] * steps[1] * steps[2], spread_size = spread[0] * spread[1] * spread[2];
    const std::int64_t kernel = k[0] * k[1] * k[2], inner = g.inputs / g.groups, outer = g.outputs / g.groups;
    for (std::int64_t n = 0; n < in[0]; ++n)
      for (std::int64_t m = 0; m < g.outputs; ++m)
        for (std::int64_t c = 0; c < inner; ++c)
          for (std::int64_t e = 0; e < kernel; ++e)
            for (std::int64_t f = 0; f < steps_size; ++f) {
              const Shape at{f / steps[2] / steps[1], f / steps[2] % steps[1], f % steps[2]};
              const Shape element{e / k[2] / k[1], e / k[2] % k[1], e % k[2]};
              std::int64_t reached = 0;
              bool inside = true;
              for (std::size_t a = 0; a < 3; ++a) {
                const std::int64_t position = at[a] * s[a] - p[a] + element[a] * d[a];
                inside = inside && position >= 0 && position < spread[a];
                reached = reached * spread[a] + position;
              }
              if (!inside) continue;
              const std::int64_t channel = m / outer * inner + c;
              const std::int64_t i = transposed ? f : reached, o = transposed ? reached : f;
              const std::int64_t in_size = transposed ? steps_size : spread_size;
              const std::int64_t out_size = transposed ? spread_size : steps_size;
              const std::int64_t x =
                  last ? (n * in_size + i) * g.inputs + channel : (n * channels + channel) * in_size + i;
              const std::int64_t y = last ? (n * out_size + o) * g.outputs + m : (n * g.outputs + m) * out_size + o;
              const std::int64_t first = transposed ? channel : m, second = transposed ? m % outer : c;
              const std::int64_t width = transposed ? outer : inner;
              fn(x, last ? (first * kernel + e) * width + second : (first * width + second) * kernel + e, y);
            }
  }
};

Convolution::Convolution(Device&, const LayerGeometry& geometry, const Shape& input_shape, std::int64_t channels,
                         DeviceLayout layout, DevicePrecision)
    : plan_(std::make_unique<Plan>(
          Plan{geometry, input_shape, geometry.output_shape(input_shape), channels, layout == DeviceLayout::nhwc})) {}
Convolution::Convolution(Convolution&&) noexcept = default;
Convolution& Convolution::operator=(Convolution&&) noexcept = default;
Convolution::~Convolution() = default;

void Convolution::forward(const float* input, const float* filter, float* output) const {
  std::int64_t count = 1;
  for (const std::int64_t d : plan_->out) count *= d;
  std::vector<double> sums(static_cast<std::size_t>(count));
  plan_->each(
      [&](auto x, auto w, auto y) { sums[static_cast<std::size_t>(y)] += static_cast<double>(input[x]) * filter[w]; });
  for (std::size_t i = 0; i < sums.size(); ++i) output[i] = static_cast<float>(sums[i]);
}

void Convolution::backward_filter(const float* input, const float* slope, float* gradient, float beta) const {
  std::vector<double> sums(static_cast<std::size_t>(plan_->g.outputs * plan_->g.fan_in()));
  plan_->each(
      [&](auto x, auto w, auto y) { sums[static_cast<std::size_t>(w)] += static_cast<double>(input[x]) * slope[y]; });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    gradient[i] = static_cast<float>(sums[i]) + (beta == 0 ? 0.0F : beta * gradient[i]);
  }
}

}  // namespace detent::cuda
