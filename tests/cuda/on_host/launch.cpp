// Kernels on the host: block after block, and within a block thread after thread up to each place where a block waits
// for itself.
#include "cuda/launch.h"

#include <vector>

#include "cuda/kernel_list.h"

namespace detent::cuda {
namespace {

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

}  // namespace detent::cuda
